package run

import (
	"context"
	"crypto/rand"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// SpanIDs makes the ids of traces and spans, to be given to OpenTelemetry's SDK: random ones, except
// that the span of a run has the last eight bytes of the run's id, and that of an attempt of a job,
// which is a root, ids made of the attempt's name. Whoever finds that the process was killed can thus
// create the span to which its children already point.
type SpanIDs struct{}

// wantedIDs is the context's key of the ids that the next span is to have ([trace.SpanContextConfig]).
type wantedIDs struct{}

// NewIDs are those of a root.
func (s SpanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	wanted, _ := ctx.Value(wantedIDs{}).(trace.SpanContextConfig)
	if !wanted.TraceID.IsValid() {
		_, _ = rand.Read(wanted.TraceID[:])
	}
	return wanted.TraceID, s.NewSpanID(ctx, wanted.TraceID)
}

// NewSpanID is that of a span in a trace.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	wanted, _ := ctx.Value(wantedIDs{}).(trace.SpanContextConfig)
	if !wanted.SpanID.IsValid() {
		_, _ = rand.Read(wanted.SpanID[:])
	}
	return wanted.SpanID
}

// runSpanID is the id of the span of the run with this id.
func runSpanID(run string) (span trace.SpanID) {
	if id, err := uuid.Parse(run); err == nil {
		copy(span[:], id[8:])
	}
	return span
}

// StartSpan begins a span with these ids, of which the trace's counts for a root alone; the zero one is random.
func (r *Runner) StartSpan(ctx context.Context, name string, ids trace.SpanContextConfig, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := r.Tracer.Start(context.WithValue(ctx, wantedIDs{}, ids), name, options...) //nolint:spancheck // the caller ends it
	// Spans below it have ids of their own.
	return context.WithValue(ctx, wantedIDs{}, trace.SpanContextConfig{}), span //nolint:spancheck // the caller ends it
}
