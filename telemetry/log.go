package telemetry

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"
)

// traceID is the key of the contract's section 6.
const traceID = "trace_id"

// NewLogger writes JSON, one object a line, from level (debug, info, warn, error; anything else is info) on. Lines of a
// context that belongs to a trace bear its trace_id.
func NewLogger(to io.Writer, level string) *slog.Logger {
	var from slog.Level
	if err := from.UnmarshalText([]byte(level)); err != nil {
		from = slog.LevelInfo
	}
	json := slog.NewJSONHandler(to, &slog.HandlerOptions{Level: from, ReplaceAttr: readable})
	return slog.New(traced{Handler: json})
}

// readable writes durations as 1.5s instead of nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

// traced adds the trace_id of the context.
type traced struct {
	slog.Handler
	// has is true when the logger itself bears a trace_id.
	has bool
}

// Handle adds trace_id, unless the line has one.
func (h traced) Handle(ctx context.Context, record slog.Record) error {
	span := trace.SpanContextFromContext(ctx)
	has := h.has || !span.HasTraceID()
	record.Attrs(func(a slog.Attr) bool {
		has = has || a.Key == traceID
		return !has
	})
	if !has {
		record = record.Clone()
		record.AddAttrs(slog.String(traceID, span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs keeps the wrapper.
func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler {
	has := h.has || slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == traceID })
	return traced{Handler: h.Handler.WithAttrs(attrs), has: has}
}

// WithGroup keeps the wrapper.
func (h traced) WithGroup(name string) slog.Handler {
	return traced{Handler: h.Handler.WithGroup(name), has: h.has}
}
