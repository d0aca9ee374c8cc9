package schedule

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// startInBackground starts the run of a fire that is ours, which may take a while, or gives it back.
func (d *Dispatcher) startInBackground(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	if !d.runner.Go(func() { d.runFire(ctx, w, fire, id) }) {
		d.giveBack(ctx, w, fire, id)
	}
}

// runFire starts the run of a fire that is ours, and logs what comes of it.
func (d *Dispatcher) runFire(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	log := d.runner.Logger.With("worker", w.Name, "fire", fire, "run_id", id)
	var x *run.Execution
	var record run.Run
	err := run.Guarded(func() (err error) {
		x, record, err = d.StartFire(ctx, w, fire, id)
		return err
	})
	switch {
	case err == nil:
		err := run.Guarded(func() error { return d.goRound(ctx, w, record.Database, x) })
		if err != nil && !errors.Is(err, run.ErrStopping) {
			log.WarnContext(ctx, "databases that are left of the fire wait for the next one", "error", err)
		}
	case errors.Is(err, run.ErrStopping):
		d.giveBack(ctx, w, fire, id)
	case errors.Is(err, repo.ErrFireLost):
		log.WarnContext(ctx, "fire taken over by another replica: its run did not start in time here")
	default:
		log.ErrorContext(ctx, "run of the fire did not start, the fire is given back for others to take over", "error", err)
		d.giveBack(ctx, w, fire, id)
	}
}

// StartFire starts the run of a fire that is ours: x, or if it cannot start, run is on record as SKIPPED with the reason,
// or as FAILED if something is broken. An error means that neither is, or that nobody knows: nothing has worked, and the
// fire is to be given back.
func (d *Dispatcher) StartFire(ctx context.Context, w *run.Worker, fire time.Time, id string) (x *run.Execution, record run.Run, err error) {
	database, err := d.Turn(ctx, w, fire)
	if err != nil {
		return nil, run.Run{}, err
	}
	return d.startScheduled(ctx, w, run.Run{ID: id, Fire: fire}, database)
}

// startScheduled is StartFire for a database; also for a run that has no fire of its own.
func (d *Dispatcher) startScheduled(ctx context.Context, w *run.Worker, record run.Run, database *repo.Database) (*run.Execution, run.Run, error) {
	record.Worker, record.Database = w.Name, run.DatabaseLabel(w, database)
	record.Trigger, record.RequestedBy = repo.TriggerSchedule, d.runner.Replica
	traced, begun := d.runner.NewExecution(ctx, w, record, database)
	record = begun.Snapshot()
	err := d.startBegun(ctx, traced, begun)
	if err == nil {
		d.addFire(ctx, record, repo.FireRan)
		return begun, record, nil
	}
	defer run.RefusedRun(begun.Span, err)
	silent, _ := run.UnreachableDatabase(err)
	switch reason := run.SkipReason(err); {
	case errors.Is(err, run.ErrStopping), errors.Is(err, repo.ErrFireLost):
		return nil, run.Run{}, err
	case errors.Is(err, run.ErrUnreachable) && silent == d.runner.Main.Name:
		return nil, run.Run{}, err
	case reason != "":
		record.State, record.Reason = repo.RunSkipped, reason
		if reason == run.ReasonLeaseHeld {
			record.Error = err.Error()
		}
	default:
		record.State, record.Error = repo.RunFailed, run.PublicText(err)
	}
	record, err = d.recordStartFailure(traced, begun, record, err)
	return nil, record, err
}

// startBegun starts the run of a fire unless something is against it. traced is the context of the run's span.
func (d *Dispatcher) startBegun(ctx, traced context.Context, x *run.Execution) error {
	if err := d.runner.Ready(ctx, x.Worker); err != nil {
		return err
	}
	flags, err := d.runner.Main.FeatureFlags(ctx)
	if err != nil {
		return err
	}
	return d.runner.Launch(traced, x, flags)
}

// recordStartFailure records, logs and counts the run of a fire that could not start.
func (d *Dispatcher) recordStartFailure(ctx context.Context, x *run.Execution, record run.Run, why error) (run.Run, error) {
	var err error
	if record.Fire.IsZero() {
		record, _, err = d.runner.Main.InsertRun(ctx, record, 0)
	} else {
		record, err = d.runner.Main.EndFire(ctx, record)
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
	d.runner.Metrics.AddRun(ctx, record, 0)
	d.addFire(ctx, x.Snapshot(), outcome)
	if x.Worker.Sli {
		d.runner.Metrics.AddSLI(ctx, record)
	}
	return record, nil
}

// addFire counts the fire of a run that has one.
func (d *Dispatcher) addFire(ctx context.Context, record run.Run, outcome string) {
	if !record.Fire.IsZero() {
		d.runner.Metrics.AddFires(ctx, record.Worker, outcome, 1)
	}
}

// giveBack lets another replica have a fire whose run does not start here. It tries as long as main does not answer; the
// last try is made when the process stops. If that fails too, whoever takes the run for dead gives its fire back.
func (d *Dispatcher) giveBack(ctx context.Context, w *run.Worker, fire time.Time, id string) {
	pace := run.Backoff{First: time.Second, Most: 5 * time.Second}
	for {
		err := d.runner.Main.GiveBackFire(ctx, w.Name, fire, id)
		if err == nil {
			return
		}
		if !errors.Is(err, run.ErrUnreachable) || d.runner.IsStopping() {
			d.runner.Logger.WarnContext(ctx, "fire not given back, others take it over when it is abandoned", "worker", w.Name, "fire", fire, "error", err)
			return
		}
		wait, _ := pace.After(err)
		select {
		case <-d.runner.Stopping:
		case <-time.After(wait):
		}
	}
}

// Turn is the database that a fire's own run works on: that of its minute, or in a round the first that has something
// due. A round that finds none works the one of the minute, so that every fire has its run. The fire is claimed, so all
// databases together have duePatience to answer.
func (d *Dispatcher) Turn(ctx context.Context, w *run.Worker, fire time.Time) (*repo.Database, error) {
	if w.Due != nil {
		asking, cancel := context.WithTimeoutCause(ctx, run.DuePatience, repo.ErrUnreachable)
		defer cancel()
		for _, database := range w.Databases {
			if w.Due(asking, database) {
				return database, nil
			}
		}
	}
	return d.runner.Database(w, "", fire)
}

// goRound works the databases behind the one of the first run, x, which is nil if that could not
// start. A run that fails, is cancelled or finds its lease held does not keep the others from
// starting; a pause, or the end of this process, does. An error ends the round: what is left is for
// the next fire.
func (d *Dispatcher) goRound(ctx context.Context, w *run.Worker, database string, x *run.Execution) error {
	if w.Due == nil {
		return nil
	}
	at := slices.IndexFunc(w.Databases, func(d *repo.Database) bool { return d.Name == database })
	for _, next := range w.Databases[at+1:] {
		if x != nil {
			<-x.Done
		}
		if d.runner.IsStopping() {
			return nil
		}
		if err := d.runner.Ready(ctx, w); err != nil {
			if _, paused := errors.AsType[*run.WorkerPausedError](err); paused {
				return nil
			}
			return err
		}
		if !w.Due(ctx, next) {
			continue
		}
		now, err := d.runner.Main.Now(ctx)
		if err != nil {
			return err
		}
		if x, _, err = d.startScheduled(ctx, w, run.Run{ID: run.NewID(now)}, next); err != nil {
			return err
		}
	}
	return nil
}
