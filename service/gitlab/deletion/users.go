package deletion

import (
	"context"
	"log/slog"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/run"
)

// UserSchema reads which tables and columns about users main has.
type UserSchema struct {
	main   *repo.Database
	logger *slog.Logger
	watch  run.SchemaLog
}

// Read returns the tables and columns in main, and logs missing optional ones.
func (u *UserSchema) Read(ctx context.Context) (gitlab.UserFeatures, error) {
	found, err := u.main.Users.UserFeatures(ctx)
	if err == nil {
		u.watch.Report(ctx, u.logger, "users", found.MissingOptional)
	}
	return found, err
}

// NewUserSchema makes a UserSchema without reading main.
func NewUserSchema(d run.Deps) *UserSchema { return &UserSchema{main: d.Main, logger: d.Logger} }
