package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	spansrepo "github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// Spans of runs, batches and jobs record what was done, why it stopped and what it queued, so that
// the trace alone is enough. They have no row values other than ids, and no texts of the server.

// startRunSpan starts the span of a run.
func startRunSpan(ctx context.Context, r *Runner, run Run, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := r.Tracer.Start(spans.WithID(ctx, runSpanID(run.ID)), "maintenance.run", append(options, trace.WithAttributes(
		attribute.String("maintenance.worker", run.Worker), attribute.String("maintenance.run_id", run.ID),
		attribute.String("maintenance.database", databaseOrMain(run)), attribute.String("maintenance.trigger", run.Trigger),
		attribute.Bool("maintenance.dry_run", run.DryRun)))...)
	spans.SetTexts(span, "maintenance.requested_by", run.RequestedBy)
	if !run.Fire.IsZero() {
		span.SetAttributes(attribute.String("maintenance.fire_time", run.Fire.UTC().Format(time.RFC3339)))
	}
	// Child spans have ids of their own.
	return spans.WithID(ctx, trace.SpanID{}), span
}

// recordStart records the lease of a run on its span, and how late the run started after its fire.
func (x *Execution) recordStart() {
	run := x.Snapshot()
	x.Span.SetAttributes(attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch))
	if !run.Fire.IsZero() {
		x.Span.SetAttributes(attribute.Float64("maintenance.lateness_seconds", run.StartedAt.Sub(run.Fire).Seconds()))
	}
}

// Batch calls do within the span of a batch. An error fails the batch, unless the run must stop.
func (x *Execution) Batch(ctx context.Context, do func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, span := x.Tracer.Start(ctx, "maintenance.batch", trace.WithAttributes(attributes...))
	defer span.End()
	if !span.IsRecording() {
		return do(ctx)
	}
	ctx = spansrepo.WithBatch(ctx)
	err := do(ctx)
	switch reason := spans.StoppedBy(ctx, err); {
	case err == nil:
	case reason != "":
		spans.RecordOutcome(ctx, spans.OutcomeStopped, reason)
	default:
		spans.RecordFailure(ctx, err)
	}
	if !spansrepo.EndBatch(ctx) {
		spans.Withhold(span)
	}
	span.SetAttributes(spansrepo.Attributes(ctx)...)
	return err
}

// countAttributes returns the counts that are not 0.
func countAttributes(counts map[string]int64) (out []attribute.KeyValue) {
	for key, n := range counts {
		if n != 0 {
			out = append(out, attribute.Int64("maintenance.count."+key, n))
		}
	}
	return out
}

// recordEnd records the end of the run on a span.
func (x *Execution) recordEnd(ctx context.Context, span trace.Span, run *Run, err error) {
	if !span.IsRecording() {
		return
	}
	spans.SetTexts(span, "maintenance.outcome", run.State, "maintenance.reason", run.Reason, "maintenance.stopped_because", x.whyStopped(run, err))
	span.SetAttributes(attribute.Bool("maintenance.over_limit", run.OverLimit))
	span.SetAttributes(countAttributes(run.Counts)...)
	if run.TurboMode {
		span.SetAttributes(attribute.Bool("maintenance.turbo_mode", true))
	}
	if x.leases != nil {
		span.SetAttributes(attribute.StringSlice("maintenance.databases", x.leases.databases()))
	}
	if tables := tableTexts(run.Tables); len(tables) > 0 {
		span.SetAttributes(attribute.StringSlice("maintenance.tables", tables))
	}
	span.SetAttributes(spansrepo.Attributes(ctx)...)
	// Batches pause in parallel.
	if _, paused := x.throttle.State(); paused > 0 {
		span.SetAttributes(attribute.Float64(pausedKey, paused.Seconds()))
	}
	// The error of a stopped run has the operator's name and text: only the record may have those.
	if run.State == control.RunFailed {
		text := fault.RedactedText(run.Error, err)
		spans.SetTexts(span, "maintenance.error", text)
		spans.MarkFailed(span, err)
		span.SetStatus(codes.Error, text)
	}
}

// tableTexts returns the tables with most changes first, as texts for a span: the first 20 and the
// number of others.
func tableTexts(tables []jobqueue.TableCount) (out []string) {
	tables = slices.Clone(tables)
	slices.SortStableFunc(tables, func(a, b jobqueue.TableCount) int { return int(b.Deleted + b.Updated - a.Deleted - a.Updated) })
	for _, t := range tables {
		out = append(out, fmt.Sprintf("%s: %d deleted, %d updated", t.Table, t.Deleted, t.Updated))
	}
	return spansrepo.Longest(out)
}

// MaxBatchLinks is the maximum number of links of a batch's span, maxRunLinks that of a run's.
const MaxBatchLinks, maxRunLinks = 16, 64

