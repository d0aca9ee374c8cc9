package run

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrFireTaken means that another server has claimed the scheduled run.
var ErrFireTaken = errors.New("another server has claimed the scheduled run")

// recordFire claims the fire of a run and records the run as running, or why it cannot start. A
// further run of a round has no fire to claim.
func (r *Runner) recordFire(ctx context.Context, x *Execution, s *starting) error {
	before, run, lease := time.Now(), x.Snapshot(), leaseInMain(r.Main, x)
	if s.refused != nil {
		setRefused(&run, s.refused)
		lease = ""
	}
	stored, err := r.claim(ctx, s.fire, run, x.ttl(), lease)
	switch {
	case err == nil:
	case errors.Is(err, dberr.ErrUnreachable):
		// The answer is lost: the run may still be on record.
		lost := err
		if err = retryUnreachable(ctx, func() (err error) {
			stored, err = r.Main.Runs.Run(ctx, run.ID)
			return err
		}); err != nil {
			return lost
		}
	case errors.Is(err, dberr.ErrNotFound):
		return ErrFireTaken
	case s.refused == nil:
		// Perhaps only the lease cannot be taken: then record the refusal.
		s.refused = err
		return r.recordFire(ctx, x, s)
	default:
		return err
	}
	x.recorded(stored, before)
	if s.refused != nil {
		x.endedAs(stored)
	}
	return nil
}

// claim records a run and acquires its lease for ttl, in one round trip. With a fire it also
// claims the fire. ErrNotFound means that another server has claimed it.
func (r *Runner) claim(
	ctx context.Context, f *Fire, run Run, ttl time.Duration, lease string,
) (Run, error) {
	if f.Claim == nil {
		stored, _, err := r.Main.Runs.InsertRun(ctx, run, ttl, lease)
		return stored, err
	}
	claim := *f.Claim
	if run.State == control.RunSkipped {
		claim.Reason = run.Reason
	}
	return r.Main.Runs.ClaimFire(ctx, claim, run, ttl, lease)
}

// workFire runs a run that is already on record.
func (r *Runner) workFire(ctx context.Context, x *Execution, began time.Time) {
	why := r.retryWhileMainUnreachable(x, func() error {
		return fault.RecoverPanic(func() error { return r.takeLease(ctx, x, began) })
	})
	if why == nil {
		r.Metrics.addFire(ctx, x.Snapshot(), control.FireRan)
		r.execute(ctx, x)
		return
	}
	defer r.Active.unregister(x)
	defer close(x.Done)
	run := x.Snapshot()
	setRefused(&run, why)
	err := r.retryWhileMainUnreachable(x, func() error {
		stored, err := r.Main.Runs.RefuseRun(ctx, run)
		if err == nil {
			x.endedAs(stored)
		}
		return err
	})
	if err != nil {
		x.Log.ErrorContext(ctx, "run not started, and its record not closed",
			"error", errors.Join(why, err))
		x.Span.End()
		return
	}
	r.reportRefused(ctx, x, why)
}

// retryWhileMainUnreachable repeats do while main does not answer, for up to half the time after
// which a run without a heartbeat counts as dead.
func (r *Runner) retryWhileMainUnreachable(x *Execution, do func() error) error {
	pace := Backoff{First: endWait, Most: 5 * time.Second}
	for began := time.Now(); ; {
		err := do()
		if !mainIsSilent(r.Main, err) || time.Since(began) > x.ttl()/2 {
			return err
		}
		wait, _ := pace.After(err)
		select {
		case <-r.Active.Stopping:
			return err
		case <-time.After(wait):
		}
	}
}

// mainIsSilent reports whether an error means that main does not answer.
func mainIsSilent(main *repo.Database, err error) bool {
	silent, _ := fault.UnreachableDatabase(err)
	return errors.Is(err, dberr.ErrUnreachable) && silent == main.Name
}

// endedAs sets the record of a run without a fire that could not start.
func (x *Execution) endedAs(stored Run) {
	x.Report(func(r *Run) {
		stored.Fire = r.Fire
		*r = stored
	})
}

// setRefused sets the end of a run that could not start.
func setRefused(run *Run, why error) {
	reason := fault.SkipReason(why)
	switch reason.Code {
	case "":
		run.State, run.Error = control.RunFailed, fault.PublicText(why)
		return
	case fault.ReasonLeaseHeld:
		run.Error = why.Error()
	}
	run.State, run.Reason = control.RunSkipped, reason.String()
}

// reportRefused logs, counts and traces a scheduled run that could not start, once.
func (r *Runner) reportRefused(ctx context.Context, x *Execution, why error) {
	run := x.Snapshot()
	// The reason on record has the pause's text, the log has its code.
	logged := run
	logged.Reason = fault.SkipReason(why).Code
	attrs := lineOf(logged, 0)
	if !run.Fire.IsZero() {
		attrs = append(attrs, "fire", run.Fire)
	}
	became := control.FireRan
	if run.State == control.RunSkipped {
		became = control.FireSkipped
		if _, paused := errors.AsType[*fault.WorkerPausedError](why); !paused {
			attrs = append(attrs, "why", why.Error())
		}
		x.Log.InfoContext(ctx, "run skipped", attrs...)
	} else {
		x.Log.ErrorContext(ctx, "run not started", append(attrs, "error", why)...)
	}
	r.Metrics.addRun(ctx, run, 0)
	r.Metrics.addFire(ctx, run, became)
	if x.Worker.Sli {
		r.Metrics.addSLI(ctx, run)
	}
	refusedRun(x.Span, why)
	x.cancel(why)
}

// addFire counts the fire of a run that has one.
func (m *Metrics) addFire(ctx context.Context, run Run, outcome string) {
	if !run.Fire.IsZero() {
		m.AddFires(ctx, run.Worker, outcome, 1)
	}
}
