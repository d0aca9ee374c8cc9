package schedule

import (
	"context"
	"errors"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// start claims the due fire and starts its run, on one replica alone, and then the runs of its
// round.
func (t *workerTick) start(ctx context.Context, due dueFires) error {
	until := due.until
	if due.reason == "" {
		until = due.fire
	}
	var first run.Run
	err := fault.RecoverPanic(func() (err error) {
		first, err = t.runner.RunBatch(ctx, run.Request{
			Worker: t.worker.Name, Database: firstDue(ctx, t.worker), Async: true,
			Fire: &run.Fire{Time: due.fire, Claim: t.step(until, due.reason)},
		})
		return err
	})
	switch {
	case errors.Is(err, run.ErrFireTaken):
		return nil
	case err != nil:
		return err
	case due.reason != "":
		t.runner.Logger.InfoContext(ctx, "catch-up run started", "worker", t.worker.Name, "fire", due.fire,
			"reason", due.reason, "late_seconds", t.now.Sub(due.fire).Seconds())
	}
	if t.worker.Due != nil {
		t.runner.Active.Go(func() { t.finishRound(ctx, first) })
	}
	return nil
}

// firstDue returns the first database with due work. It returns "" if none has any, or if the
// worker has no rounds. Then the run uses the database of the fire's minute, so that every fire has
// its run. All databases together have run.DueTimeout to answer.
func firstDue(ctx context.Context, w *run.Worker) string {
	if w.Due == nil {
		return ""
	}
	asking, cancel := context.WithTimeoutCause(ctx, run.DueTimeout, dberr.ErrUnreachable)
	defer cancel()
	for _, d := range w.Databases {
		if w.Due(asking, d) {
			return d.Name
		}
	}
	return ""
}

// finishRound runs the remaining databases, one after another, after the fire's own run. After an
// error the next fire runs the others.
func (t *workerTick) finishRound(ctx context.Context, first run.Run) {
	err := fault.RecoverPanic(func() error { return t.workRound(ctx, first) })
	if err != nil && !errors.Is(err, fault.ErrStopping) {
		t.runner.Logger.WarnContext(ctx, "remaining databases postponed to next tick",
			"worker", t.worker.Name, "error", err)
	}
}

// workRound: a run that fails, is cancelled or finds its lease held does not keep the others from
// starting. A pause, or the end of this process, does.
func (t *workerTick) workRound(ctx context.Context, first run.Run) error {
	if _, err := t.runner.Join(ctx, first, false); err != nil {
		return err
	}
	all := t.worker.Databases
	at := slices.IndexFunc(all, func(d *repo.Database) bool { return d.Name == first.Database })
	for _, d := range all[at+1:] {
		if t.runner.Active.IsStopping() {
			return nil
		}
		if !t.worker.Due(ctx, d) {
			continue
		}
		_, err := t.runner.RunBatch(ctx, run.Request{
			Worker: t.worker.Name, Database: d.Name, Fire: &run.Fire{},
		})
		if _, paused := errors.AsType[*fault.WorkerPausedError](err); paused {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
