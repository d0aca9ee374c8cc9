package service

import (
	"context"
	"log/slog"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// userSchema knows which tables and columns about users main has.
type userSchema struct {
	main   *repo.Database
	logger *slog.Logger
	watch  run.SchemaWatch
}

func (u *userSchema) look(ctx context.Context) (repo.UserFeatures, error) {
	found, err := u.main.UserFeatures(ctx)
	if err == nil {
		u.watch.Saw(ctx, u.logger, "users", found.PassedOver)
	}
	return found, err
}

func newUserSchema(d run.Deps) *userSchema { return &userSchema{main: d.Main, logger: d.Logger} }
