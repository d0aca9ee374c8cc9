package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
)

// serve runs the server on the configured databases.
func serveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		Short:   "Serve the API and run the workers on their schedules",
		GroupID: groupServe,
		Args:    between(0, 0),
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(command.Context())
			defer stop()
			hangups, stopHangups := onHangup()
			defer stopHangups()
			c, err := a.settings()
			if err := errors.Join(err, c.readFiles()); err != nil {
				return err
			}
			i, err := newInstance(ctx, a, c, nil)
			if err != nil {
				return err
			}
			i.hangups = hangups
			return i.run(ctx)
		},
	}
}

// migrate creates or updates the schema maintenance.
func migrateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "migrate",
		Short:   "Create or update the schema maintenance in every configured database",
		GroupID: groupServe,
		Args:    between(0, 0),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.withDatabases(command, func(
				ctx context.Context, _ *settings, databases []*repo.Database,
			) error {
				return migrateAll(ctx, a.terminal, databases)
			})
		},
	}
}

// migrated is what --output json has for a database.
type migrated struct {
	Database string   `json:"database"`
	Applied  []string `json:"applied"`
}

func migrateAll(ctx context.Context, out *terminal, databases []*repo.Database) error {
	report := []migrated{}
	for _, d := range databases {
		applied, err := scheduler.Migrate(ctx, d)
		report = append(report, migrated{d.Name, append([]string{}, applied...)})
		for _, name := range applied {
			out.text("%s: applied %s", d.Name, name)
		}
		failed, ok := errors.AsType[*repo.Error](err)
		switch {
		case ok && failed.Refused():
			return connectionRefused(d.Name, failed)
		case ok && strings.Contains(err.Error(), "server refused TLS connection"):
			return fmt.Errorf("%w: sslmode in databases.%s.url asks for TLS, which the server lacks",
				err, d.Name)
		case ok && failed.SQLState == "42501":
			return fmt.Errorf("%w: grant CREATE on the database to the role of databases.%s.url, or run "+
				"caretaker migrate as the owner of the database, or of the schema maintenance", err, d.Name)
		case ok: // It says on which database.
			return err
		case err != nil:
			return fmt.Errorf("migrate %s: %w", d.Name, err)
		}
		if len(applied) == 0 {
			out.text("%s: up to date", d.Name)
		}
	}
	if out.asJSON {
		return out.json(map[string]any{"databases": report})
	}
	return nil
}
