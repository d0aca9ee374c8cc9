package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lostInterval is how often it is said at most that telemetry is lost: exporters say so at every try, every few seconds
// and for each signal, as long as a collector is down.
const lostInterval = time.Minute

// lost says in the log what could not be exported.
type lost struct {
	logger *slog.Logger

	mu   sync.Mutex
	said time.Time
	// left is how many errors have not been told since.
	left int
}

// Handle is called by OpenTelemetry.
func (l *lost) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.said.IsZero() && time.Since(l.said) < lostInterval {
		l.left++
		return
	}
	attrs := []any{"error", err.Error()}
	if l.left > 0 {
		attrs = append(attrs, "left_out", l.left)
	}
	l.said, l.left = time.Now(), 0
	l.logger.WarnContext(context.Background(), "telemetry was lost", attrs...)
}
