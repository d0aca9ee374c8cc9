package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// warnings passes River's warnings and errors, each message once a minute at most: while main does
// not answer its loops log one every second or so.
type warnings struct {
	slog.Handler
	passed *passed
}

func newWarnings(h slog.Handler) warnings {
	return warnings{h, &passed{at: map[string]time.Time{}, omitted: map[string]int{}}}
}

// warningInterval is the time between two records with the same message.
const warningInterval = time.Minute

// passed is when messages passed last, and how many have been omitted since. River's messages are
// constant, so there are few.
type passed struct {
	mu      sync.Mutex
	at      map[string]time.Time
	omitted map[string]int
}

// due reports whether a message may pass, and how many were omitted since the last one.
func (p *passed) due(message string) (omitted int, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, known := p.at[message]; known && time.Since(at) < warningInterval {
		p.omitted[message]++
		return 0, false
	}
	omitted = p.omitted[message]
	p.at[message], p.omitted[message] = time.Now(), 0
	return omitted, true
}

// Enabled from warnings on.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// Handle passes a record if its message is due.
func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	omitted, due := w.passed.due(r.Message)
	if !due {
		return nil
	}
	if omitted > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", omitted))
	}
	return w.Handler.Handle(ctx, r)
}

// WithAttrs keeps the level and the times.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs), w.passed}
}

// WithGroup keeps the level and the times.
func (w warnings) WithGroup(name string) slog.Handler {
	return warnings{w.Handler.WithGroup(name), w.passed}
}
