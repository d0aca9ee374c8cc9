package service

import (
	"context"
	"log/slog"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
)

// schemaWatch says what a worker does not find of what it looks for, and once what has changed (schema.md section 9).
type schemaWatch struct {
	mu   sync.Mutex
	seen *string
}

// saw is told what was passed over, of what the worker is about.
func (w *schemaWatch) saw(ctx context.Context, logger *slog.Logger, of, passedOver string) {
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

// userSchema knows which tables and columns about users main has.
type userSchema struct {
	main   *repo.Database
	logger *slog.Logger
	watch  schemaWatch
}

func (u *userSchema) look(ctx context.Context) (repo.UserFeatures, error) {
	found, err := u.main.UserFeatures(ctx)
	if err == nil {
		u.watch.saw(ctx, u.logger, "users", found.PassedOver)
	}
	return found, err
}
