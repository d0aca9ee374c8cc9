package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// Request asks for one run.
type Request struct {
	// Worker is required.
	Worker string
	// Database is for loose_foreign_keys_cleanup only; empty: the one whose turn it is this minute.
	Database string
	DryRun   bool
	// Async returns as soon as the run has started.
	Async bool
	// RequestID makes the request idempotent: used again it returns the first run. At most 128 characters.
	RequestID string
	// RequestedBy is recorded with the run.
	RequestedBy string
}

// The life of a run, for every worker and trigger: pause and configuration are checked, the run is recorded, its lease
// taken; the worker works while the lease is renewed and the record kept alive; lease back, record closed, waiters told.

// RunBatch runs a worker once. It waits for the run's end unless Async; a caller that goes away does not stop the run.
//
// Errors: [ErrUnknownWorker], [ErrUnknownDatabase], [ErrStopping], [ErrUnreachable], [*InvalidArgumentError],
// [*WorkerPausedError], [*NotConfiguredError], [*LeaseHeldError], [*RequestReusedError]. A run that failed is no error.
func (r *Runner) RunBatch(ctx context.Context, req Request) (Run, error) {
	w, err := r.validRequest(req)
	if err != nil {
		return Run{}, err
	}
	SetTexts(trace.SpanFromContext(ctx), "maintenance.worker", w.Name)
	for {
		run, err := r.runOnce(ctx, w, req)
		// The first run of the request id was refused after we had found it: then this is the first.
		if !errors.Is(err, errForgotten) {
			return run, err
		}
	}
}

func (r *Runner) runOnce(ctx context.Context, w *Worker, req Request) (Run, error) {
	if req.RequestID != "" {
		first, err := r.Main.RunByRequest(ctx, req.RequestID)
		if err == nil {
			return r.joinFirst(ctx, first, req)
		}
		if !errors.Is(err, repo.ErrNotFound) {
			return Run{}, err
		}
	}
	// Of a privilege that is missing the run itself says so, and what to grant.
	if err := r.Ready(ctx, w); err != nil && !errors.Is(err, repo.ErrForbidden) {
		return Run{}, err
	}
	now, err := r.Main.Now(ctx)
	if err != nil {
		return Run{}, err
	}
	database, err := r.Database(w, req.Database, now)
	if err != nil {
		return Run{}, err
	}
	x, err := r.start(ctx, w, Run{
		ID: NewID(now), Worker: w.Name, Database: DatabaseLabel(w, database),
		Trigger: repo.TriggerRequest, DryRun: req.DryRun, RequestID: req.RequestID, RequestedBy: req.RequestedBy,
	}, database)
	if known, is := errors.AsType[*knownRequestError](err); is {
		return r.joinFirst(ctx, known.run, req)
	}
	if err != nil {
		return Run{}, err
	}
	SetTexts(trace.SpanFromContext(ctx), "maintenance.run_id", x.Snapshot().ID)
	return x.Join(ctx, req.Async)
}

// joinFirst is the first run of a request id, if this request asks for the same.
func (r *Runner) joinFirst(ctx context.Context, first Run, req Request) (Run, error) {
	tellKnownRequest(ctx, first)
	if first.Worker != req.Worker || first.DryRun != req.DryRun || req.Database != "" && req.Database != first.Database {
		return Run{}, &RequestReusedError{First: first}
	}
	return r.join(ctx, first, req.Async)
}

// maxRequestID is the length of a request id in characters.
const maxRequestID = 128

// validRequest is the worker that a request is for, unless the request is wrong whatever the state of anything.
func (r *Runner) validRequest(req Request) (*Worker, error) {
	if len([]rune(req.RequestID)) > maxRequestID {
		return nil, &InvalidArgumentError{Field: "request_id", Description: fmt.Sprintf("at most %d characters", maxRequestID)}
	}
	w, err := r.Worker(req.Worker)
	if err == nil {
		_, err = r.Database(w, req.Database, time.Time{})
	}
	return w, err
}

