package run

import (
	"context"
	"crypto/rand"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// SpanIDs makes the ids of traces and spans, to be given to OpenTelemetry's SDK: random ones, except
// that the span of a run has the last eight bytes of the run's id. Another process that finds the
// run's process dead can create the span to which its children already point.
type SpanIDs struct{}

// wantedID is the context's key of the id that the next span is to have ([trace.SpanID]).
type wantedID struct{}

// NewIDs returns those of a root.
func (s SpanIDs) NewIDs(ctx context.Context) (id trace.TraceID, _ trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id, s.NewSpanID(ctx, id)
}

// NewSpanID returns that of a span in a trace.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	id, _ := ctx.Value(wantedID{}).(trace.SpanID)
	if !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

// runSpanID returns the id of the span of the run with this id.
func runSpanID(run string) (span trace.SpanID) {
	if id, err := uuid.Parse(run); err == nil {
		copy(span[:], id[8:])
	}
	return span
}
