package service

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// startJob begins the span of an attempt: a trace of its own, linked to the run or job that has queued it. Its attributes
// are those of the semantic conventions for messaging, and ours.
func (s *Service) startJob(ctx context.Context, r JobRequest) (context.Context, trace.Span) {
	attributes := []attribute.KeyValue{
		attribute.String("messaging.operation.type", "process"), attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.destination.name", r.Kind), attribute.String("messaging.message.id", fmt.Sprint(r.ID)),
		attribute.String("maintenance.job.kind", r.Kind), attribute.Int64("maintenance.job.id", r.ID),
		attribute.Int("maintenance.job.attempt", r.Attempt), attribute.String("maintenance.run_id", r.RunID),
	}
	if r.System != "" {
		attributes = append(attributes, attribute.String("messaging.system", r.System))
	}
	if !r.QueuedAt.IsZero() {
		attributes = append(attributes, attribute.String("maintenance.job.queued_at", r.QueuedAt.UTC().Format(time.RFC3339)))
	}
	ctx, span := s.tracer.Start(ctx, "maintenance.job", trace.WithNewRoot(), linkTo(ctx, r.TraceParent), //nolint:spancheck // WorkJob ends it
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...))
	return traced(ctx, span, &queued{job: true}), span //nolint:spancheck // WorkJob ends it
}

// tellJob says on its span how an attempt has ended.
func tellJob(ctx context.Context, r JobResult, outcome string, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if r.Snooze > 0 {
		outcome = "snoozed"
		span.SetAttributes(attribute.Float64("maintenance.job.snooze_seconds", r.Snooze.Seconds()))
	}
	span.SetAttributes(attribute.String("maintenance.outcome", outcome), attribute.String("maintenance.reason", r.Reason))
	for i := 0; i+1 < len(r.Attributes); i += 2 {
		key, _ := r.Attributes[i].(string)
		// Numbers only: what is in words may name somebody.
		switch value := r.Attributes[i+1].(type) {
		case int64:
			span.SetAttributes(attribute.Int64("maintenance."+key, value))
		case int:
			span.SetAttributes(attribute.Int("maintenance."+key, value))
		case bool:
			span.SetAttributes(attribute.Bool("maintenance."+key, value))
		case []int64:
			span.SetAttributes(attribute.Int64Slice("maintenance."+key, value))
		}
	}
	if q, is := ctx.Value(queuedKey{}).(*queued); is {
		// What an attempt has queued before it failed is not told: whether it was committed is not known.
		q.committed(err == nil)
	}
	tellQueued(ctx, span)
	if err != nil {
		noteError(span, err)
	}
}