// Ready says why a worker must not start: [*WorkerPausedError], [*NotConfiguredError].
func (r *Runner) Ready(ctx context.Context, w *Worker) error {
	pause, err := r.paused(ctx, w)
	if err != nil {
		return err
	}
	if pause != nil {
		return &WorkerPausedError{Worker: w.Name, Pause: *pause}
	}
	missing, err := w.Missing(ctx)
	if err == nil && missing != "" {
		err = &NotConfiguredError{Worker: w.Name, Missing: missing}
	}
	return err
}

// knownRequestError means that the request id has started a run before.
type knownRequestError struct{ run Run }

func (e *knownRequestError) Error() string { return "request id used before" }

// dryRunTTL is after how long without a sign of life a dry run, which has no lease, is taken for dead.
const dryRunTTL = 60 * time.Second

// start records a run, takes its lease, and sets it to work.
func (r *Runner) start(ctx context.Context, w *Worker, run Run, database *repo.Database) (*Execution, error) {
	flags, err := r.Main.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	ctx, x := r.NewExecution(ctx, w, run, database)
	if err := r.Launch(ctx, x, flags); err != nil {
		RefusedRun(x.Span, err)
		return nil, err
	}
	return x, nil
}

// NewExecution is a run that nothing has been done for yet, but that has its span: that is to be ended if it cannot start.
func (r *Runner) NewExecution(ctx context.Context, w *Worker, run Run, database *repo.Database) (context.Context, *Execution) {
	ctx, span := r.startRun(ctx, w, run, database)
	run.State, run.Replica, run.Counts = repo.RunRunning, r.Replica, map[string]int64{}
	for key := range w.Actions {
		run.Counts[key] = 0
	}
	if id := span.SpanContext().TraceID(); id.IsValid() {
		run.TraceID = id.String()
	}
	return ctx, &Execution{
		Database: database, DryRun: run.DryRun, Worker: w, metrics: r.Metrics, Tracer: r.Tracer, Span: span,
		Log:   r.Logger.With("worker", w.Name, "run_id", run.ID, "database", database.Name, "dry_run", run.DryRun),
		loads: r.Loads, Throttle: throttle{halted: make(chan struct{})}, run: run,
		started: time.Now(), begun: make(chan struct{}), Done: make(chan struct{}), counted: make(chan struct{}, 1),
	}
}

// Launch is start for a run that has its span.
func (r *Runner) Launch(ctx context.Context, x *Execution, flags map[string]bool) error {
	x.Flags = flags
	x.MaxRuntime, x.run.TurboMode = x.Worker.MaxRuntime(x.Database.Name, flags)
	ctx, x.cancel = context.WithCancelCause(ctx)
	if err := r.enlist(ctx, x, x.Snapshot()); err != nil {
		x.refuse(err)
		r.dismiss(x)
		return err
	}
	x.tellStarted()
	close(x.begun)
	go r.execute(ctx, x)
	return nil
}

// enlist writes the run's record and takes its lease. On an error nothing is left of either.
func (r *Runner) enlist(ctx context.Context, x *Execution, run Run) error {
	if err := r.admit(x); err != nil {
		return err
	}
	ttl := dryRunTTL
	if !x.DryRun {
		ttl = x.MaxRuntime + LeaseMargin
	}
	stored, created, err := r.insertRun(ctx, run, ttl)
	switch {
	case errors.Is(err, repo.ErrNotFound):
		err = errForgotten
	case err == nil && !created:
		err = &knownRequestError{stored}
	}
	if err != nil {
		return err
	}
	x.Report(func(r *Run) { r.StartedAt = stored.StartedAt })
	if x.DryRun {
		return nil
	}
	if err := r.takeLease(ctx, x, ttl); err != nil {
		if held, is := errors.AsType[*LeaseHeldError](err); is {
			// Without it the error says enough.
			held.RunID, _ = r.Main.RunAtWork(ctx, run, held.Lease.Holder)
		}
		return errors.Join(err, r.forgetRun(ctx, run))
	}
	return r.markBegun(ctx, x, run)
}

