package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Keys that every line, or every error, has.
const (
	traceID  = "trace_id"
	stackKey = "stack"
)

// NewLogger returns a logger that writes one JSON object per line. It writes key=value pairs if the
// format is text. Without a format it does so if to is a terminal, and then leaves out stacks. The
// level is debug, info, warn or error. Other values mean info.
//
// Lines whose context belongs to a trace have its trace_id. A line of level error has the stack of
// its error, if the error has a method Callers that returns one. An error whose cause is outside,
// such as a file, has none.
func NewLogger(to io.Writer, level, format string) *slog.Logger {
	var from slog.Level
	if err := from.UnmarshalText([]byte(level)); err != nil {
		from = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: from, ReplaceAttr: readable}
	if format == "" && isTerminal(to) {
		format, options.ReplaceAttr = "text", short
	}
	if format == "text" {
		return slog.New(traced{Handler: slog.NewTextHandler(to, options)})
	}
	return slog.New(traced{Handler: slog.NewJSONHandler(to, options)})
}

func isTerminal(to io.Writer) bool {
	file, ok := to.(*os.File)
	if !ok || file.Name() == os.DevNull {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// readable writes durations as 1.5s instead of nanoseconds, times in UTC, and stacks as text.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() { //nolint:exhaustive // the others are readable
	case slog.KindDuration:
		return slog.String(a.Key, a.Value.Duration().String())
	case slog.KindTime:
		return slog.Time(a.Key, a.Value.Time().UTC())
	}
	callers, ok := a.Value.Any().([]uintptr)
	switch {
	case ok && len(callers) == 0:
		return slog.Attr{}
	case ok:
		return slog.String(a.Key, stack(callers))
	}
	return a
}

// short is readable without stacks, which fill a terminal.
func short(groups []string, a slog.Attr) slog.Attr {
	if a.Key == stackKey {
		return slog.Attr{}
	}
	return readable(groups, a)
}

// stack returns a line for each function, with the base names of files.
func stack(callers []uintptr) string {
	var lines []string
	frames := runtime.CallersFrames(callers)
	for {
		f, more := frames.Next()
		if f.Function != "" {
			lines = append(lines, fmt.Sprintf("%s (%s:%d)", f.Function, path.Base(f.File), f.Line))
		}
		if !more {
			return strings.Join(lines, "\n")
		}
	}
}

// traced adds the trace_id of the context, and the stacks of errors.
type traced struct {
	slog.Handler
	// has is set if the logger itself has a trace_id.
	has bool
}

// Handle adds the missing attributes.
func (h traced) Handle(ctx context.Context, record slog.Record) error {
	span := trace.SpanContextFromContext(ctx)
	hasTrace := h.has || !span.HasTraceID()
	var origin interface{ Callers() []uintptr }
	record.Attrs(func(a slog.Attr) bool {
		hasTrace = hasTrace || a.Key == traceID
		if err, ok := a.Value.Any().(error); ok && origin == nil {
			_ = errors.As(err, &origin)
		}
		return true
	})
	record = record.Clone()
	if !hasTrace {
		record.AddAttrs(slog.String(traceID, span.TraceID().String()))
	}
	if origin != nil && record.Level >= slog.LevelError {
		record.AddAttrs(slog.Any(stackKey, origin.Callers()))
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
