package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// What spans of runs, batches and jobs say: what was done, why it stopped, what it queued, so
// that the trace alone tells. Values of rows other than ids, and texts of the server's, are not in them.

// startRunSpan begins the span of a run.
func (r *Runner) startRunSpan(ctx context.Context, run Run, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := r.Tracer.Start(context.WithValue(ctx, wantedID{}, runSpanID(run.ID)), "maintenance.run", append(options, trace.WithAttributes(
		attribute.String("maintenance.worker", run.Worker), attribute.String("maintenance.run_id", run.ID),
		attribute.String("maintenance.database", databaseOrMain(run)), attribute.String("maintenance.trigger", run.Trigger),
		attribute.Bool("maintenance.dry_run", run.DryRun)))...)
	SetTexts(span, "maintenance.requested_by", run.RequestedBy)
	if !run.Fire.IsZero() {
		span.SetAttributes(attribute.String("maintenance.fire_time", run.Fire.UTC().Format(time.RFC3339)))
	}
	// Spans below it have ids of their own.
	return context.WithValue(ctx, wantedID{}, trace.SpanID{}), span
}

// recordStart says on its span under which lease a run has started, and how late that was for its fire.
func (x *Execution) recordStart() {
	run := x.Snapshot()
	x.Span.SetAttributes(attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch))
	if !run.Fire.IsZero() {
		x.Span.SetAttributes(attribute.Float64("maintenance.lateness_seconds", run.StartedAt.Sub(run.Fire).Seconds()))
	}
}

// Batch calls do within a span of a batch. An error is the batch's failure, unless the run is to stop.
func (x *Execution) Batch(ctx context.Context, do func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, span := x.Tracer.Start(ctx, "maintenance.batch", trace.WithAttributes(attributes...))
	defer span.End()
	if !span.IsRecording() {
		return do(ctx)
	}
	ctx = repo.WithBatch(ctx)
	err := do(ctx)
	switch reason := stoppedBy(ctx, err); {
	case err == nil:
	case reason != "":
		RecordOutcome(ctx, outcomeStopped, reason)
	default:
		RecordFailure(ctx, err)
	}
	if !repo.EndBatch(ctx) {
		Withhold(span)
	}
	span.SetAttributes(repo.SpansAttributes(ctx)...)
	return err
}

// countAttributes are the counts that are not 0.
func countAttributes(counts map[string]int64) (out []attribute.KeyValue) {
	for key, n := range counts {
		if n != 0 {
			out = append(out, attribute.Int64("maintenance.count."+key, n))
		}
	}
	return out
}

// recordEnd says on a span how the run has ended.
func (x *Execution) recordEnd(ctx context.Context, span trace.Span, run *Run, err error) {
	if !span.IsRecording() {
		return
	}
	SetTexts(span, "maintenance.outcome", run.State, "maintenance.reason", run.Reason, "maintenance.stopped_because", x.whyStopped(run, err))
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
	span.SetAttributes(repo.SpansAttributes(ctx)...)
	// Batches rest side by side.
	if _, rested := x.throttle.state(); rested > 0 {
		span.SetAttributes(attribute.Float64(restedKey, rested.Seconds()))
	}
	// Of a run that was told to stop the error says by whom, and has an operator's words: those are for the record.
	if run.State == repo.RunFailed {
		text := redactedText(run.Error, err)
		SetTexts(span, "maintenance.error", text)
		NoteError(span, err)
		span.SetStatus(codes.Error, text)
	}
}

func tableTexts(tables []repo.TableCount) (out []string) {
	tables = slices.Clone(tables)
	slices.SortStableFunc(tables, func(a, b repo.TableCount) int { return int(b.Deleted + b.Updated - a.Deleted - a.Updated) })
	for _, t := range tables {
		out = append(out, fmt.Sprintf("%s: %d deleted, %d updated", t.Table, t.Deleted, t.Updated))
	}
	return repo.Longest(out)
}

// SpanOf is the span that a traceparent names, invalid if that is empty or malformed.
func SpanOf(ctx context.Context, parent string) trace.SpanContext {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
	return trace.SpanContextFromContext(ctx)
}

// LinkTo is a link to the span of a traceparent, none if that is empty or malformed.
func LinkTo(ctx context.Context, parent string) trace.SpanStartOption {
	if span := SpanOf(ctx, parent); span.IsValid() {
		return trace.WithLinks(trace.Link{SpanContext: span})
	}
	return trace.WithLinks()
}

// MaxBatchLinks is how many links the span of a batch has at most, maxRunLinks that of a run.
const MaxBatchLinks, maxRunLinks = 16, 64

// Link leads from a batch, and from its run in case that batch is left out of the trace, to what has caused the work:
// spans in W3C's form, each of which is linked once. what says what they are.
func (x *Execution) Link(ctx context.Context, what string, parents []string) {
	batch := trace.SpanFromContext(ctx)
	if !batch.IsRecording() {
		return
	}
	linked := 0
	for _, parent := range parents {
		span := SpanOf(ctx, parent)
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
