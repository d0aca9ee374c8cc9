package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// warnings lets through what River says of importance, each message once a minute at most: its loops try on every second
// or so while main does not answer, and say so every time.
type warnings struct {
	slog.Handler
	said *said
}

func newWarnings(h slog.Handler) warnings {
	return warnings{h, &said{at: map[string]time.Time{}, left: map[string]int{}}}
}

// warningInterval is how often a message is let through at most.
const warningInterval = time.Minute

// said are the times at which messages were let through, and how often they were not since. River's messages are
// constant, so that there are few.
type said struct {
	mu   sync.Mutex
	at   map[string]time.Time
	left map[string]int
}

// due says whether a message may pass, and how many did not since the last one.
func (s *said) due(message string) (leftOut int, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.at[message]; known && time.Since(at) < warningInterval {
		s.left[message]++
		return 0, false
	}
	leftOut = s.left[message]
	s.at[message], s.left[message] = time.Now(), 0
	return leftOut, true
}

// Enabled from warnings on.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// Handle lets a record through if its message is due.
func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	leftOut, due := w.said.due(r.Message)
	if !due {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return w.Handler.Handle(ctx, r)
}

// WithAttrs keeps the level and the times.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs), w.said}
}

// WithGroup keeps the level and the times.
func (w warnings) WithGroup(name string) slog.Handler {
	return warnings{w.Handler.WithGroup(name), w.said}
}
