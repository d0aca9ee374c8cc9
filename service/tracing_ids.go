package service

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// SpanIDs makes the ids of traces and spans, to be given to OpenTelemetry's SDK: random ones, except that the span of a
// run has the last eight bytes of the run's id. Whoever closes the record of a run that was killed can so put its span
// where its children already point.
type SpanIDs struct{}

// spanIDKey is the context's key of the id that the next span is to have.
type spanIDKey struct{}

// NewIDs are those of a root.
func (s SpanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:8], rand.Uint64())
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, s.NewSpanID(ctx, id)
}

// NewSpanID is that of a span in a trace.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	id, _ := ctx.Value(spanIDKey{}).(trace.SpanID)
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// startRunSpan begins the span of the run with this id.
func (s *Service) startRunSpan(ctx context.Context, run string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	var wanted trace.SpanID
	if id, err := uuid.Parse(run); err == nil {
		copy(wanted[:], id[8:])
	}
	spanCtx, span := s.tracer.Start(context.WithValue(ctx, spanIDKey{}, wanted), "maintenance.run", options...) //nolint:spancheck // the caller ends it
	// Spans below it have ids of their own.
	return context.WithValue(spanCtx, spanIDKey{}, trace.SpanID{}), span //nolint:spancheck // the caller ends it
}
