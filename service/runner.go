package service

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

// RunRequest asks for one run.
type RunRequest struct {
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
func (r *Runner) RunBatch(ctx context.Context, req RunRequest) (Run, error) {
	w, err := r.validRequest(req)
	if err != nil {
		return Run{}, err
	}
	setTexts(trace.SpanFromContext(ctx), "maintenance.worker", w.name)
	for {
		run, err := r.runOnce(ctx, w, req)
		// The first run of the request id was refused after we had found it: then this is the first.
		if !errors.Is(err, errForgotten) {
			return run, err
		}
	}
}

func (r *Runner) runOnce(ctx context.Context, w *worker, req RunRequest) (Run, error) {
	if req.RequestID != "" {
		first, err := r.main.RunByRequest(ctx, req.RequestID)
		if err == nil {
			return r.joinFirst(ctx, first, req)
		}
		if !errors.Is(err, repo.ErrNotFound) {
			return Run{}, err
		}
	}
	// Of a privilege that is missing the run itself says so, and what to grant.
	if err := r.ready(ctx, w); err != nil && !errors.Is(err, repo.ErrForbidden) {
		return Run{}, err
	}
	now, err := r.main.Now(ctx)
	if err != nil {
		return Run{}, err
	}
	database, err := r.database(w, req.Database, now)
	if err != nil {
		return Run{}, err
	}
	x, err := r.start(ctx, w, Run{
		ID: newID(now), Worker: w.name, Database: databaseLabel(w, database),
		Trigger: repo.TriggerRequest, DryRun: req.DryRun, RequestID: req.RequestID, RequestedBy: req.RequestedBy,
	}, database)
	if known, is := errors.AsType[*knownRequestError](err); is {
		return r.joinFirst(ctx, known.run, req)
	}
	if err != nil {
		return Run{}, err
	}
	setTexts(trace.SpanFromContext(ctx), "maintenance.run_id", x.snapshot().ID)
	return x.join(ctx, req.Async)
}

// joinFirst is the first run of a request id, if this request asks for the same.
func (r *Runner) joinFirst(ctx context.Context, first Run, req RunRequest) (Run, error) {
	tellKnownRequest(ctx, first)
	if first.Worker != req.Worker || first.DryRun != req.DryRun || req.Database != "" && req.Database != first.Database {
		return Run{}, &RequestReusedError{First: first}
	}
	return r.join(ctx, first, req.Async)
}

// maxRequestID is the length of a request id in characters.
const maxRequestID = 128

// validRequest is the worker that a request is for, unless the request is wrong whatever the state of anything.
func (r *Runner) validRequest(req RunRequest) (*worker, error) {
	if len([]rune(req.RequestID)) > maxRequestID {
		return nil, &InvalidArgumentError{Field: "request_id", Description: fmt.Sprintf("at most %d characters", maxRequestID)}
	}
	w, err := r.worker(req.Worker)
	if err == nil {
		_, err = r.database(w, req.Database, time.Time{})
	}
	return w, err
}

// ready says why a worker must not start: [*WorkerPausedError], [*NotConfiguredError].
func (r *Runner) ready(ctx context.Context, w *worker) error {
	pause, err := r.paused(ctx, w)
	if err != nil {
		return err
	}
	if pause != nil {
		return &WorkerPausedError{Worker: w.name, Pause: *pause}
	}
	missing, err := w.missing(ctx)
	if err == nil && missing != "" {
		err = &NotConfiguredError{Worker: w.name, Missing: missing}
	}
	return err
}

// knownRequestError means that the request id has started a run before.
type knownRequestError struct{ run Run }

func (e *knownRequestError) Error() string { return "request id used before" }

// dryRunTTL is after how long without a sign of life a dry run, which has no lease, is taken for dead.
const dryRunTTL = 60 * time.Second

// start records a run, takes its lease, and sets it to work.
func (r *Runner) start(ctx context.Context, w *worker, run Run, database *repo.Database) (*execution, error) {
	flags, err := r.main.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	ctx, x := r.newExecution(ctx, w, run, database)
	if err := r.launch(ctx, x, flags); err != nil {
		refusedRun(x.span, err)
		return nil, err
	}
	return x, nil
}

// newExecution is a run that nothing has been done for yet, but that has its span: that is to be ended if it cannot start.
func (r *Runner) newExecution(ctx context.Context, w *worker, run Run, database *repo.Database) (context.Context, *execution) {
	ctx, span := r.startRun(ctx, w, run, database)
	run.State, run.Replica, run.Counts = repo.RunRunning, r.replica, map[string]int64{}
	for key := range w.actions {
		run.Counts[key] = 0
	}
	if id := span.SpanContext().TraceID(); id.IsValid() {
		run.TraceID = id.String()
	}
	return ctx, &execution{
		Database: database, DryRun: run.DryRun, worker: w, metrics: r.metrics, tracer: r.tracer, span: span,
		Log:   r.logger.With("worker", w.name, "run_id", run.ID, "database", database.Name, "dry_run", run.DryRun),
		loads: r.loads, throttle: throttle{halted: make(chan struct{})}, run: run,
		started: time.Now(), begun: make(chan struct{}), done: make(chan struct{}), counted: make(chan struct{}, 1),
	}
}

// launch is start for a run that has its span.
func (r *Runner) launch(ctx context.Context, x *execution, flags map[string]bool) error {
	x.Flags = flags
	x.MaxRuntime, x.run.TurboMode = x.worker.maxRuntime(x.Database.Name, flags)
	ctx, x.cancel = context.WithCancelCause(ctx)
	if err := r.enlist(ctx, x, x.snapshot()); err != nil {
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
func (r *Runner) enlist(ctx context.Context, x *execution, run Run) error {
	if err := r.admit(x); err != nil {
		return err
	}
	ttl := dryRunTTL
	if !x.DryRun {
		ttl = x.MaxRuntime + leaseMargin
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
			held.RunID, _ = r.main.RunAtWork(ctx, run, held.Lease.Holder)
		}
		return errors.Join(err, r.forgetRun(ctx, run))
	}
	return r.markBegun(ctx, x, run)
}

// markBegun puts the epoch on the record of a fire's run before it works: a run without one has done nothing, so that
// its fire can be given back (repo.GiveBackDeadFires).
func (r *Runner) markBegun(ctx context.Context, x *execution, run Run) error {
	if run.Fire.IsZero() {
		return nil
	}
	err := r.beat(ctx, x)
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseMargin)
	defer cancel()
	return errors.Join(err, x.leases.release(clean))
}

func (r *Runner) takeLease(ctx context.Context, x *execution, ttl time.Duration) error {
	ctx, span := r.tracer.Start(ctx, "maintenance.lease.acquire")
	defer span.End()
	x.leases = r.newLeaseSet(x, ttl)
	setTexts(span, "maintenance.lease", x.leases.name)
	lease, err := x.leases.acquire(ctx, x.Database)
	if err == nil {
		err = x.leases.fence(ctx, x.worker.fences)
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
func (r *Runner) execute(ctx context.Context, x *execution) {
	defer r.dismiss(x)
	defer r.prune(context.WithoutCancel(ctx))
	defer close(x.done)
	run := x.snapshot()
	x.Log.InfoContext(ctx, "run started", "trigger", run.Trigger, "started_at", run.StartedAt)
	background, stopBackground := context.WithCancel(ctx)
	ended := r.keepAlive(background, x)
	err := guarded(func() error { return x.worker.work(repo.ReadBy(repo.WithWork(ctx, x.worker.name), x.reader), x) })
	stopBackground()
	<-ended
	if x.leases != nil && x.leases.expired() {
		x.cancel(repo.ErrLeaseLost)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if x.leases != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseMargin)
		if err := tryAgain(clean, func() error { return x.reader.Remember(clean) }); err != nil {
			x.Log.WarnContext(ctx, "last write not remembered, the next run waits for the replica", "error", err)
		}
		if err := x.leases.release(clean); err != nil {
			x.Log.WarnContext(ctx, "lease not released, it expires by itself", "error", err)
		}
		cancel()
	}
	x.ended = time.Now()
	run = x.snapshot()
	conclude(&run, err)
	r.record(context.WithoutCancel(ctx), x, run, err)
	r.backlogs.forget(x.worker, x.Database)
	x.cancel(nil)
}

// guarded calls do; a panic is an error: it ends the run, not the server.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
	}()
	return do()
}

