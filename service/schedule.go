package service

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// RunScheduled runs a worker for a fire of its schedule, if no other replica has done so: false. A run that could not
// start is recorded and returned: as SKIPPED with its reason, or FAILED if something is broken.
func (s *Service) RunScheduled(ctx context.Context, name string, fire time.Time) (run Run, ours bool, err error) {
	w, err := s.worker(name)
	if err != nil {
		return Run{}, false, err
	}
	// A fire that is claimed by a replica about to stop would be lost.
	if s.isStopping() {
		return Run{}, false, ErrStopping
	}
	if ours, err = s.main.ClaimFire(ctx, name, fire, s.replica); err != nil || !ours {
		return Run{}, false, err
	}
	run, err = s.runFire(ctx, w, fire)
	return run, true, err
}

// runFire runs a fire that is ours: whoever called may go away, the fire must not be lost with it.
func (s *Service) runFire(caller context.Context, w *worker, fire time.Time) (Run, error) {
	ctx := context.WithoutCancel(caller)
	now, err := s.main.Now(ctx)
	if err != nil {
		return Run{}, err
	}
	database, err := s.database(w, "", fire)
	if err != nil {
		return Run{}, err
	}
	run := Run{ID: newID(now), Worker: w.name, Database: databaseLabel(w, database), Trigger: repo.TriggerSchedule, RequestedBy: s.replica}
	if err = s.ready(ctx, w); err == nil {
		var x *execution
		if x, err = s.start(ctx, w, run, database); err == nil {
			return x.join(caller, false)
		}
	}
	switch reason := skipReason(err); {
	case errors.Is(err, ErrStopping):
		return Run{}, err
	case reason != "":
		run.State, run.Reason = repo.RunSkipped, reason
	default:
		run.State, run.Error = repo.RunFailed, publicText(err)
	}
	return s.recordStillborn(ctx, w, run, err)
}

// skipReason is why a tick starts no run, "" if the error is another one.
func skipReason(err error) string {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	var unconfigured *NotConfiguredError
	switch {
	case errors.As(err, &held):
		return reasonLeaseHeld
	case errors.As(err, &paused):
		return "WORKER_PAUSED: " + err.Error()
	case errors.As(err, &unconfigured):
		return "WORKER_NOT_CONFIGURED: " + err.Error()
	}
	return ""
}

// recordStillborn records, logs and counts a run that could not start.
func (s *Service) recordStillborn(ctx context.Context, w *worker, run Run, why error) (Run, error) {
	run.Replica = s.replica
	run, _, err := s.main.InsertRun(ctx, run, 0)
	if err != nil {
		return run, errors.Join(why, err)
	}
	log := s.logger.With("worker", run.Worker, "run_id", run.ID, "database", run.Database)
	if run.State == repo.RunSkipped {
		log.InfoContext(ctx, "run skipped", "reason", run.Reason, "why", why.Error())
	} else {
		log.ErrorContext(ctx, "run did not start", "error", why)
	}
	s.metrics.addRun(ctx, run, 0)
	if w.finished != nil {
		w.finished(ctx, run)
	}
	return run, nil
}
