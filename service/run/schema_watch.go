package run

import (
	"context"
	"log/slog"
	"sync"
)

// SchemaWatch says what a worker does not find of what it looks for, and once what has changed .
type SchemaWatch struct {
	mu   sync.Mutex
	seen *string
}

// Saw is told what was passed over, of what the worker is about.
func (w *SchemaWatch) Saw(ctx context.Context, logger *slog.Logger, of, passedOver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.seen == nil:
		logger.DebugContext(ctx, "tables looked for, what is missing is passed over", "of", of, "missing", passedOver)
	case *w.seen != passedOver:
		logger.InfoContext(ctx, "the schema has changed, what is missing is passed over", "of", of, "was", *w.seen, "missing", passedOver)
	}
	w.seen = &passedOver
}
