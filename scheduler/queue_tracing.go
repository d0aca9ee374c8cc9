package scheduler

import (
	"context"
	"strconv"

	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/spans"
)

const (
	// processedByKey is the metadata key of the span that did the work of a completed job.
	processedByKey = gitlab.ProcessedByKey
	// traceIDKey is the metadata key of the trace of a job's last attempt.
	traceIDKey = "trace_id"
	// shownJobs is the maximum number of job IDs in a span.
	shownJobs = 10
)

// startSend starts the span of inserting jobs. Dry runs and operations without spans have none.
func (q *Queue) startSend(ctx context.Context, jobs []jobqueue.Job) (context.Context, trace.Span) {
	if len(jobs) == 0 || !spans.ShouldTrace(ctx) {
		return ctx, trace.SpanFromContext(context.Background())
	}
	kind := jobs[0].Args.Kind()
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", jobqueue.JobSystem),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.operation.name", "send"),
		attribute.String("messaging.destination.name", kind),
	}
	if len(jobs) > 1 { // The semantic conventions set it only for batches.
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", len(jobs)))
	}
	tracer := otel.Tracer("github.com/caretaker-go/caretaker/scheduler")
	return tracer.Start(ctx, "send "+kind, //nolint:spancheck // InsertJobs ends it
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
}

// setInserted sets the span's attributes for inserted jobs, and for the number of jobs that were
// skipped because the same job is waiting or running.
func setInserted(span trace.Span, inserted []*rivertype.JobInsertResult, dropped int) {
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