// report is the run's one wide log line, its span's end, its metrics.
func (r *Runner) report(ctx context.Context, x *execution, run Run, err error) {
	x.tell(ctx, x.span, &run, err)
	duration := x.ended.Sub(x.started)
	attrs := runLine(run, duration)
	if _, rested := x.throttle.state(); rested > 0 {
		attrs = append(attrs, "rested_seconds", rested.Seconds())
	}
	if from, _ := x.reader.Source(); from != "" {
		attrs = append(attrs, "read_from", from)
		x.span.SetAttributes(attribute.String("maintenance.read_from", from))
	}
	x.span.End(trace.WithTimestamp(x.ended))
	level := slog.LevelInfo
	switch {
	case run.State == repo.RunFailed:
		level = slog.LevelError
		attrs = append(attrs, "error", err)
	case run.State == repo.RunSkipped && run.Error != "":
		attrs = append(attrs, "why", run.Error)
	}
	x.Log.Log(ctx, level, runFinished, attrs...)
	r.metrics.addRun(ctx, run, duration)
	if x.worker.sli {
		r.metrics.addSLI(ctx, run)
	}
}

// runFinished is the message of the line that every run has at its end.
const runFinished = "run finished"

// runLine is what that line says, besides which run it is.
func runLine(run Run, duration time.Duration) []any {
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
