package service

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// startInBackground starts the run of a fire that is ours, which may take a while, or gives it back.
func (s *Service) startInBackground(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	if !s.inBackground(func() { s.runFire(ctx, w, fire, id) }) {
		s.giveBack(ctx, w, fire, id)
	}
}

// runFire starts the run of a fire that is ours, and logs what comes of it.
func (s *Service) runFire(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	log := s.engine.Logger.With("worker", w.Name, "fire", fire, "run_id", id)
	var x *run.Execution
	var record run.Run
	err := run.Guarded(func() (err error) {
		x, record, err = s.startFire(ctx, w, fire, id)
		return err
	})
	switch {
	case err == nil:
		err := run.Guarded(func() error { return s.goRound(ctx, w, record.Database, x) })
		if err != nil && !errors.Is(err, run.ErrStopping) {
			log.WarnContext(ctx, "databases that are left of the fire wait for the next one", "error", err)
		}
	case errors.Is(err, run.ErrStopping):
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
func (s *Service) startFire(ctx context.Context, w *run.Worker, fire time.Time, id string) (x *run.Execution, record run.Run, err error) {
	database, err := s.turn(ctx, w, fire)
	if err != nil {
		return nil, run.Run{}, err
	}
	return s.startScheduled(ctx, w, run.Run{ID: id, Fire: fire}, database)
}

// startScheduled is startFire for a database; also for a run that has no fire of its own.
func (s *Service) startScheduled(ctx context.Context, w *run.Worker, record run.Run, database *repo.Database) (*run.Execution, run.Run, error) {
	record.Worker, record.Database = w.Name, run.DatabaseLabel(w, database)
	record.Trigger, record.RequestedBy = repo.TriggerSchedule, s.engine.Replica
	traced, begun := s.engine.NewExecution(ctx, w, record, database)
	record = begun.Snapshot()
	err := s.startBegun(ctx, traced, begun)
	if err == nil {
		s.addFire(ctx, record, repo.FireRan)
		return begun, record, nil
	}
	defer run.RefusedRun(begun.Span, err)
	silent, _ := run.UnreachableDatabase(err)
	switch reason := run.SkipReason(err); {
	case errors.Is(err, run.ErrStopping), errors.Is(err, repo.ErrFireLost):
		return nil, run.Run{}, err
	case errors.Is(err, run.ErrUnreachable) && silent == s.engine.Main.Name:
		return nil, run.Run{}, err
	case reason != "":
		record.State, record.Reason = repo.RunSkipped, reason
		if reason == run.ReasonLeaseHeld {
			record.Error = err.Error()
		}
	default:
		record.State, record.Error = repo.RunFailed, run.PublicText(err)
	}
	record, err = s.recordStillborn(traced, begun, record, err)
	return nil, record, err
}

// startBegun starts the run of a fire unless something is against it. traced is the context of the run's span.
func (s *Service) startBegun(ctx, traced context.Context, x *run.Execution) error {
	if err := s.engine.Ready(ctx, x.Worker); err != nil {
		return err
	}
	flags, err := s.engine.Main.FeatureFlags(ctx)
	if err != nil {
		return err
	}
	return s.engine.Launch(traced, x, flags)
}

// recordStillborn records, logs and counts the run of a fire that could not start.
func (s *Service) recordStillborn(ctx context.Context, x *run.Execution, record run.Run, why error) (run.Run, error) {
	var err error
	if record.Fire.IsZero() {
		record, _, err = s.engine.Main.InsertRun(ctx, record, 0)
	} else {
		record, err = s.engine.Main.EndFire(ctx, record)
	}
	if err != nil {
		return record, errors.Join(why, err)
	}
	// The reason on record bears the words of whoever has paused the worker: the log has its type.
	told := record
	told.Reason, _, _ = strings.Cut(record.Reason, ":")
	attrs := run.LineOf(told, 0)
	if fire := x.Snapshot().Fire; !fire.IsZero() {
		attrs = append(attrs, "fire", fire)
	}
	outcome := repo.FireRan
	if record.State == repo.RunSkipped {
		outcome = repo.FireSkipped
		if _, paused := errors.AsType[*run.WorkerPausedError](why); !paused {
			attrs = append(attrs, "why", why.Error())
		}
		x.Log.InfoContext(ctx, "run skipped", attrs...)
	} else {
		x.Log.ErrorContext(ctx, "run did not start", append(attrs, "error", why)...)
	}
	s.engine.Metrics.AddRun(ctx, record, 0)
	s.addFire(ctx, x.Snapshot(), outcome)
	if x.Worker.Sli {
		s.engine.Metrics.AddSLI(ctx, record)
	}
	return record, nil
}

// addFire counts the fire of a run that has one.
func (s *Service) addFire(ctx context.Context, record run.Run, outcome string) {
	if !record.Fire.IsZero() {
		s.engine.Metrics.AddFires(ctx, record.Worker, outcome, 1)
	}
}

// giveBack lets another replica have a fire whose run does not start here. It tries as long as main does not answer; the
// last try is made when the process stops. If that fails too, whoever takes the run for dead gives its fire back.
func (s *Service) giveBack(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	pace := run.Backoff{First: time.Second, Most: 5 * time.Second}
	for {
		err := s.engine.Main.GiveBackFire(ctx, w.Name, fire, id)
		if err == nil {
			return
		}
		if !errors.Is(err, run.ErrUnreachable) || s.engine.IsStopping() {
			s.engine.Logger.WarnContext(ctx, "fire not given back, others take it over when it is abandoned", "worker", w.Name, "fire", fire, "error", err)
			return
		}
		wait, _ := pace.After(err)
		select {
		case <-s.engine.Stopping:
		case <-time.After(wait):
		}
	}
}
