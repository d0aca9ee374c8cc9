package scheduler

import (
	"context"
	"fmt"
	"strconv"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// processedByKey is the key, in a finished job's metadata, of the span that did the work.
	processedByKey = repo.ProcessedByKey
	// shownJobs is how many job ids a span names.
	shownJobs = 10
)

// startSend begins the span of jobs that are inserted, if what inserts them is traced and means it.
func (q *Queue) startSend(ctx context.Context, jobs []repo.Job) (context.Context, trace.Span) {
	if len(jobs) == 0 || repo.IsDryRun(ctx) || !repo.Shows(ctx) {
		return ctx, trace.SpanFromContext(context.Background())
	}
	kind := jobs[0].Args.Kind()
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", repo.JobSystem), attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.operation.name", "send"), attribute.String("messaging.destination.name", kind),
	}
	if len(jobs) > 1 {
		// The conventions want it of batches only.
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", len(jobs)))
	}
	return otel.Tracer("github.com/caretaker-go/caretaker/scheduler").Start(ctx, "send "+kind, //nolint:spancheck // InsertJobs ends it
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
}

// tellInserted says which of the jobs were inserted, and how many were not, because the same wait or run already.
func tellInserted(span trace.Span, inserted []*rivertype.JobInsertResult, dropped int) {
	if !span.IsRecording() {
		return
	}
	var ids []string
	for _, r := range inserted[:min(len(inserted), shownJobs)] {
		ids = append(ids, strconv.FormatInt(r.Job.ID, 10))
	}
	span.SetAttributes(attribute.Int("maintenance.jobs_inserted", len(inserted)))
	if dropped > 0 {
		span.SetAttributes(attribute.Int("maintenance.jobs_dropped", dropped))
	}
	if len(ids) > 0 {
		span.SetAttributes(attribute.StringSlice("maintenance.job_ids", ids))
	} else {
		span.SetAttributes(attribute.String("maintenance.reason", "DUPLICATE"))
	}
	if len(ids) == 1 {
		span.SetAttributes(attribute.String("messaging.message.id", ids[0]))
	}
}

// traceIDKey is the key, in a job's metadata, of the trace of its last attempt.
const traceIDKey = "trace_id"

// recordTrace keeps with a job in which trace it was worked last, also if that failed: that is when somebody looks for it.
func recordTrace(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	if err := river.MetadataSet(ctx, traceIDKey, id); err != nil {
		return fmt.Errorf("keep the trace of a job: %w", err)
	}
	return nil
}

// recordSpan keeps with a job which span has worked it, so that what it has set off can be traced back to it.
func recordSpan(ctx context.Context, traceParent string) error {
	if traceParent == "" {
		return nil
	}
	if err := river.MetadataSet(ctx, processedByKey, traceParent); err != nil {
		return fmt.Errorf("keep the span of a job: %w", err)
	}
	return nil
}
