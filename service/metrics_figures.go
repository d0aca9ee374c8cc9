package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// figures are what the gauges show of the records in main: read when somebody asks, and at most every backlogAge.
type figures struct {
	mu      sync.Mutex
	readAt  time.Time
	workers []repo.WorkerFigures
	runs    []repo.RunFigures
	jobs    []repo.JobFigures
	flags   map[string]bool
	// err is why the newest reading failed: there are no figures then, old ones would look like new.
	err error
}

func (f *figures) read(ctx context.Context, s *Service) (known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.readAt.IsZero() && time.Since(f.readAt) < backlogAge {
		return f.err == nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), backlogPatience, repo.ErrUnreachable)
	defer cancel()
	var names, workers, databases []string
	for _, w := range s.workers {
		names = append(names, w.name)
		for _, d := range w.homes(s) {
			workers, databases = append(workers, w.name), append(databases, databaseLabel(w, d))
		}
	}
	var errs [4]error
	f.workers, errs[0] = s.main.WorkerFigures(ctx, names)
	if errs[0] == nil {
		f.runs, errs[1] = s.main.RunFigures(ctx, workers, databases)
		f.jobs, errs[2] = s.main.JobFigures(ctx)
		f.flags, errs[3] = s.main.FeatureFlags(ctx)
	}
	f.readAt, f.err = time.Now(), errors.Join(errs[:]...)
	return f.err == nil
}

// overdue is for how long the oldest fire has waited that nobody has accounted for, beyond the time that this takes.
func overdue(f repo.WorkerFigures) time.Duration {
	schedule, err := ParseSchedule(f.Cron)
	if err != nil || f.AccountedUntil.IsZero() {
		return 0
	}
	next := schedule.Next(f.AccountedUntil.UTC())
	if late := f.Now.Sub(next); !next.IsZero() && late > unaccounted {
		return late
	}
	return 0
}

// gaugeStates are the states of jobs as the gauge has them, by River's.
func gaugeStates() map[string]string {
	return map[string]string{
		"available": "waiting", "pending": "waiting", "scheduled": "scheduled", "retryable": "retryable",
		"running": "running", "discarded": "discarded",
	}
}
