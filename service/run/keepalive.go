package run

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

const (
	// heartbeat is how often a run records that it is alive, and checks whether to stop.
	heartbeat = time.Second
	// countsDelay is how soon counts are recorded. If the process dies, only the record knows what
	// its batches have committed.
	countsDelay = 250 * time.Millisecond
	// heartbeatTimeout is how long a run on main may have no successful heartbeat: it could not be
	// paused meanwhile.
	heartbeatTimeout = 15 * time.Second
)

// keepAlive renews the run's leases and record until ctx ends. The channel closes when both stop.
func (r *Runner) keepAlive(ctx context.Context, x *Execution) <-chan struct{} {
	// A span for every heartbeat would bury the useful spans of the trace.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(ctx))
	var wait sync.WaitGroup
	if x.leases != nil {
		wait.Go(func() { x.leases.renewLoop(ctx) })
	}
	wait.Go(func() { r.heartbeats(ctx, x) })
	ended := make(chan struct{})
	go func() {
		wait.Wait()
		close(ended)
	}()
	return ended
}

// heartbeats saves the progress every second, and sooner after a count. While main does not answer,
// a run on another database continues: its lease decides, not its record. A run on main ends after
// heartbeatTimeout, since no pause or cancel could reach it.
func (r *Runner) heartbeats(ctx context.Context, x *Execution) {
	pace, heard := Backoff{First: heartbeat, Most: 5 * heartbeat}, time.Now()
	for {
		sleep(ctx, countsDelay, nil)
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
			x.Log.InfoContext(ctx, "progress saved after retries")
		}
		if err == nil {
			sleep(ctx, heartbeat-countsDelay, x.counted)
		} else {
			sleep(ctx, max(wait, heartbeat)-countsDelay, nil)
		}
	}
}

// sleep waits for a duration, or until it is woken.
func sleep(ctx context.Context, wait time.Duration, woken <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-woken:
	case <-time.After(wait):
	}
}

// heartbeat saves the progress, with what slows the run down as its current reason. It stops the
// run if a cancel or pause asks for that.
func (r *Runner) heartbeat(ctx context.Context, x *Execution) error {
	run := x.Snapshot()
	if slow := x.throttle.Reason(); slow != "" {
		run.Reason = reasons.Reason{Code: fault.ReasonThrottled, Detail: slow}.String()
	}
	stop, err := r.Main.Runs.SaveProgress(ctx, run)
	switch {
	case errors.Is(err, dberr.ErrNotFound):
		x.cancel(dberr.ErrLeaseLost)
		return nil
	case err != nil:
		return err
	case stop.Cancelled:
		x.RequestStop(cancelled(stop.Text))
	case stop.Paused && !x.DryRun:
		x.RequestStop(fault.StopError{Reason: reasons.Reason{Code: "PAUSED"}, Message: pausedBy(ctx, r.Main, x.Worker)})
	}
	return nil
}

// pausedBy returns who paused a worker and why, or "" if that cannot be read.
func pausedBy(ctx context.Context, main *repo.Database, w *Worker) string {
	state, err := main.Runs.StartState(ctx, w.Name)
	if err != nil || state.Pause == nil {
		return ""
	}
	return (&fault.WorkerPausedError{Worker: w.Name, Pause: *state.Pause}).Error()
}

// runEnd is a run that has ended.
type runEnd struct {
	run Run
	// closed: another process closed its record as abandoned. This end corrects it.
	closed bool
	// err is the error of the run's work.
	err error
}

// record writes the end of the run, then shows it to its waiters and reports it. If main does not
// answer, it retries in the background. The run's lease is released by then, and its caller gets
// the record as this process knows it.
func (r *Runner) record(ctx context.Context, x *Execution, run Run, why error) {
	stored, closed, err := r.Main.Runs.FinishRun(ctx, run)
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
		x.Log.WarnContext(ctx, "final run state not saved, retrying",
			"outcome", run.State, "error", err)
		r.Active.background.Go(func() { r.recordLater(ctx, x, e) })
	}
}

// reportEnd reports a run's end unless it may still be recorded: until then another process may
// close and report it. The process that closes a run's record reports its end, so that this happens
// once. recordErr is why the end could not be recorded.
func (r *Runner) reportEnd(ctx context.Context, x *Execution, e runEnd, recordErr error) (done bool) {
	switch {
	case recordErr == nil && e.closed:
		settle(ctx, r, x, &e.run)
		reportLateEnd(ctx, x, e.run, e.err)
		return true
	case recordErr == nil:
		settle(ctx, r, x, &e.run)
	case errors.Is(recordErr, dberr.ErrNotFound):
	case isPermanent(recordErr):
		x.Log.ErrorContext(ctx, notRecorded, "error", recordErr)
	default:
		return false
	}
	r.report(ctx, x, e.run, e.err)
	return true
}

// neverRecorded is logged for a run whose process stops before main has recorded its end.
const neverRecorded = "final run state not saved at shutdown"

// notRecorded is logged for a run whose end main rejects.
const notRecorded = "final run state rejected by main"

// isPermanent reports whether a statement would fail in the same way again.
func isPermanent(err error) bool {
	refused, ok := errors.AsType[*dberr.Error](err)
	return ok && !errors.Is(err, dberr.ErrUnreachable) && (refused.Class() == dberr.ClassData || refused.Class() == dberr.ClassSchema)
}

