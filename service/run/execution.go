package run

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// Execution is a run in progress: all that a worker needs from the runner.
type Execution struct {
	// Database of the run, Flags at its start, MaxRuntime as its time limit.
	Database   *repo.Database
	Flags      map[string]bool
	MaxRuntime time.Duration
	DryRun     bool
	Log        *slog.Logger

	Worker  *Worker
	metrics *Metrics
	Tracer  trace.Tracer
	Span    trace.Span
	leases  *leaseSet
	reader  *repo.Reader
	loads   *load.Loads
	// started and ended use the host's clock.
	started, ended time.Time
	cancel         context.CancelCauseFunc
	// stopRequested ends, with its reason, when the run must stop after its current statement.
	stopRequested context.Context //nolint:containedctx // a signal with a cause
	requestStop   context.CancelCauseFunc
	// leased closes when the lease is taken, planned when the candidates were found as expected, and
	// Done when the run has ended or was refused.
	leased, planned, Done chan struct{}
	// expected is the digest that its candidates must have. "" means any.
	expected string
	// paused is the pause that a dry run ignores. nil means none.
	paused *control.Pause
	// allowed has the expected targets with their actions, once they are found. nil means everything.
	allowed map[target]string
	// skipped counts the targets skipped for that reason.
	skipped atomic.Int64

	mu  sync.Mutex
	run Run
	// limit is what stopped the run before its work was done. "" means nothing.
	limit string
	// linked are the spans that the run's span is linked to.
	linked map[string]bool
	// refused is why the run could not start.
	refused error
	// found are the candidates of a dry run.
	found candidates
	// counted wakes the heartbeat when there are counts to save.
	counted chan struct{}

	throttle load.Throttle
}

// errNoHeartbeat: main is too busy for heartbeats, so no pause or cancel could stop the run.
var errNoHeartbeat = fault.StopError{Early: true, Reason: reasons.Reason{
	Code: fault.ReasonThrottled, Detail: "main has not accepted the run's heartbeats for " + heartbeatTimeout.String(),
}}

// cancelled stops a run for CancelRun. The message names the caller.
func cancelled(message string) fault.StopError {
	return fault.StopError{Reason: reasons.Reason{Code: "CANCELLED"}, Message: message}
}

// Now returns the start of the run by main's clock. It decides what is due.
func (x *Execution) Now() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.run.StartedAt
}

// elapsed returns how long the run has been running.
func (x *Execution) elapsed() time.Duration { return time.Since(x.started) }

// Left returns the time until the run's limit.
func (x *Execution) Left() time.Duration { return x.MaxRuntime - x.elapsed() }

// Stopped returns why the run must stop after its current statement, or nil.
func (x *Execution) Stopped() error { return context.Cause(x.stopRequested) }

// RequestStop makes the run stop after its current statement. The first reason counts.
func (x *Execution) RequestStop(why error) { x.requestStop(why) }

// refuse ends a run that could not start. Its waiters get the reason.
func (x *Execution) refuse(why error) {
	x.mu.Lock()
	x.refused = why
	x.mu.Unlock()
	x.cancel(why)
	close(x.Done)
}

// Count adds to one of the run's counts, and to the metric of rows.
func (x *Execution) Count(ctx context.Context, key string, n int64) {
	x.mu.Lock()
	x.run.Counts[key] += n
	x.mu.Unlock()
	if n != 0 {
		select {
		case x.counted <- struct{}{}:
		default:
		}
	}
	spans.AddCount(ctx, key, n)
	if action := x.Worker.Actions[key]; action != "" && n > 0 && !x.DryRun {
		x.metrics.AddRows(ctx, x.Worker.Name, x.Database.Name, action, n)
	}
}

// Changed adds to the run's table counts.
func (x *Execution) Changed(table string, deleted, updated int64) {
	if deleted == 0 && updated == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	i, found := slices.BinarySearchFunc(x.run.Tables, table, func(t jobqueue.TableCount, name string) int {
		return cmp.Compare(t.Table, name)
	})
	if !found {
		x.run.Tables = slices.Insert(x.run.Tables, i, jobqueue.TableCount{Table: table})
	}
	x.run.Tables[i].Deleted += deleted
	x.run.Tables[i].Updated += updated
}

// LogDone logs done, or in a dry run wouldBeDone.
func (x *Execution) LogDone(ctx context.Context, done, wouldBeDone string, attrs ...any) {
	if x.DryRun {
		done = wouldBeDone
	}
	x.Log.InfoContext(ctx, done, attrs...) //nolint:sloglint // one of two constants
}

// Report changes the run's record.
func (x *Execution) Report(change func(*Run)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.run)
}

// Limit records what stopped the run before its work was done. The reason in its record may say
// more, or something else.
func (x *Execution) Limit(what, reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.limit, x.run.OverLimit, x.run.Reason = what, true, reason
	x.found.partial = x.found.partial || what == DryRunOver
}

// DryRunOver is the limit, and reason, of dry runs of workers without a time limit of their own.
const DryRunOver = "the dry run timed out: the counts are partial"

// Snapshot returns a copy of the current record.
func (x *Execution) Snapshot() Run {
	x.mu.Lock()
	defer x.mu.Unlock()
	run := x.run
	run.Counts = maps.Clone(run.Counts)
	run.Tables = slices.Clone(run.Tables)
	run.Definitions = slices.Clone(run.Definitions)
	return run
}

// Origin returns a job, without arguments, that this run queues. It refers to the run, whose span
// is always in the trace.
func (x *Execution) Origin(ctx context.Context) jobqueue.Job {
	by := x.source()
	return jobqueue.Job{
		RunID: by.RunID, RequestedBy: by.RequestedBy,
		TraceParent: spans.TraceParent(trace.ContextWithSpan(ctx, x.Span)),
	}
}
