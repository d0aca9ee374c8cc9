package run

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// execute is the loop around every worker: steps 4 and 5 of the package comment.
func (r *Runner) execute(ctx context.Context, x *Execution) {
	defer r.Active.unregister(x)
	defer r.History.Prune(context.WithoutCancel(ctx))
	defer close(x.Done)
	x.recordStart()
	close(x.leased)
	run := x.Snapshot()
	x.Log.InfoContext(ctx, "run started", "trigger", run.Trigger, "started_at", run.StartedAt)
	// 4. The worker runs, while its leases and its record are kept alive.
	background, stopBackground := context.WithCancel(ctx)
	ended := r.keepAlive(background, x)
	working := repo.ReadBy(spans.WithWork(ctx, x.Worker.Name), x.reader)
	err := r.checkCandidates(working, x)
	if err == nil {
		close(x.planned)
		err = fault.RecoverPanic(func() error { return x.Worker.Work(working, x) })
	}
	stopBackground()
	<-ended
	if x.leases != nil {
		err = errors.Join(err, x.leases.close())
		if x.leases.expired() {
			x.cancel(dberr.ErrLeaseLost)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	// 5. The leases are released, then the end is recorded and reported.
	if x.leases != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
		if err := retryUnreachable(clean, func() error { return x.reader.SavePosition(clean) }); err != nil {
			x.Log.WarnContext(ctx, "WAL position of last write not stored", "error", err)
		}
		if err := x.leases.release(clean); err != nil {
			x.Log.WarnContext(ctx, "lease not released", "error", err)
		}
		cancel()
	}
	x.ended = time.Now()
	run = x.Snapshot()
	x.keepCandidates(context.WithoutCancel(ctx), &run, err == nil)
	conclude(&run, err)
	if x.paused != nil {
		why := &fault.WorkerPausedError{Worker: run.Worker, Pause: *x.paused}
		note := reasons.Reason{Code: fault.ReasonPaused, Detail: why.Error()}.String()
		run.Reason = format.Join(run.Reason, note)
	}
	r.record(context.WithoutCancel(ctx), x, run, err)
	r.Backlogs.forget(x.Worker, x.Database)
	x.cancel(nil)
}

// report writes the run's one wide log line, ends its span and updates its metrics.
func (r *Runner) report(ctx context.Context, x *Execution, run Run, err error) {
	x.recordEnd(ctx, x.Span, &run, err)
	duration := x.ended.Sub(x.started)
	attrs := lineOf(run, duration)
	if _, paused := x.throttle.State(); paused > 0 {
		attrs = append(attrs, "rested_seconds", paused.Seconds())
	}
	if from, _ := x.reader.Source(); from != "" {
		attrs = append(attrs, "read_from", from)
		x.Span.SetAttributes(attribute.String("maintenance.read_from", from))
	}
	x.Span.End(trace.WithTimestamp(x.ended))
	level := slog.LevelInfo
	switch {
	case run.State == control.RunFailed:
		level = slog.LevelError
		attrs = append(attrs, "error", err)
	case run.State == control.RunSkipped && run.Error != "":
		attrs = append(attrs, "why", run.Error)
	}
	x.Log.Log(ctx, level, runFinished, attrs...)
	r.Metrics.addRun(ctx, run, duration)
	if x.Worker.Sli {
		r.Metrics.addSLI(ctx, run)
	}
}

// runFinished is the message of the log line at the end of every run.
const runFinished = "run finished"

// lineOf returns the attributes of that line, without those that name the run.
func lineOf(run Run, duration time.Duration) []any {
	attrs := []any{
		"trigger", run.Trigger, "outcome", run.State, "reason", run.Reason,
		"over_limit", run.OverLimit, "turbo_mode", run.TurboMode, "lease_epoch", run.LeaseEpoch,
		"duration_seconds", duration.Seconds(), "tables", run.Tables,
	}
	for key, n := range run.Counts {
		attrs = append(attrs, key, n)
	}
	return attrs
}

// newID returns a UUID version 7 of a time of main's clock, so that ids sort by the start of the
// runs on any replica. The microseconds are placed as in RFC 9562 (6.2, method 3).
func newID(at time.Time) string {
	id := uuid.New()
	fraction := uint64(at.Nanosecond()%1_000_000) << 12 / 1_000_000 //nolint:gosec // nanoseconds are not negative
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|7<<12|fraction)
	return id.String()
}

// conclude sets the state, reason and error of a run from the error of its work.
func conclude(run *Run, workErr error) {
	var skipped *fault.SkippedError
	var stopped fault.StopError
	_, hasFailed := errors.AsType[*fault.FailedError](workErr)
	switch {
	case errors.Is(workErr, dberr.ErrLeaseLost):
		run.State, run.Reason = control.RunFailed, fault.ReasonLeaseLost
		run.Error = "the lease was lost, but committed changes are kept and the next run resumes"
	case errors.As(workErr, &skipped):
		run.State, run.Reason, run.Error = control.RunSkipped, skipped.Reason, skipped.Text
	case errors.As(workErr, &stopped) && stopped.Early && !hasFailed:
		run.State, run.OverLimit = control.RunSucceeded, true
		if run.Reason == ReasonContinuation || run.Reason == reasonAfterLoad {
			run.Reason = ""
		}
		run.Reason = format.Join(stopped.Reason.String(), run.Reason)
	case errors.As(workErr, &stopped) && !stopped.Early:
		run.State, run.Reason, run.Error = control.RunCancelled, stopped.Reason.String(), stopped.Message
	case workErr != nil:
		run.State, run.Error = control.RunFailed, fault.PublicText(workErr)
		run.OverLimit = run.OverLimit || stopped.Early
		if reason := fault.ReasonOf(workErr); reason != reasons.KeyMismatch || run.Reason == "" {
			run.Reason = cmp.Or(reason, run.Reason)
		}
	default:
		run.State = control.RunSucceeded
	}
	run.Unsettled = !run.DryRun && (run.State == control.RunFailed || errors.Is(workErr, dberr.ErrUnreachable))
}