// recordLater retries while main does not answer. No runs start meanwhile, so these are few. The
// last try is made when the process stops. Then other processes close and report unrecorded ends as
// abandoned. Perhaps one already did, and the answer to this correction was lost.
func (r *Runner) recordLater(ctx context.Context, x *Execution, e runEnd) {
	pace := Backoff{First: time.Second, Most: 5 * time.Second}
	wait, _ := pace.After(dberr.ErrUnreachable)
	for last := false; !last; {
		select {
		case <-r.Active.Stopping:
			last = true
		case <-time.After(wait):
		}
		_, found, err := r.Main.Runs.FinishRun(ctx, e.run)
		if e.closed && errors.Is(err, dberr.ErrNotFound) {
			err = nil
		}
		e.closed = e.closed || found && !errors.Is(err, dberr.ErrNotFound)
		if err == nil {
			x.Log.InfoContext(ctx, "final run state saved")
		}
		if r.reportEnd(ctx, x, e, err) {
			return
		}
		wait, _ = pace.After(err)
	}
	x.Log.ErrorContext(ctx, neverRecorded, x.endLine(e.run, e.err)...)
}

// CloseAbandoned closes the runs of processes that died. The process that closes a run logs, counts
// and traces it once: the run's own process cannot.
func (r *Runner) CloseAbandoned(ctx context.Context) error {
	runs, err := r.Main.Runs.CloseAbandonedRuns(ctx)
	for _, run := range runs {
		if w, unknown := r.Worker(run.Worker); unknown == nil && !run.DryRun {
			recount(ctx, r, w, &run)
		}
		recordAbandoned(ctx, r, run)
	}
	return err
}

// recount completes the counts of a run whose end was not clean. They were saved up to a quarter of
// a second before its process died, and miss a commit whose answer was lost. A database that does
// not answer leaves them as they are, until a later run settles them.
func recount(ctx context.Context, r *Runner, w *Worker, run *Run) (complete bool) {
	// The caller may be gone, but the run is closed only once.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
	defer cancel()
	var found []control.RunCount
	var err error
	for _, d := range r.Databases {
		some, failed := d.Runs.RunCounts(ctx, run.ID)
		found, err = append(found, some...), errors.Join(err, failed)
	}
	if run.Recount(found, func(count string) bool { return w.Actions[count] != "" }) {
		err = errors.Join(err, r.Main.Runs.SaveRecount(ctx, *run))
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "run counts not completed", "run_id", run.ID, "error", err)
	}
	return err == nil
}

// settle completes the counts of a run whose end is on record. A clean end deletes its journal, and
// settles the runs before it that had no clean end: they can no longer commit anything.
func settle(ctx context.Context, r *Runner, x *Execution, run *Run) {
	counted := false
	for _, n := range run.Counts {
		counted = counted || n > 0
	}
	switch {
	case run.Unsettled:
		recount(ctx, r, x.Worker, run)
		x.Report(func(r *Run) { *r = *run })
		return
	case run.DryRun || !counted && !run.EarlierUnsettled:
		return
	case x.Database != r.Main:
		_ = x.Database.Runs.ForgetRunCounts(ctx, run.ID)
	}
	// The next run settles what fails here.
	unsettled, _ := r.Main.Runs.UnsettledRuns(ctx, *run)
	for _, before := range unsettled {
		if !recount(ctx, r, x.Worker, &before) {
			continue
		}
		for _, d := range r.Databases {
			_ = d.Runs.ForgetRunCounts(ctx, before.ID)
		}
	}
}

// recordAbandoned replaces report for a run whose process died.
func recordAbandoned(ctx context.Context, r *Runner, run Run) {
	ctx, span := abandonedSpan(ctx, r, run)
	took := run.FinishedAt.Sub(run.StartedAt)
	span.End(trace.WithTimestamp(run.FinishedAt))
	log := r.Logger.With("worker", run.Worker, "run_id", run.ID, "database", databaseOrMain(run), "dry_run", run.DryRun)
	log.Log(ctx, slog.LevelError, runFinished, append(lineOf(run, took), "died_on", run.Replica, "error", errors.New(run.Error))...)
	r.Metrics.addRun(ctx, run, took)
	// A run of a worker that only other versions know requires nothing more.
	if w, err := r.Worker(run.Worker); err == nil && w.Sli {
		r.Metrics.addSLI(ctx, run)
	}
}

// reportLateEnd replaces report for a run that another process has already closed and reported. Its
// own process had only stalled, or could not reach main. Its record has the real end now, but is
// not counted again.
func reportLateEnd(ctx context.Context, x *Execution, run Run, err error) {
	spans.Withhold(x.Span)
	x.Span.End()
	x.Log.WarnContext(ctx, "run closed by another server, record corrected", x.endLine(run, err)...)
}

// endLine returns the log attributes of an end without a line of its own.
func (x *Execution) endLine(run Run, err error) []any {
	attrs := lineOf(run, x.ended.Sub(x.started))
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	return attrs
}

// abandonedSpan starts the span of a run whose process died, in its trace, with the place and id of
// the lost one. It is a root: the caller's span is no longer known.
func abandonedSpan(ctx context.Context, r *Runner, run Run) (context.Context, trace.Span) {
	var of trace.SpanContextConfig
	of.TraceID, _ = trace.TraceIDFromHex(run.TraceID) // none is on record: a trace of its own
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(of))
	ctx, span := startRunSpan(ctx, r, run, trace.WithTimestamp(run.StartedAt))
	span.SetAttributes(attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch))
	spans.SetTexts(span, "maintenance.outcome", run.State, "maintenance.reason", run.Reason,
		"maintenance.stopped_because", run.Error, "error.type", run.Reason)
	span.SetAttributes(countAttributes(run.Counts)...)
	span.SetStatus(codes.Error, run.Error)
	return ctx, span
}

// databaseOrMain returns the database of a run for the log, metrics and traces: main for a worker
// without a turn by database.
func databaseOrMain(run Run) string {
	if run.Database == "" {
		return MainDatabase
	}
	return run.Database
}
