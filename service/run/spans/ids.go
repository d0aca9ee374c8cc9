package spans

import (
	"context"
	"crypto/rand"

	"go.opentelemetry.io/otel/trace"
)

// IDs makes the ids of traces and spans, to be given to OpenTelemetry's SDK: random ones, except
// that the span of a run has the last eight bytes of the run's id. Another process that finds the
// run's process dead can create the span to which its children already point.
type IDs struct{}

// wantedID is the context's key of the id that the next span is to have ([trace.SpanID]).
type wantedID struct{}

// NewIDs returns those of a root.
func (s IDs) NewIDs(ctx context.Context) (id trace.TraceID, _ trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id, s.NewSpanID(ctx, id)
}

// NewSpanID returns that of a span in a trace.
func (IDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	id, _ := ctx.Value(wantedID{}).(trace.SpanID)
	if !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}

// WithID makes [IDs] give the next span below ctx this id; the zero id: a random one.
func WithID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, wantedID{}, id)
}
