package deletion

import (
	"context"
	"log/slog"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/run"
)

// UserSchema knows which tables and columns about users main has.
type UserSchema struct {
	main   *repo.Database
	logger *slog.Logger
	watch  run.SchemaLog
}

// Read reads which of them there are, and logs when optional ones are missing.
func (u *UserSchema) Read(ctx context.Context) (gitlab.UserFeatures, error) {
	found, err := u.main.Users.UserFeatures(ctx)
	if err == nil {
		u.watch.Report(ctx, u.logger, "users", found.MissingOptional)
	}
	return found, err
}

// NewUserSchema has not looked yet.
func NewUserSchema(d run.Deps) *UserSchema { return &UserSchema{main: d.Main, logger: d.Logger} }
