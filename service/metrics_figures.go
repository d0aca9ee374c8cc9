package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// figures are what the gauges show of the records in main: read when somebody asks, and at most
// every [run.BacklogAge]. What
// could not be read is missing: old figures would look like new ones.
type figures struct {
	mu      sync.Mutex
	readAt  time.Time
	workers []control.WorkerFigures
	runs    []control.RunFigures
	// flags and jobs are nil if they could not be read.
	flags map[string]bool
	jobs  []jobqueue.JobCount
	// used are the workers of which something is shown.
	used map[*run.Worker]bool
}

// read reads what it can: one figure that fails hides no other, unless main does not answer at all.
func (f *figures) read(ctx context.Context, s *Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.readAt.IsZero() && time.Since(f.readAt) < run.BacklogAge {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), run.BacklogPatience, dberr.ErrUnreachable)
	defer cancel()
	f.readUsed(ctx, s)
	var names, workers, databases []string
	for _, w := range s.Workers {
		if !f.used[w] {
			continue
		}
		names = append(names, w.Name)
		for _, d := range w.LeaseDatabases(s.Runner) {
			workers, databases = append(workers, w.Name), append(databases, run.DatabaseLabel(w, d))
		}
	}
	f.workers, f.runs, f.flags, f.jobs = nil, nil, nil, nil
	var err error
	if f.workers, err = s.Main.History.WorkerFigures(ctx, names); !errors.Is(err, fault.ErrUnreachable) {
		// Where the scheduler is off nobody else may close these: what has died is counted in this reading
		// or the next.
		_ = s.CloseAbandoned(ctx)
		f.runs, _ = s.Main.History.RunFigures(ctx, workers, databases)
		f.flags, _ = s.Main.Flags.FeatureFlags(ctx)
		if s.LooseForeignKeysOnly {
			f.readAt = time.Now()
			return
		}
		// Last, because it can take longest.
		if f.jobs, err = s.Main.Jobs.CountJobs(ctx); err == nil && f.jobs == nil {
			f.jobs = []jobqueue.JobCount{}
		}
	}
	f.readAt = time.Now()
}

// shown reports whether there is anything to show of a worker.
func (f *figures) shown(w *run.Worker) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used[w]
}

// readUsed reads which workers are used. One whose database does not answer is as it was before. The counters of a worker
// that is now used begin with 0.
func (f *figures) readUsed(ctx context.Context, s *Service) {
	if f.used == nil {
		f.used = map[*run.Worker]bool{}
	}
	for _, w := range s.Workers {
		why, err := s.NotUsed(ctx, w)
		if err != nil {
			continue
		}
		if !f.used[w] && why == "" {
			s.beginWorker(ctx, w)
		}
		f.used[w] = why == ""
	}
}

// gaugeStates are the states of jobs as the gauge has them, by River's.
func gaugeStates() map[string]string {
	return map[string]string{
		"available": "waiting", "pending": "waiting", "scheduled": "scheduled", "retryable": "retryable",
		"running": "running", "discarded": "discarded",
	}
}
