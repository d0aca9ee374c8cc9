package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// execute is the one loop around every worker: steps 4 and 5 of the package comment.
func (r *Runner) execute(ctx context.Context, x *Execution) {
	defer r.unregister(x)
	defer r.Prune(context.WithoutCancel(ctx))
	defer close(x.Done)
	x.recordStart()
	close(x.begun)
	run := x.Snapshot()
	x.Log.InfoContext(ctx, "run started", "trigger", run.Trigger, "started_at", run.StartedAt)
	// 4. The worker works, while its leases and its record are kept alive.
	background, stopBackground := context.WithCancel(ctx)
	ended := r.keepAlive(background, x)
	working := repo.ReadBy(repo.WithWork(ctx, x.Worker.Name), x.reader)
	err := r.checkCandidates(working, x)
	if err == nil {
		close(x.planned)
		err = Guarded(func() error { return x.Worker.Work(working, x) })
	}
	stopBackground()
	<-ended
	if x.leases != nil {
		err = errors.Join(err, x.leases.close())
		if x.leases.expired() {
			x.cancel(repo.ErrLeaseLost)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	// 5. The leases are released, then the end is recorded and reported.
	if x.leases != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
		if err := x.leases.release(clean); err != nil {
			x.Log.WarnContext(ctx, "lease not released, it expires by itself", "error", err)
		}
		cancel()
	}
	x.ended = time.Now()
	run = x.Snapshot()
	x.keepCandidates(context.WithoutCancel(ctx), &run, err == nil)
	conclude(&run, err)
	r.record(context.WithoutCancel(ctx), x, run, err)
	r.Backlogs.forget(x.Worker, x.Database)
	x.cancel(nil)
}

// Guarded calls do; a panic is an error: it ends the run, not the server.
func Guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
	}()
	return do()
}

// report is the run's one wide log line, its span's end, its metrics.
func (r *Runner) report(ctx context.Context, x *Execution, run Run, err error) {
	x.recordEnd(ctx, x.Span, &run, err)
	duration := x.ended.Sub(x.started)
	attrs := lineOf(run, duration)
	if _, rested := x.throttle.state(); rested > 0 {
		attrs = append(attrs, "rested_seconds", rested.Seconds())
	}
	if from, _ := x.reader.Source(); from != "" {
		attrs = append(attrs, "read_from", from)
		x.Span.SetAttributes(attribute.String("maintenance.read_from", from))
	}
	x.Span.End(trace.WithTimestamp(x.ended))
	level := slog.LevelInfo
	switch {
	case run.State == repo.RunFailed:
		level = slog.LevelError
		attrs = append(attrs, "error", err)
	case run.State == repo.RunSkipped && run.Error != "":
		attrs = append(attrs, "why", run.Error)
	}
	x.Log.Log(ctx, level, runFinished, attrs...)
	r.Metrics.addRun(ctx, run, duration)
	if x.Worker.Sli {
		r.Metrics.addSLI(ctx, run)
	}
}

// runFinished is the message of the line that every run has at its end.
const runFinished = "run finished"

// lineOf is what that line says, besides which run it is.
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

// newID is a UUID version 7 of a time of main's clock, so that ids are in the order of the runs on whatever replica.
// The microseconds stand where RFC 9562 (6.2, method 3) wants them.
func newID(at time.Time) string {
	id := uuid.New()
	fraction := uint64(at.Nanosecond()%1_000_000) << 12 / 1_000_000 //nolint:gosec // nanoseconds are not negative
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|7<<12|fraction)
	return id.String()
}

// PanicError is a panic that was recovered from.
type PanicError struct {
	value   any
	callers []uintptr
}

// maxPanicStack is how deep the stack of a panic is kept.
const maxPanicStack = 64

// Panicked is the error of what recover has returned; the log of it has the stack. To be called by the deferred function.
func Panicked(value any) error {
	callers := make([]uintptr, maxPanicStack)
	// Without this function and the runtime's own.
	return &PanicError{value, callers[:runtime.Callers(2, callers)]}
}

// Error has what was thrown.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Callers are the program counters of the stack.
func (e *PanicError) Callers() []uintptr { return e.callers }