// markBegun puts the epoch on the record of a fire's run before it works: a run without one has done nothing, so that
// its fire can be given back (repo.GiveBackDeadFires).
func (r *Runner) markBegun(ctx context.Context, x *Execution, run Run) error {
	if run.Fire.IsZero() {
		return nil
	}
	err := r.beat(ctx, x)
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
	defer cancel()
	return errors.Join(err, x.leases.release(clean))
}

func (r *Runner) takeLease(ctx context.Context, x *Execution, ttl time.Duration) error {
	ctx, span := r.Tracer.Start(ctx, "maintenance.lease.acquire")
	defer span.End()
	x.leases = r.newLeaseSet(x, ttl)
	SetTexts(span, "maintenance.lease", x.leases.name)
	lease, err := x.leases.acquire(ctx, x.Database)
	if err == nil {
		err = x.leases.fence(ctx, x.Worker.Fences)
	}
	if err != nil {
		tellRefusedLease(span, err)
		return err
	}
	span.SetAttributes(attribute.String("maintenance.outcome", "taken"), attribute.Int64("maintenance.lease_epoch", lease.Epoch))
	x.Report(func(r *Run) { r.LeaseEpoch = lease.Epoch })
	x.reader = x.Database.Reader(lease.Name, lease.Epoch)
	return nil
}

// execute is the one loop around every worker.
func (r *Runner) execute(ctx context.Context, x *Execution) {
	defer r.dismiss(x)
	defer r.Prune(context.WithoutCancel(ctx))
	defer close(x.Done)
	run := x.Snapshot()
	x.Log.InfoContext(ctx, "run started", "trigger", run.Trigger, "started_at", run.StartedAt)
	background, stopBackground := context.WithCancel(ctx)
	ended := r.keepAlive(background, x)
	err := Guarded(func() error { return x.Worker.Work(repo.ReadBy(repo.WithWork(ctx, x.Worker.Name), x.reader), x) })
	if x.leases != nil {
		if open := x.leases.forgotten(); open != nil {
			err = errors.Join(err, open)
		}
	}
	stopBackground()
	<-ended
	if x.leases != nil && x.leases.expired() {
		x.cancel(repo.ErrLeaseLost)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if x.leases != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
		if err := tryAgain(clean, func() error { return x.reader.Remember(clean) }); err != nil {
			x.Log.WarnContext(ctx, "last write not remembered, the next run waits for the replica", "error", err)
		}
		if err := x.leases.release(clean); err != nil {
			x.Log.WarnContext(ctx, "lease not released, it expires by itself", "error", err)
		}
		cancel()
	}
	x.ended = time.Now()
	run = x.Snapshot()
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
	x.tell(ctx, x.Span, &run, err)
	duration := x.ended.Sub(x.started)
	attrs := LineOf(run, duration)
	if _, rested := x.Throttle.state(); rested > 0 {
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
	r.Metrics.AddRun(ctx, run, duration)
	if x.Worker.Sli {
		r.Metrics.AddSLI(ctx, run)
	}
}

// runFinished is the message of the line that every run has at its end.
const runFinished = "run finished"

// LineOf is what that line says, besides which run it is.
func LineOf(run Run, duration time.Duration) []any {
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

// NewID is a UUID version 7 of a time of main's clock, so that ids are in the order of the runs on whatever replica.
// The microseconds stand where RFC 9562 (6.2, method 3) wants them.
func NewID(at time.Time) string {
	id := uuid.New()
	fraction := uint64(at.Nanosecond()%1_000_000) << 12 / 1_000_000 //nolint:gosec // nanoseconds are not negative
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|7<<12|fraction)
	return id.String()
}
