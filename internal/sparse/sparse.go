// Package sparse keeps a log from repeating itself: while something does not answer, libraries report it every second or so.
package sparse

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// interval is the time between two records about the same.
const interval = time.Minute

// maxSubjects is how many subjects are remembered: texts with changing parts must not fill the memory.
const maxSubjects = 100

// handler passes warnings and errors, those about the same once a minute at most.
type handler struct {
	slog.Handler
	about  func(slog.Record) string
	passed *passed
}

// New passes the warnings and errors that h enables, and with each how many about the same were left out since the last.
// about returns the subject of a record, besides its message. nil: records have none.
func New(h slog.Handler, about func(slog.Record) string) slog.Handler {
	return handler{h, about, &passed{tallies: map[string]tally{}}}
}

// passed is what passed last.
type passed struct {
	mu      sync.Mutex
	tallies map[string]tally
}

// tally is when a record passed, and how many about the same have been left out since.
type tally struct {
	at   time.Time
	left int
}

// due reports whether a record may pass, and how many were left out since the last one.
func (p *passed) due(about string) (left int, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.tallies[about]
	if known && time.Since(last.at) < interval {
		p.tallies[about] = tally{last.at, last.left + 1}
		return 0, false
	}
	if len(p.tallies) >= maxSubjects {
		clear(p.tallies)
	}
	p.tallies[about] = tally{at: time.Now()}
	return last.left, true
}

// Enabled from warnings on.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

// Handle passes a record that is due.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	about := r.Message
	if h.about != nil {
		about += h.about(r)
	}
	left, due := h.passed.due(about)
	if !due {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps what has passed.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.about, h.passed}
}

// WithGroup keeps what has passed.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.about, h.passed}
}
