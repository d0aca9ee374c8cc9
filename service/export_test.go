package service

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
)

// RunScheduled is what RunDue does with a fire that is due, at a time of the test's choice. It
// waits for the run, and returns false if another replica has this fire.
func (s *Service) RunScheduled(
	ctx context.Context, name string, fire time.Time,
) (record run.Run, ours bool, err error) {
	w, err := s.Worker(name)
	if err != nil {
		return run.Run{}, false, err
	}
	workers, crons := []string{w.Name}, []string{w.Config.Schedule}
	if err := s.Main.Fires.UseLedgers(ctx, workers, crons, fire.Add(-time.Second)); err != nil {
		return run.Run{}, false, err
	}
	for {
		_, ledgers, err := s.Main.Fires.Ledgers(ctx, workers)
		if err != nil {
			return run.Run{}, false, err
		}
		l := ledgers[w.Name]
		until := l.AccountedUntil
		if until.Before(fire) {
			until = fire
		}
		record, err = s.RunBatch(ctx, run.Request{Worker: w.Name, Fire: &run.Fire{
			Time:  fire,
			Claim: &control.LedgerStep{Ledger: l, Cron: w.Config.Schedule, Until: until},
		}})
		if !errors.Is(err, run.ErrFireTaken) {
			return record, err == nil, err
		}
		if l.Newest.Equal(fire) {
			return record, false, nil
		}
	}
}

// AddWorker adds a worker of the test's making to the list.
func (s *Service) AddWorker(w *run.Worker) error { return s.Runner.Add(w) }
