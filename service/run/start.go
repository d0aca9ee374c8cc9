package run

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	spansrepo "github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// Request requests one run.
type Request struct {
	// Worker is required.
	Worker string
	// Database is for loose_foreign_keys_cleanup only. Empty means the one whose turn it is this
	// minute.
	Database string
	DryRun   bool
	// Async returns as soon as the run has started.
	Async bool
	// RequestID, up to 128 characters, makes the request idempotent: it returns the first run.
	RequestID string
	// ExpectedDigest is that of a dry run's candidates: with others the run does nothing. "": any.
	ExpectedDigest string
	// RequestedBy is recorded with the run. For a scheduled run it is this replica's name.
	RequestedBy string
	// Fire is the tick of the schedule that starts the run, nil for every other run.
	Fire *Fire
	// Reason is why a run resumes work that an earlier run left, "" for every other run.
	Reason string
}

// Fire is the tick of the schedule that starts a run. If that run cannot start, its record has the
// reason, as SKIPPED, or as FAILED if something is broken. RunBatch with Async does not wait for
// its lease.
type Fire struct {
	// Time is the moment of the fire. The run uses the database whose turn it was then.
	Time time.Time
	// Claim claims the fire. It is nil, and Time zero, for the further runs of a round.
	Claim *control.LedgerStep
}

// RunBatch runs a worker once. It waits for the run's end unless Async is set. The run continues if
// its caller goes away.
//
// Every worker and trigger uses it. It checks pause and configuration, records the run, claims its
// fire and takes its lease. The worker runs while the lease is renewed and the record kept alive.
// Then it releases the lease, closes the record and notifies the waiters.
//
// Errors: [fault.ErrUnknownWorker], [fault.ErrUnknownDatabase], [fault.ErrStopping],
// [fault.ErrUnreachable], [*fault.InvalidArgumentError], [*fault.WorkerPausedError],
// [*fault.NotConfiguredError], [*fault.LeaseHeldError], [*fault.RefusedError], and with a claim
// [ErrFireTaken]. A failed run is no error. An error leaves nothing on record, unless main became
// unreachable after a claim: that run ends as LEASE_LOST.
func (r *Runner) RunBatch(ctx context.Context, req Request) (Run, error) {
	w, err := r.validRequest(req)
	if err != nil {
		return Run{}, err
	}
	spans.SetTexts(trace.SpanFromContext(ctx), "maintenance.worker", w.Name)
	for {
		run, err := r.runOnce(ctx, w, req)
		// The run of this request id could not start and left no record: retry it as a new one.
		if !errors.Is(err, errForgotten) {
			return orPlanChanged(run, err)
		}
	}
}

func (r *Runner) runOnce(ctx context.Context, w *Worker, req Request) (Run, error) {
	if req.RequestID != "" {
		first, err := r.Main.Runs.RunByRequest(ctx, req.RequestID)
		if err == nil {
			return joinFirst(ctx, r, first, req)
		}
		if !errors.Is(err, dberr.ErrNotFound) {
			return Run{}, err
		}
	}
	state, err := ready(ctx, r, w, req.DryRun)
	turn, refused := state.Now, error(nil)
	switch {
	case mainIsSilent(r.Main, err):
		return Run{}, err
	case req.Fire != nil && req.Fire.Claim != nil:
		turn, refused = req.Fire.Time, err
	case err != nil && (req.trigger() == control.TriggerSchedule || !errors.Is(err, dberr.ErrForbidden)):
		// A requested run reports a missing privilege itself, with the grant.
		return Run{}, err
	}
	database, err := r.Database(w, req.Database, turn)
	if err != nil {
		return Run{}, err
	}
	if req.trigger() == control.TriggerSchedule {
		req.RequestedBy = r.Replica
	}
	x, err := r.start(ctx, Run{
		ID: newID(cmp.Or(state.Now, turn)), Worker: w.Name, Database: DatabaseLabel(w, database),
		Trigger: req.trigger(), DryRun: req.DryRun, Reason: req.Reason, RequestID: req.RequestID,
		RequestedBy: req.RequestedBy,
	}, starting{
		worker: w, database: database, flags: state.Flags, paused: state.Pause,
		expected: req.ExpectedDigest,
		fire:     req.Fire, refused: refused,
	})
	if known, ok := errors.AsType[*knownRequestError](err); ok {
		return joinFirst(ctx, r, known.run, req)
	}
	if err != nil {
		return Run{}, err
	}
	if req.Fire != nil && req.Async {
		return x.Snapshot(), nil
	}
	run, err := x.join(ctx, req.Async)
	spans.SetTexts(trace.SpanFromContext(ctx), "maintenance.run_id", run.ID)
	return run, err
}

// Continue requests a run that resumes work of an earlier run. It does not wait for its end.
func Continue(w *Worker, reason string) Request {
	return Request{Worker: w.Name, Async: true, Reason: reason}
}

