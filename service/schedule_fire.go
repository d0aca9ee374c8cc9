package service

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// startInBackground starts the run of a fire that is ours, which may take a while, or gives it back.
func (s *Service) startInBackground(ctx context.Context, w *worker, fire time.Time, id string) {
	if !s.inBackground(func() { s.runFire(ctx, w, fire, id) }) {
		s.giveBack(ctx, w, fire, id)
	}
}

// runFire starts the run of a fire that is ours, and logs what comes of it.
func (s *Service) runFire(ctx context.Context, w *worker, fire time.Time, id string) {
	log := s.logger.With("worker", w.name, "fire", fire, "run_id", id)
	var x *execution
	var run Run
	err := guarded(func() (err error) {
		x, run, err = s.startFire(ctx, w, fire, id)
		return err
	})
	switch {
	case err == nil:
		err := guarded(func() error { return s.goRound(ctx, w, run.Database, x) })
		if err != nil && !errors.Is(err, ErrStopping) {
			log.WarnContext(ctx, "databases that are left of the fire wait for the next one", "error", err)
		}
	case errors.Is(err, ErrStopping):
		s.giveBack(ctx, w, fire, id)
	case errors.Is(err, repo.ErrFireLost):
		log.WarnContext(ctx, "fire taken over by another replica: its run did not start in time here")
	default:
		log.ErrorContext(ctx, "run of the fire did not start, the fire is given back for others to take over", "error", err)
		s.giveBack(ctx, w, fire, id)
	}
}

// startFire starts the run of a fire that is ours: x, or if it cannot start, run is on record as SKIPPED with the reason,
// or as FAILED if something is broken. An error means that neither is, or that nobody knows: nothing has worked, and the
// fire is to be given back.
func (s *Service) startFire(ctx context.Context, w *worker, fire time.Time, id string) (x *execution, run Run, err error) {
	database, err := s.turn(ctx, w, fire)
	if err != nil {
		return nil, Run{}, err
	}
	return s.startScheduled(ctx, w, Run{ID: id, Fire: fire}, database)
}

// startScheduled is startFire for a database; also for a run that has no fire of its own.
func (s *Service) startScheduled(ctx context.Context, w *worker, run Run, database *repo.Database) (*execution, Run, error) {
	run.Worker, run.Database = w.name, databaseLabel(w, database)
	run.Trigger, run.RequestedBy = repo.TriggerSchedule, s.replica
	traced, begun := s.newExecution(ctx, w, run, database)
	run = begun.snapshot()
	err := s.startBegun(ctx, traced, begun)
	if err == nil {
		s.addFire(ctx, run, repo.FireRan)
		return begun, run, nil
	}
	defer refusedRun(begun.span, err)
	silent, _ := UnreachableDatabase(err)
	switch reason := skipReason(err); {
	case errors.Is(err, ErrStopping), errors.Is(err, repo.ErrFireLost):
		return nil, Run{}, err
	case errors.Is(err, ErrUnreachable) && silent == s.main.Name:
		return nil, Run{}, err
	case reason != "":
		run.State, run.Reason = repo.RunSkipped, reason
		if reason == reasonLeaseHeld {
			run.Error = err.Error()
		}
	default:
		run.State, run.Error = repo.RunFailed, publicText(err)
	}
	run, err = s.recordStillborn(traced, begun, run, err)
	return nil, run, err
}

// startBegun starts the run of a fire unless something is against it. traced is the context of the run's span.
func (s *Service) startBegun(ctx, traced context.Context, x *execution) error {
	if err := s.ready(ctx, x.worker); err != nil {
		return err
	}
	flags, err := s.main.FeatureFlags(ctx)
	if err != nil {
		return err
	}
	return s.launch(traced, x, flags)
}

// recordStillborn records, logs and counts the run of a fire that could not start.
func (s *Service) recordStillborn(ctx context.Context, x *execution, run Run, why error) (Run, error) {
	var err error
	if run.Fire.IsZero() {
		run, _, err = s.main.InsertRun(ctx, run, 0)
	} else {
		run, err = s.main.EndFire(ctx, run)
	}
	if err != nil {
		return run, errors.Join(why, err)
	}
	// The reason on record bears the words of whoever has paused the worker: the log has its type.
	told := run
	told.Reason, _, _ = strings.Cut(run.Reason, ":")
	attrs := runLine(told, 0)
	if fire := x.snapshot().Fire; !fire.IsZero() {
		attrs = append(attrs, "fire", fire)
	}
	outcome := repo.FireRan
	if run.State == repo.RunSkipped {
		outcome = repo.FireSkipped
		if _, paused := errors.AsType[*WorkerPausedError](why); !paused {
			attrs = append(attrs, "why", why.Error())
		}
		x.Log.InfoContext(ctx, "run skipped", attrs...)
	} else {
		x.Log.ErrorContext(ctx, "run did not start", append(attrs, "error", why)...)
	}
	s.metrics.addRun(ctx, run, 0)
	s.addFire(ctx, x.snapshot(), outcome)
	if x.worker.sli {
		s.metrics.addSLI(ctx, run)
	}
	return run, nil
}

// addFire counts the fire of a run that has one.
func (s *Service) addFire(ctx context.Context, run Run, outcome string) {
	if !run.Fire.IsZero() {
		s.metrics.addFires(ctx, run.Worker, outcome, 1)
	}
}

// giveBack lets another replica have a fire whose run does not start here. It tries as long as main does not answer; the
// last try is made when the process stops. If that fails too, whoever takes the run for dead gives its fire back.
func (s *Service) giveBack(ctx context.Context, w *worker, fire time.Time, id string) {
	pace := Backoff{First: time.Second, Most: 5 * time.Second}
	for {
		err := s.main.GiveBackFire(ctx, w.name, fire, id)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnreachable) || s.isStopping() {
			s.logger.WarnContext(ctx, "fire not given back, others take it over when it is abandoned", "worker", w.name, "fire", fire, "error", err)
			return
		}
		wait, _ := pace.After(err)
		select {
		case <-s.stopping:
		case <-time.After(wait):
		}
	}
}
