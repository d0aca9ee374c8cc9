package service

import (
	"context"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Fire is a moment at which a worker's schedule wants a run, and what became of it.
type Fire = repo.Fire

// FireFilter selects fires: of one worker, with one outcome, behind the fire of AfterWorker at After; each zero for all.
type FireFilter struct {
	Worker, Outcome string
	After           time.Time
	AfterWorker     string
	// Limit is how many at most.
	Limit int
}

// Fires lists the ledger of fires, the newest first.
func (s *Service) Fires(ctx context.Context, f FireFilter) ([]Fire, error) {
	if f.Worker != "" {
		if _, err := s.engine.Worker(f.Worker); err != nil {
			return nil, err
		}
	}
	return s.engine.Main.ListFires(ctx, f.Worker, f.Outcome, f.After, f.AfterWorker, f.Limit)
}

// unaccounted is for how long fires may have no row before somebody should ask why: the grace and some looks.
const unaccounted = fireGrace + 3*lookAhead

// fireHealth is how a worker's fires fare, and what time it is: by main's clock, which decides what is due, and by the
// host's only if main does not answer.
func (s *Service) fireHealth(ctx context.Context, w *run.Worker) repo.FireHealth {
	h, err := s.engine.Main.FireHealth(ctx, w.Name)
	if err != nil {
		return repo.FireHealth{Now: time.Now()}
	}
	return h
}

func fireRemark(h repo.FireHealth) string {
	if schedule, err := run.ParseSchedule(h.Cron); err == nil && !h.AccountedUntil.IsZero() {
		if next := schedule.Next(h.AccountedUntil.UTC()); !next.IsZero() && h.Now.Sub(next) > unaccounted {
			return fmt.Sprintf("the fire of %s has found no scheduler: no server with scheduler.enabled is at work",
				next.Format(time.RFC3339))
		}
	}
	switch {
	case h.Missed == 1:
		return fmt.Sprintf("the last fire, of %s, was missed", h.Since.UTC().Format(time.RFC3339))
	case h.Missed > 1:
		return fmt.Sprintf("the last %d fires were missed, since %s", h.Missed, h.Since.UTC().Format(time.RFC3339))
	}
	return ""
}