func (req Request) trigger() string {
	if req.Fire != nil || req.Reason != "" {
		return control.TriggerSchedule
	}
	return control.TriggerRequest
}

// joinFirst returns the first run of a request id, if this request asks for the same.
func joinFirst(ctx context.Context, r *Runner, first Run, req Request) (Run, error) {
	linkKnownRequest(ctx, first)
	if first.Worker != req.Worker || first.DryRun != req.DryRun || req.Database != "" && req.Database != first.Database {
		return Run{}, requestReused(first)
	}
	return r.Join(ctx, first, req.Async)
}

// maxRequestID is the maximum length of a request id in characters.
const maxRequestID = 128

// validRequest returns the worker of a request, or an error if the request is wrong in any state.
func (r *Runner) validRequest(req Request) (*Worker, error) {
	if len([]rune(req.RequestID)) > maxRequestID {
		return nil, &fault.InvalidArgumentError{Field: "request_id", Description: fmt.Sprintf("must have at most "+
			"%d characters", maxRequestID)}
	}
	w, err := r.Worker(req.Worker)
	if err == nil {
		_, err = r.Database(w, req.Database, time.Time{})
	}
	if err == nil {
		err = validDigest(w, req)
	}
	return w, err
}

// ready reads what main knows of a worker, and returns why it must not start now. That is
// [*fault.WorkerPausedError] unless it is a dry run, [*fault.NotConfiguredError], or an error of a
// database.
func ready(ctx context.Context, r *Runner, w *Worker, dry bool) (control.StartState, error) {
	state, err := r.Main.Runs.StartState(ctx, w.Name)
	if err != nil {
		return state, err
	}
	if state.Pause != nil && !dry {
		return state, &fault.WorkerPausedError{Worker: w.Name, Pause: *state.Pause}
	}
	missing, err := w.Missing(ctx)
	if err == nil && missing != "" {
		err = &fault.NotConfiguredError{Worker: w.Name, Missing: missing}
	}
	return state, err
}

// knownRequestError means that the request id has already started a run.
type knownRequestError struct{ run Run }

func (e *knownRequestError) Error() string { return "the request id has already started a run" }

// dryRunTTL is how long a dry run, which has no lease, may miss heartbeats until it counts as dead.
const dryRunTTL = 60 * time.Second

// starting holds the inputs of a starting run.
type starting struct {
	worker   *Worker
	database *repo.Database
	flags    map[string]bool
	// paused is the pause that a dry run ignores. nil means none.
	paused *control.Pause
	// expected is the digest that its candidates must have. "" means any.
	expected string
	// fire is the run's fire, or nil. refused is why that run cannot start. nil means none is known.
	fire    *Fire
	refused error
}

// start records a run and starts it. On an error nothing remains of it.
func (r *Runner) start(ctx context.Context, run Run, s starting) (*Execution, error) {
	traced, x := r.newExecution(ctx, run, s)
	began := time.Now()
	err := r.Active.register(x)
	if err == nil && s.fire == nil {
		err = r.insertRun(traced, x)
	} else if err == nil {
		// Statements up to the claim have no spans: on most replicas another one was first.
		err = r.recordFire(context.WithoutCancel(ctx), x, &s)
	}
	switch {
	case err != nil:
		if s.fire != nil {
			spans.Withhold(x.Span)
		}
		r.refuse(x, err)
		return nil, err
	case s.refused != nil:
		r.reportRefused(traced, x, s.refused)
		close(x.Done)
		r.Active.unregister(x)
	case s.fire != nil:
		go r.workFire(traced, x, began)
	default:
		go r.work(traced, x, began)
	}
	return x, nil
}

// refuse ends a run that is not on record. Its waiters get the reason.
func (r *Runner) refuse(x *Execution, why error) {
	x.refuse(why)
	r.Active.unregister(x)
	refusedRun(x.Span, why)
}

// work takes the lease that the record has not taken, and runs the worker.
func (r *Runner) work(ctx context.Context, x *Execution, began time.Time) {
	err := fault.RecoverPanic(func() error { return r.takeLease(ctx, x, began) })
	if err == nil {
		r.execute(ctx, x)
		return
	}
	r.refuse(x, errors.Join(err, r.Main.Runs.DeleteRun(ctx, x.Snapshot().ID)))
}

