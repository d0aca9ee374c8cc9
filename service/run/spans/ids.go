package spans

import (
	"context"
	"crypto/rand"

	"go.opentelemetry.io/otel/trace"
)

// IDs generates the ids of traces and spans for OpenTelemetry's SDK. They are random, except that
// the span of a run has the last eight bytes of the run's id. So another process that finds the
// run's process dead can create the span that the child spans already refer to.
type IDs struct{}

// nextSpanID is the context key of the next span's id ([trace.SpanID]).
type nextSpanID struct{}

// NewIDs returns the ids of a root span.
func (s IDs) NewIDs(ctx context.Context) (id trace.TraceID, _ trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id, s.NewSpanID(ctx, id)
}

// NewSpanID returns the id of a span in a trace.
func (IDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	id, _ := ctx.Value(nextSpanID{}).(trace.SpanID)
	if !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

// WithID makes [IDs] use this id for the next span below ctx. The zero id means a random one.
func WithID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, nextSpanID{}, id)
}
