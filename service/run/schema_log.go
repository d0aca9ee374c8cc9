package run

import (
	"context"
	"log/slog"
	"sync"
)

// SchemaLog logs which optional tables a worker is missing, and again when that changes.
type SchemaLog struct {
	mu   sync.Mutex
	last *string
}

// Report logs the missing optional tables of a subject after a change, and first at debug.
func (w *SchemaLog) Report(ctx context.Context, logger *slog.Logger, of, missing string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.last == nil:
		logger.DebugContext(ctx, "missing optional tables skipped", "of", of, "missing", missing)
	case *w.last != missing:
		logger.InfoContext(ctx, "schema changed, missing optional tables skipped", "of", of, "was", *w.last, "missing", missing)
	}
	w.last = &missing
}