// newExecution returns a run that only has its span. If the run cannot start, the caller ends the
// span.
func (r *Runner) newExecution(ctx context.Context, run Run, s starting) (context.Context, *Execution) {
	w, database := s.worker, s.database
	if s.fire != nil {
		run.Fire = s.fire.Time
	}
	// The run outlives its caller, and keeps the caller's trace.
	ctx, span := startRunSpan(context.WithoutCancel(ctx), r, run)
	ctx = spansrepo.WithSpans(ctx)
	run.State, run.Replica, run.Counts = control.RunRunning, r.Replica, map[string]int64{}
	for key := range w.Actions {
		run.Counts[key] = 0
	}
	if id := span.SpanContext().TraceID(); id.IsValid() {
		run.TraceID = id.String()
	}
	x := &Execution{
		Database: database, DryRun: run.DryRun, Worker: w, Flags: s.flags, paused: s.paused,
		expected: s.expected,
		metrics:  r.Metrics, Tracer: r.Tracer, Span: span, loads: r.Loads,
		Log:     runLog(r.Logger, run, database),
		started: time.Now(), found: candidates{digest: sha256.New()},
		leased: make(chan struct{}), planned: make(chan struct{}), Done: make(chan struct{}),
		counted: make(chan struct{}, 1),
	}
	x.MaxRuntime, run.TurboMode = w.MaxRuntime(database.Name, s.flags)
	x.run = run
	ctx, x.cancel = context.WithCancelCause(ctx)
	x.stopRequested, x.requestStop = context.WithCancelCause(context.WithoutCancel(ctx))
	x.throttle.StopRequested = x.stopRequested.Done()
	if !x.DryRun {
		x.leases = r.newLeaseSet(x, x.ttl())
	}
	return ctx, x
}

// ttl is the duration of a run's lease, and how long its process may have no heartbeat before it
// counts as dead.
func (x *Execution) ttl() time.Duration {
	if x.DryRun {
		return dryRunTTL
	}
	return x.MaxRuntime + LeaseMargin
}

// leaseInMain returns the lease's name if the lease is in main, where the statement that records
// the run takes it, else "".
func leaseInMain(main *repo.Database, x *Execution) string {
	if x.DryRun || x.Database != main {
		return ""
	}
	return x.leases.name
}

// insertRun records a run, and takes its lease if that is in main and free.
func (r *Runner) insertRun(ctx context.Context, x *Execution) error {
	before := time.Now()
	stored, created, err := r.Main.Runs.InsertRun(ctx, x.Snapshot(), x.ttl(), leaseInMain(r.Main, x))
	switch {
	case errors.Is(err, dberr.ErrNotFound):
		return errForgotten
	case err != nil:
		return err
	case !created:
		return &knownRequestError{stored}
	}
	x.recorded(stored, before)
	return nil
}

// recorded marks the run as recorded. before is the time before that request.
func (x *Execution) recorded(stored Run, before time.Time) {
	x.Report(func(r *Run) { r.StartedAt = stored.StartedAt })
	if stored.LeaseEpoch > 0 {
		x.leases.acquired(x.Database, stored.LeaseEpoch, before)
	}
}

// takeLease takes the lease that the record has not taken, and the fence rows of the worker's other
// databases. A dry run has none. The lease's span starts at began.
//
// In main the record has taken the lease already, unless it is held: acquire then only returns it.
func (r *Runner) takeLease(ctx context.Context, x *Execution, began time.Time) error {
	if x.DryRun {
		return nil
	}
	ctx, span := r.Tracer.Start(ctx, "maintenance.lease.acquire", trace.WithTimestamp(began))
	defer span.End()
	spans.SetTexts(span, "maintenance.lease", x.leases.name)
	lease, err := x.leases.acquire(ctx, x.Database)
	if err == nil {
		err = x.leases.fence(ctx, x.Worker.Fences)
	}
	if err != nil {
		if held, ok := errors.AsType[*fault.LeaseHeldError](err); ok {
			// If this fails, the error without the run id is enough.
			held.RunID, _ = r.Main.Runs.RunningRun(ctx, x.Snapshot(), held.Lease.Holder)
		}
		recordRefusedLease(span, err)
		return err
	}
	span.SetAttributes(attribute.String("maintenance.outcome", "taken"),
		attribute.Int64("maintenance.lease_epoch", lease.Epoch))
	x.Report(func(r *Run) { r.LeaseEpoch = lease.Epoch })
	x.reader = x.Database.Reader(lease.Name, lease.Epoch)
	return nil
}

// requestReused returns the error that the request id belongs to a different run: another worker,
// another database, or a dry run.
func requestReused(first Run) error {
	what := first.Worker
	if first.Database != "" {
		what += " on " + first.Database
	}
	if first.DryRun {
		what += " (dry run)"
	}
	return &fault.RefusedError{
		Reason: "REQUEST_ID_REUSED",
		Text: fmt.Sprintf("this request_id has already started run %s of %s: choose a new request_id for each "+
			"request", first.ID, what),
		Metadata: map[string]string{
			"run_id": first.ID, "worker": first.Worker, "database": first.Database,
			"dry_run": strconv.FormatBool(first.DryRun),
		},
	}
}

// reasonRequestKnown: the request id has already started a run.
const reasonRequestKnown = "REQUEST_KNOWN"