// Link links a batch to the spans that caused the work, in W3C's form, each once. It also links the
// run, in case that batch is not sampled. what describes them.
func (x *Execution) Link(ctx context.Context, what string, parents []string) {
	batch := trace.SpanFromContext(ctx)
	if !batch.IsRecording() {
		return
	}
	linked := 0
	for _, parent := range parents {
		span := spans.Of(ctx, parent)
		if !span.IsValid() || span.SpanID() == x.Span.SpanContext().SpanID() {
			continue
		}
		link := trace.Link{SpanContext: span, Attributes: []attribute.KeyValue{attribute.String("maintenance.link", what)}}
		if linked++; linked <= MaxBatchLinks && batch.SpanContext().SpanID() != x.Span.SpanContext().SpanID() {
			batch.AddLink(link)
		}
		x.mu.Lock()
		fresh := !x.linked[parent] && len(x.linked) < maxRunLinks
		if fresh {
			if x.linked == nil {
				x.linked = map[string]bool{}
			}
			x.linked[parent] = true
		}
		x.mu.Unlock()
		if fresh {
			x.Span.AddLink(link)
		}
	}
}

// Ends on spans. Only a failure has the status Error. A stopped run, or a postponed one whose time
// is over, has its outcome and reason.

// whyStopped describes the end of a run. Failures of single items are its error instead.
func (x *Execution) whyStopped(run *Run, err error) string {
	_, items := errors.AsType[*fault.ItemsFailedError](err)
	stopped, _ := errors.AsType[fault.StopError](err)
	switch {
	case run.State == control.RunFailed && !items:
		return fault.RedactedText(run.Error, err)
	case run.State == control.RunCancelled:
		return "stopped by request: " + run.Reason
	case run.State == control.RunSkipped:
		return strings.TrimSuffix("skipped: "+run.Reason+": "+run.Error, ": ")
	case stopped.Early:
		return stopped.Reason.String() + "; more work remains"
	case x.limit != "":
		return x.limit + "; more work remains"
	}
	return AllSeen
}

// AllSeen is the reason of a run that nothing stopped.
const AllSeen = "all due work was processed"

// refusedRun ends the span of a run that could not start. Another run in progress is no failure.
func refusedRun(span trace.Span, err error) {
	defer span.End()
	var known *knownRequestError
	switch reason := fault.SkipReason(err).Code; {
	case reason != "":
		why := err.Error()
		if paused, ok := errors.AsType[*fault.WorkerPausedError](err); ok {
			// The operator's name and reason do not belong in a trace.
			why = paused.Subject() + " paused"
		}
		spans.SetTexts(span, "maintenance.outcome", control.RunSkipped, "maintenance.reason", reason, "maintenance.stopped_because", why)
	case errors.As(err, &known):
		spans.SetTexts(span, "maintenance.outcome", control.RunSkipped, "maintenance.reason", reasonRequestKnown,
			"maintenance.stopped_because", "the request id has already started run "+known.run.ID)
	default:
		spans.SetTexts(span, "maintenance.outcome", control.RunFailed)
		spans.MarkFailed(span, err)
	}
}

// linkKnownRequest links the span of a call to the run that its request id has already started.
func linkKnownRequest(ctx context.Context, first Run) {
	span := trace.SpanFromContext(ctx)
	spans.SetTexts(span, "maintenance.run_id", first.ID, "maintenance.reason", reasonRequestKnown)
	if id, err := trace.TraceIDFromHex(first.TraceID); err == nil {
		span.AddLink(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: runSpanID(first.ID)})})
	}
}

// recordRefusedLease records on its span why a lease was refused. Another holder is no failure.
func recordRefusedLease(span trace.Span, err error) {
	held, ok := errors.AsType[*fault.LeaseHeldError](err)
	if !ok {
		spans.MarkFailed(span, err)
		return
	}
	spans.SetTexts(span, "maintenance.outcome", "held", "maintenance.lease", held.Lease.Name, "maintenance.holder", held.Lease.Holder)
	span.SetAttributes(attribute.Int64("maintenance.lease_epoch", held.Lease.Epoch))
}

// pausedKey is the attribute of the time that a run or batch has paused.
const pausedKey = "maintenance.rested_seconds"

// recordPause records on the spans of a batch and its run the reason of a pause, once each, and
// adds up its duration.
func (x *Execution) recordPause(ctx context.Context, load string, paused time.Duration, first bool) {
	event := trace.WithAttributes(attribute.String("maintenance.load", load))
	if first {
		x.Span.AddEvent("throttled", event)
	}
	span := trace.SpanFromContext(ctx)
	if spansrepo.AddSeconds(ctx, pausedKey, paused) && span.SpanContext().SpanID() != x.Span.SpanContext().SpanID() {
		span.AddEvent("throttled", event)
	}
}

// runSpanID returns the id of the span of the run with this id.
func runSpanID(run string) (span trace.SpanID) {
	if id, err := uuid.Parse(run); err == nil {
		copy(span[:], id[8:])
	}
	return span
}
