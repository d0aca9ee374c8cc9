package service_test

import (
	"bytes"
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/service"
)

// tracedLog is a log of JSON lines with the trace ids of their contexts, as the server's has.
type tracedLog struct{ slog.Handler }

// tracedLogTo has a service log into a buffer. What reads it must not do so while anything logs.
func tracedLogTo(to *bytes.Buffer) func(*service.Config) {
	return func(c *service.Config) { c.Logger = slog.New(tracedLog{slog.NewJSONHandler(to, nil)}) }
}

func (l tracedLog) Handle(ctx context.Context, r slog.Record) error {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		r.AddAttrs(slog.String("trace_id", id.String()))
	}
	return l.Handler.Handle(ctx, r)
}

func (l tracedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracedLog{l.Handler.WithAttrs(attrs)}
}
