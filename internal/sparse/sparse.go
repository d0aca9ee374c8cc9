// Package sparse limits repeated log records. Libraries log an outage every second or so.
package sparse

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// interval is the time between two records about the same subject.
const interval = time.Minute

// maxSubjects limits the remembered subjects: variable texts must not fill the memory.
const maxSubjects = 100

// handler passes warnings and errors, at most one a minute about the same subject.
type handler struct {
	slog.Handler
	about  func(slog.Record) string
	passed *passed
}

// New passes the warnings and errors that h enables, each with the number of skipped records about
// its subject. about returns the subject of a record besides its message. If about is nil, the
// message is the subject.
func New(h slog.Handler, about func(slog.Record) string) slog.Handler {
	return handler{h, about, &passed{tallies: map[string]tally{}}}
}

// passed has the last passed record of each subject.
type passed struct {
	mu      sync.Mutex
	tallies map[string]tally
}

// tally has the time of the last passed record, and the number skipped since.
type tally struct {
	at   time.Time
	left int
}

// due reports whether a record may pass, and how many records were skipped before it.
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

// Enabled reports whether a record is at least a warning.
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

// WithAttrs shares the passed records.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.about, h.passed}
}

// WithGroup shares the passed records.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.about, h.passed}
}
