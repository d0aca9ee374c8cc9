package servicetest

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/service"
)

// LogTo lets a service log JSON into a buffer.
func LogTo(log *Buffer) func(*service.Config) {
	return func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) }
}

// Buffer is a log that the run's goroutines write and the test reads.
type Buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write adds to the text.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is the text so far.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Reset forgets what was logged so far.
func (l *Buffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// tracedLog is a log of JSON lines with the trace ids of their contexts, as the server's has.
type tracedLog struct{ slog.Handler }

// TracedLogTo lets a service log JSON with trace ids into a buffer.
func TracedLogTo(to *Buffer) func(*service.Config) {
	return func(c *service.Config) { c.Logger = slog.New(tracedLog{slog.NewJSONHandler(to, nil)}) }
}

// Handle adds the id of the trace.
func (l tracedLog) Handle(ctx context.Context, r slog.Record) error {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		r.AddAttrs(slog.String("trace_id", id.String()))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs keeps doing so.
func (l tracedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracedLog{l.Handler.WithAttrs(attrs)}
}

// Lines returns the lines that contain a text.
func (l *Buffer) Lines(containing string) (found []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, containing) {
			found = append(found, line)
		}
	}
	return found
}

// Keep makes a service log its warnings and errors as text into the buffer.
func (l *Buffer) Keep(c *service.Config) {
	c.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// KeepAll is [Buffer.Keep] for lines of all levels.
func (l *Buffer) KeepAll(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(l, nil)) }
