package job

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	spansrepo "github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// startJob starts the span of an attempt: a trace of its own, linked to the run or job that queued
// it. Its attributes are those of the semantic conventions for messaging, and caretaker's own.
func (p *Pool) startJob(ctx context.Context, r Request) (context.Context, trace.Span) {
	ctx, span := p.Tracer.Start(ctx, "maintenance.job", trace.WithNewRoot(), spans.LinkTo(ctx, r.TraceParent), //nolint:spancheck // WorkJob ends it
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(jobAttributes(r)...))
	return spansrepo.WithSpans(ctx), span //nolint:spancheck // WorkJob ends it
}

// jobAttributes returns the attributes that identify an attempt and its job.
func jobAttributes(r Request) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("messaging.operation.type", "process"), attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.system", jobqueue.JobSystem),
		attribute.String("messaging.destination.name", r.Kind), attribute.String("messaging.message.id", fmt.Sprint(r.ID)),
		attribute.String("maintenance.job.kind", r.Kind), attribute.Int64("maintenance.job.id", r.ID),
		attribute.Int("maintenance.job.attempt", r.Attempt),
	}
	if r.RunID != "" {
		attributes = append(attributes, attribute.String("maintenance.run_id", r.RunID))
	}
	if !r.QueuedAt.IsZero() {
		attributes = append(attributes, attribute.String("maintenance.job.queued_at", r.QueuedAt.UTC().Format(time.RFC3339)))
	}
	return attributes
}

// recordJob records on its span how an attempt has ended.
func recordJob(ctx context.Context, r Result, outcome string, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	spans.SetTexts(span, "maintenance.outcome", outcome, "maintenance.reason", r.Reason)
	if r.Snooze > 0 {
		span.SetAttributes(attribute.Float64("maintenance.job.snooze_seconds", r.Snooze.Seconds()))
	}
	recordAttributes(span, r.Attributes, r.traced)
	span.SetAttributes(spansrepo.Attributes(ctx)...)
	if err != nil && outcome != spans.OutcomeInterrupted {
		spans.MarkFailed(span, err)
	}
}

// recordAttributes copies log attributes of a job to its span: ids, and the keys of its kind.
func recordAttributes(span trace.Span, pairs []any, traced []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		key, _ := pairs[i].(string)
		if !strings.HasSuffix(key, "_id") && !slices.Contains(traced, key) {
			continue
		}
		name := attribute.Key("maintenance." + key)
		switch value := pairs[i+1].(type) {
		case int64:
			span.SetAttributes(name.Int64(value))
		case []int64:
			// The user is the only owner of these. Other jobs count groups.
			span.SetAttributes(attribute.Int64Slice("maintenance.owned_"+key, value))
		case bool:
			span.SetAttributes(name.Bool(value))
		case string:
			span.SetAttributes(name.String(value))
		}
	}
}

// withArguments returns a job's attributes after the missing ids of its arguments, numbers and
// UUIDs. So the log line of an attempt that failed early names its target.
func withArguments(attributes []any, args json.RawMessage) []any {
	byName := map[string]json.RawMessage{}
	if json.Unmarshal(args, &byName) != nil {
		return attributes
	}
	var ids []any
	for _, key := range slices.Sorted(maps.Keys(byName)) {
		if !strings.HasSuffix(key, "_id") || slices.Contains(attributes, any(key)) {
			continue
		}
		text := strings.Trim(string(byName[key]), `"`)
		if id, err := strconv.ParseInt(text, 10, 64); err == nil {
			ids = append(ids, key, id)
		} else if uuid.Validate(text) == nil {
			ids = append(ids, key, text)
		}
	}
	return append(ids, attributes...)
}
