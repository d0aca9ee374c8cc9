package schedule

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// start claims the fire that is due and starts its run, on one replica alone, and then those of its
// round.
func (t *workerTick) start(ctx context.Context, due dueFires) error {
	until := due.until
	if due.reason == "" {
		until = due.fire
	}
	wanted := run.Scheduled{
		Worker: t.worker, At: t.now, Fire: due.fire,
		Claim: &repo.FireClaim{Step: t.step(until), Reason: due.reason},
	}
	var x *run.Execution
	err := run.Guarded(func() (err error) {
		x, err = t.startRun(ctx, wanted)
		return err
	})
	if err != nil || x == nil {
		return err
	}
	if due.reason != "" {
		t.runner.Logger.InfoContext(ctx, "fire caught up", "worker", t.worker.Name, "fire", due.fire,
			"reason", due.reason, "late_seconds", t.now.Sub(due.fire).Seconds())
	}
	if t.worker.Due != nil {
		t.runner.Go(func() { t.finishRound(ctx, x) })
	}
	return nil
}

// startRun starts a fire's own run, or records why it cannot start. Where main does not answer
// nothing is claimed.
func (t *workerTick) startRun(ctx context.Context, wanted run.Scheduled) (*run.Execution, error) {
	state, err := t.runner.Ready(ctx, t.worker)
	silent, _ := run.UnreachableDatabase(err)
	if errors.Is(err, run.ErrUnreachable) && silent == t.runner.Main.Name {
		return nil, err
	}
	wanted.Flags, wanted.Refused = state.Flags, err
	if wanted.Database, err = databaseOf(ctx, t.runner, t.worker, wanted.Fire); err != nil {
		return nil, err
	}
	return t.runner.StartScheduled(ctx, wanted)
}

// databaseOf is the database that a fire's own run works on: that of its minute, or in a round the
// first that has something due. A round that finds none works the one of the minute, so that every
// fire has its run. All databases together have run.DuePatience to answer.
func databaseOf(
	ctx context.Context, r *run.Runner, w *run.Worker, fire time.Time,
) (*repo.Database, error) {
	if w.Due != nil {
		asking, cancel := context.WithTimeoutCause(ctx, run.DuePatience, repo.ErrUnreachable)
		defer cancel()
		for _, d := range w.Databases {
			if w.Due(asking, d) {
				return d, nil
			}
		}
	}
	return r.Database(w, "", fire)
}

// finishRound starts the runs of the databases behind that of the fire's own run, one after the
// other. An error ends the round: what is left is for the next fire.
func (t *workerTick) finishRound(ctx context.Context, first *run.Execution) {
	err := run.Guarded(func() error { return t.workRound(ctx, first) })
	if err != nil && !errors.Is(err, run.ErrStopping) {
		t.runner.Logger.WarnContext(ctx, "remaining databases of this round are left to the next fire",
			"worker", t.worker.Name, "error", err)
	}
}

// workRound: a run that fails, is cancelled or finds its lease held does not keep the others from
// starting; a pause, or the end of this process, does.
func (t *workerTick) workRound(ctx context.Context, x *run.Execution) error {
	at := slices.Index(t.worker.Databases, x.Database)
	for _, d := range t.worker.Databases[at+1:] {
		<-x.Done
		if t.runner.IsStopping() {
			return nil
		}
		state, err := t.runner.Ready(ctx, t.worker)
		if _, paused := errors.AsType[*run.WorkerPausedError](err); paused {
			return nil
		}
		if err != nil {
			return err
		}
		if !t.worker.Due(ctx, d) {
			continue
		}
		x, err = t.runner.StartScheduled(ctx, run.Scheduled{
			Worker: t.worker, Database: d, At: state.Now, Flags: state.Flags,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
