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

// figures are the values of the gauges from the records in main. A scrape reads them, at most once
// per [run.BacklogAge]. A figure that cannot be read is missing: an old one would look current.
type figures struct {
	mu sync.Mutex
	// readAt is the end of the last read by the host's clock.
	readAt  time.Time
	workers []control.WorkerFigures
	runs    []control.RunFigures
	// flags and jobs are nil if reading them failed.
	flags map[string]bool
	jobs  []jobqueue.Count
	// used are the workers with gauges.
	used map[*run.Worker]bool
}

// read reads the figures. A failing figure hides no other, unless main does not answer at all.
func (f *figures) read(ctx context.Context, s *Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.readAt.IsZero() && time.Since(f.readAt) < run.BacklogAge {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), run.BacklogTimeout, dberr.ErrUnreachable)
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
		// Where the scheduler is off, no other caller may close abandoned runs. This reading or the
		// next counts them.
		_ = s.CloseAbandoned(ctx)
		f.runs, _ = s.Main.History.RunFigures(ctx, workers, databases)
		f.flags, _ = s.Main.Flags.FeatureFlags(ctx)
		if s.LooseForeignKeysOnly {
			f.readAt = time.Now()
			return
		}
		// Last, because this query can take the longest.
		if f.jobs, err = s.Main.Jobs.CountJobs(ctx); err == nil && f.jobs == nil {
			f.jobs = []jobqueue.Count{}
		}
	}
	f.readAt = time.Now()
}

// shown reports whether a worker has gauges.
func (f *figures) shown(w *run.Worker) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used[w]
}

// readUsed reads which workers are used. A worker whose database does not answer keeps its previous
// state. The counters of a worker that becomes used start at 0.
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

// gaugeStates maps River's job states to the label values of the gauge.
func gaugeStates() map[string]string {
	return map[string]string{
		"available": "waiting", "pending": "waiting", "scheduled": "scheduled", "retryable": "retryable",
		"running": "running", "discarded": "discarded",
	}
}
