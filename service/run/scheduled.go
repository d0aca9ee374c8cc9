package run

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo"
)

// Scheduled is a run that a worker's schedule wants.
type Scheduled struct {
	Worker   *Worker
	Database *repo.Database
	// At is main's clock, Flags are the feature flags of that moment.
	At    time.Time
	Flags map[string]bool
	// Fire is what the run is of, claimed as Claim says; zero and nil for the further runs of a
	// round, which have no fire of their own.
	Fire  time.Time
	Claim *repo.FireClaim
	// Refused is why it cannot start, nil if nothing is known to be against it.
	Refused error
}

// StartScheduled claims a fire and starts its run in one step, on one replica alone: nil and no
// error if another one has the fire. A run that cannot start is on record as SKIPPED, or as FAILED
// if something is broken. It does not wait for a lease outside of main, nor for the work.
//
// On error nothing is stored, unless main became unreachable meanwhile: then the run may be on
// record, and ends as LEASE_LOST.
func (r *Runner) StartScheduled(ctx context.Context, s Scheduled) (*Execution, error) {
	run := Run{
		ID: newID(s.At), Worker: s.Worker.Name, Database: DatabaseLabel(s.Worker, s.Database),
		Trigger: repo.TriggerSchedule, RequestedBy: r.Replica, Fire: s.Fire,
	}
	// Statements up to the claim have no spans: most replicas find that another one was first.
	traced, x := r.newExecution(context.WithoutCancel(ctx), s.Worker, run, s.Database, s.Flags)
	before := time.Now()
	err := r.register(x)
	if err == nil {
		err = r.recordScheduled(ctx, x, &s)
	}
	switch {
	case err != nil:
		x.Span.SetAttributes(attribute.Bool(withheldKey, true))
		x.Span.End()
		x.refuse(err)
		r.unregister(x)
		if s.Claim != nil && errors.Is(err, repo.ErrNotFound) {
			return nil, nil //nolint:nilnil // see above
		}
		return nil, err
	case s.Refused != nil:
		r.reportRefused(traced, x, s.Refused)
		close(x.Done)
		r.unregister(x)
	default:
		go r.workScheduled(traced, x, before)
	}
	return x, nil
}

// recordScheduled claims the fire and records its run: at work, or why it cannot start.
func (r *Runner) recordScheduled(ctx context.Context, x *Execution, s *Scheduled) error {
	before, run, lease := time.Now(), x.Snapshot(), r.leaseInMain(x)
	if s.Refused != nil {
		setRefused(&run, s.Refused)
		lease = ""
	}
	stored, err := r.insertScheduled(ctx, s, run, x.ttl(), lease)
	switch {
	case err == nil:
	case errors.Is(err, repo.ErrUnreachable):
		// The answer is lost: the run may be on record all the same.
		lost := err
		if err = retryUnreachable(ctx, func() (err error) {
			stored, err = r.Main.Run(ctx, run.ID)
			return err
		}); err != nil {
			return lost
		}
	case !errors.Is(err, repo.ErrNotFound) && s.Refused == nil:
		// Perhaps it is the lease that cannot be taken: then there is a record that says so.
		s.Refused = err
		return r.recordScheduled(ctx, x, s)
	default:
		return err
	}
	x.recorded(stored, before)
	if s.Refused != nil {
		x.endedAs(stored)
	}
	return nil
}

func (r *Runner) insertScheduled(
	ctx context.Context, s *Scheduled, run Run, ttl time.Duration, lease string,
) (Run, error) {
	if s.Claim == nil {
		stored, _, err := r.Main.InsertRun(ctx, run, ttl, lease)
		return stored, err
	}
	claim := *s.Claim
	if run.State == repo.RunSkipped {
		claim.Reason = run.Reason
	}
	return r.Main.ClaimFire(ctx, claim, run, ttl, lease)
}

// workScheduled takes what the run's record has not taken, and works.
func (r *Runner) workScheduled(ctx context.Context, x *Execution, began time.Time) {
	why := r.retryWhileMainUnreachable(x, func() error {
		return Guarded(func() error { return r.takeLease(ctx, x, began, nil) })
	})
	if why == nil {
		r.addFire(ctx, x.Snapshot(), repo.FireRan)
		r.execute(ctx, x)
		return
	}
	defer r.unregister(x)
	defer close(x.Done)
	run := x.Snapshot()
	setRefused(&run, why)
	err := r.retryWhileMainUnreachable(x, func() error {
		stored, err := r.Main.RefuseRun(ctx, run)
		if err == nil {
			x.endedAs(stored)
		}
		return err
	})
	if err != nil {
		x.Log.ErrorContext(ctx, "run did not start, others will close it as LEASE_LOST",
			"error", errors.Join(why, err))
		x.Span.End()
		return
	}
	r.reportRefused(ctx, x, why)
}

// retryWhileMainUnreachable does something again as long as main does not answer, up to half the time after which
// a run without a heartbeat is taken for dead.
func (r *Runner) retryWhileMainUnreachable(x *Execution, do func() error) error {
	pace := Backoff{First: endWait, Most: 5 * time.Second}
	for began := time.Now(); ; {
		err := do()
		silent, _ := UnreachableDatabase(err)
		if !errors.Is(err, repo.ErrUnreachable) || silent != r.Main.Name || time.Since(began) > x.ttl()/2 {
			return err
		}
		wait, _ := pace.After(err)
		select {
		case <-r.Stopping:
			return err
		case <-time.After(wait):
		}
	}
}

// endedAs is the record of a run that could not start, which has no fire.
func (x *Execution) endedAs(stored Run) {
	x.Report(func(r *Run) {
		stored.Fire = r.Fire
		*r = stored
	})
}

// setRefused sets the end of a run that could not start.
func setRefused(run *Run, why error) {
	reason := SkipReason(why)
	switch reason.Code {
	case "":
		run.State, run.Error = repo.RunFailed, PublicText(why)
		return
	case reasonLeaseHeld:
		run.Error = why.Error()
	}
	run.State, run.Reason = repo.RunSkipped, reason.String()
}

// reportRefused logs, counts and traces a run of the schedule that could not start, once.
func (r *Runner) reportRefused(ctx context.Context, x *Execution, why error) {
	run := x.Snapshot()
	// The reason on record has the words of whoever has paused the worker, the log has its code.
	logged := run
	logged.Reason = SkipReason(why).Code
	attrs := lineOf(logged, 0)
	if !run.Fire.IsZero() {
		attrs = append(attrs, "fire", run.Fire)
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
	r.Metrics.addRun(ctx, run, 0)
	r.addFire(ctx, run, outcome)
	if x.Worker.Sli {
		r.Metrics.addSLI(ctx, run)
	}
	refusedRun(x.Span, why)
	x.cancel(why)
}

// addFire counts the fire of a run that has one.
func (r *Runner) addFire(ctx context.Context, run Run, outcome string) {
	if !run.Fire.IsZero() {
		r.Metrics.AddFires(ctx, run.Worker, outcome, 1)
	}
}
