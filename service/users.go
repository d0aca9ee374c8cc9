package service

import (
	"context"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
)

// userSchema knows which tables and columns about users main has, and says once what has changed.
type userSchema struct {
	service *Service

	mu   sync.Mutex
	seen *repo.UserFeatures
}

func (u *userSchema) look(ctx context.Context) (repo.UserFeatures, error) {
	found, err := u.service.main.UserFeatures(ctx)
	if err != nil {
		return found, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.seen == nil:
		u.service.logger.DebugContext(ctx, "tables of users looked for, those not found are passed over", "found", found.String())
	case *u.seen != found:
		u.service.logger.InfoContext(ctx, "the schema of users has changed", "was", u.seen.String(), "found", found.String())
	}
	u.seen = &found
	return found, nil
}
