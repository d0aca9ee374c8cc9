package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// heartbeat is how often a run records that it is alive, and reads whether it shall stop.
	heartbeat = time.Second
	// countsDelay is how soon counts are on record: if the process dies, nobody else knows what its
	// batches have committed.
	countsDelay = 250 * time.Millisecond
	// heartbeatTimeout is how long a run on main may go without a heartbeat that succeeds: it could
	// not be paused meanwhile.
	heartbeatTimeout = 15 * time.Second
)

// keepAlive renews the run's leases and its record until ctx ends. The channel closes when both have stopped.
func (r *Runner) keepAlive(ctx context.Context, x *Execution) <-chan struct{} {
	// A span for every heartbeat would bury what the run's trace is for.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(ctx))
	var wait sync.WaitGroup
	if x.leases != nil {
		wait.Go(func() { x.leases.keep(ctx) })
	}
	wait.Go(func() { r.heartbeats(ctx, x) })
	ended := make(chan struct{})
	go func() {
		wait.Wait()
		close(ended)
	}()
	return ended
}

// heartbeats saves the progress every second, and sooner when something was counted. While main does
// not answer, a run on another database goes on: its lease decides, not its record. A run on main
// ends after heartbeatTimeout, since nobody could stop it.
func (r *Runner) heartbeats(ctx context.Context, x *Execution) {
	pace, heard := Backoff{First: heartbeat, Most: 5 * heartbeat}, time.Now()
	for {
		err := r.heartbeat(ctx, x)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			heard = time.Now()
		}
		if !x.DryRun && x.Database == r.Main && time.Since(heard) > heartbeatTimeout {
			x.RequestStop(errNoHeartbeat)
		}
		wait, changed := pace.After(err)
		switch {
		case changed && err != nil:
			x.Log.WarnContext(ctx, "progress not saved, retrying", "error", err)
		case changed:
			x.Log.InfoContext(ctx, "progress is saved again")
		}
		rest(ctx, countsDelay, nil)
		if err == nil {
			rest(ctx, heartbeat-countsDelay, x.counted)
		} else {
			rest(ctx, max(wait, heartbeat)-countsDelay, nil)
		}
	}
}

// rest waits for so long, or until something wakes it.
func rest(ctx context.Context, wait time.Duration, woken <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-woken:
	case <-time.After(wait):
	}
}

// heartbeat saves the progress, with what slows the run down as its reason for now, and stops the run
// if somebody has asked for that.
func (r *Runner) heartbeat(ctx context.Context, x *Execution) error {
	run := x.Snapshot()
	if slow := x.throttle.words(); slow != "" {
		run.Reason = repo.Reason{Code: ReasonThrottled, Detail: slow}.String()
	}
	stop, err := r.Main.SaveProgress(ctx, run)
	switch {
	case errors.Is(err, repo.ErrNotFound):
		x.cancel(repo.ErrLeaseLost)
		return nil
	case err != nil:
		return err
	case stop.Cancelled:
		x.RequestStop(cancelled(stop.Words))
	case stop.Paused:
		x.RequestStop(StopError{Reason: repo.Reason{Code: "PAUSED"}, Message: r.pausedBy(ctx, x.Worker)})
	}
	return nil
}

// pausedBy says whose the pause of a worker is and why, "" if nobody knows.
func (r *Runner) pausedBy(ctx context.Context, w *Worker) string {
	state, err := r.Main.StartState(ctx, w.Name)
	if err != nil || state.Pause == nil {
		return ""
	}
	return (&WorkerPausedError{Worker: w.Name, Pause: *state.Pause}).Error()
}

// runEnd is a run that has ended.
type runEnd struct {
	run Run
	// closed: others have closed its record, as abandoned, which this end corrects.
	closed bool
	// err is what the run's work returned.
	err error
}

// record writes the end of the run, and only then shows it to those who wait, and reports it. If
// main does not answer, that is tried again in the background: the run's lease is free by then, and
// its caller gets the record as we know it.
func (r *Runner) record(ctx context.Context, x *Execution, run Run, why error) {
	stored, closed, err := r.Main.FinishRun(ctx, run)
	if err != nil {
		stored = run
		stored.FinishedAt = run.StartedAt.Add(x.ended.Sub(x.started))
	}
	stored.Unsettled = run.Unsettled
	if err != nil || !stored.Unsettled { // else settle completes its counts first
		x.Report(func(r *Run) { *r = stored })
	}
	e := runEnd{stored, closed, why}
	if !r.reportEnd(ctx, x, e, err) {
		x.Log.WarnContext(ctx, "end of the run not recorded, retrying",
			"outcome", run.State, "error", err)
		r.background.Go(func() { r.recordLater(ctx, x, e) })
	}
}

// reportEnd reports a run's end unless that may still come on record: until then others may close
// and report it. Whoever closes the record of a run reports its end, so that this is done once.
// recordErr is why it could not be recorded.
func (r *Runner) reportEnd(ctx context.Context, x *Execution, e runEnd, recordErr error) (done bool) {
	switch {
	case recordErr == nil && e.closed:
		r.settle(ctx, x, &e.run)
		r.correct(ctx, x, e.run, e.err)
		return true
	case recordErr == nil:
		r.settle(ctx, x, &e.run)
	case errors.Is(recordErr, repo.ErrNotFound):
	case isPermanent(recordErr):
		x.Log.ErrorContext(ctx, notRecorded, "error", recordErr)
	default:
		return false
	}
	r.report(ctx, x, e.run, e.err)
	return true
}

// neverRecorded is logged of a run whose process stops before main has taken its end.
const neverRecorded = "end of the run not recorded, others will close it as LEASE_LOST"

// notRecorded is logged of a run whose end main refuses to take.
const notRecorded = "end of the run not recorded, it will show as LEASE_LOST: look at maintenance.runs, its triggers and its rights"

// isPermanent says that a statement would fail in the same way if it were tried again.
func isPermanent(err error) bool {
	refused, ok := errors.AsType[*repo.Error](err)
	return ok && !errors.Is(err, repo.ErrUnreachable) && (refused.Class() == repo.ClassData || refused.Class() == repo.ClassSchema)
}

// recordLater tries as long as main does not answer: no runs start meanwhile, so that these are few.
// The last try is made when the process stops; what is not recorded then is closed and reported by
// others as abandoned. That may have happened before, and the answer to what corrects the record
// have been lost.
func (r *Runner) recordLater(ctx context.Context, x *Execution, e runEnd) {
	pace := Backoff{First: time.Second, Most: 5 * time.Second}
	wait, _ := pace.After(repo.ErrUnreachable)
	for last := false; !last; {
		select {
		case <-r.Stopping:
			last = true
		case <-time.After(wait):
		}
		_, found, err := r.Main.FinishRun(ctx, e.run)
		if e.closed && errors.Is(err, repo.ErrNotFound) {
			err = nil
		}
		e.closed = e.closed || found && !errors.Is(err, repo.ErrNotFound)
		if err == nil {
			x.Log.InfoContext(ctx, "end of the run recorded")
		}
		if r.reportEnd(ctx, x, e, err) {
			return
		}
		wait, _ = pace.After(err)
	}
	x.Log.ErrorContext(ctx, neverRecorded, x.endLine(e.run, e.err)...)
}
