package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrUnknownTable, ErrUnknownRecord and ErrUnknownKey: the name or id was not found.
var (
	ErrUnknownTable  = errors.New("unknown table")
	ErrUnknownRecord = errors.New("unknown record")
	ErrUnknownKey    = errors.New("unknown foreign key")
	// ErrUnknownAction: an invalid on_delete of a definition.
	ErrUnknownAction = errors.New("--on-delete")
)

// Misused reports whether an error is about a malformed or unknown name or value from the operator.
func Misused(err error) bool {
	refused, ok := errors.AsType[*admin.RefusedError](err)
	return ok && refused.Misnamed || slices.ContainsFunc([]error{
		fault.ErrUnknownDatabase, ErrUnknownTable, ErrUnknownRecord, ErrUnknownChild, ErrUnknownKey, ErrUnknownAction,
	}, func(unknown error) bool { return errors.Is(err, unknown) })
}

// Admin implements `caretaker lfk` on the configured databases. All changes in one database are one
// transaction. A failing database is in the error, and the others are done.
type Admin struct {
	// Databases from the configuration, in the order of the rotation.
	Databases []*repo.Database
	// Only names the database to work on. "" means all.
	Only string
	// Schema is where Install makes a queue if another schema has one. "" means Install fails then.
	Schema string
	// Definitions. nil means none are configured.
	Definitions *lfk.Definitions
	// Unread: the definitions cannot be read, so they may need any record.
	Unread bool
	// Discard lets Untrack delete the records that no definition needs.
	Discard bool
	// Plan lets Track return why it would fail, without changes.
	Plan bool
	// Schedule of the worker, of five fields, UTC. "" means no schedule.
	Schedule string
	// Progress shows what takes time, as text for people. nil means nothing.
	Progress func(format string, args ...any)
}

// progress shows what takes time.
func (l Admin) progress(format string, args ...any) {
	if l.Progress != nil {
		l.Progress(format, args...)
	}
}

// Installed is the result of Install in one database.
type Installed struct {
	Database string `json:"database"`
	// Result is one of the constants of lfkadmin that begin with Queue.
	Result string `json:"result"`
}

// Install creates the queue of deleted parents and its trigger functions, or upgrades those of an
// older version.
func (l Admin) Install(ctx context.Context) ([]Installed, error) {
	done := []Installed{}
	err := l.each(ctx, func(d *repo.Database) error {
		result, err := admin.New(d.Database).In(l.Schema).InstallQueue(ctx)
		if err == nil {
			done = append(done, Installed{d.Name, result})
		}
		return err
	})
	return done, err
}

// Tracked is the result of Track.
type Tracked struct {
	Database string `json:"database"`
	admin.Tracked
}

// Track creates the triggers that record deletions from a table, in the one database that has it.
// columns are its key. None means id.
func (l Admin) Track(ctx context.Context, table string, columns ...string) (Tracked, error) {
	d, err := l.databaseOf(ctx, table)
	if err != nil {
		return Tracked{}, err
	}
	if l.Plan {
		_, err = admin.New(d.Database).TrackingSQL(ctx, table, columns...)
		return Tracked{}, err
	}
	tracked, err := admin.New(d.Database).Track(ctx, table, columns...)
	return Tracked{d.Name, tracked}, err
}

// databaseOf returns the only selected database that has a table.
func (l Admin) databaseOf(ctx context.Context, table string) (*repo.Database, error) {
	databases, err := l.databasesOf(ctx, table)
	switch {
	case err != nil:
		return nil, err
	case len(databases) > 1:
		return nil, fmt.Errorf("%s exists in %s: select a database with --database", table,
			run.DatabaseNames(databases))
	case len(databases) == 0:
		return nil, l.unknownTable(ctx, table)
	}
	return databases[0], nil
}

// databasesOf returns the selected databases that have a table.
func (l Admin) databasesOf(
	ctx context.Context, table string,
) (databases []*repo.Database, err error) {
	err = l.each(ctx, func(d *repo.Database) error {
		has, err := admin.New(d.Database).HasTable(ctx, table)
		if has {
			databases = append(databases, d)
		}
		return err
	})
	return databases, err
}

// unknownTable returns the error for a table that no selected database has.
func (l Admin) unknownTable(ctx context.Context, table string) error {
	selected, _ := l.Selected()
	hint := lfk.ReadTableNames(ctx, selected).Hint(table)
	if hint != "" {
		hint = ": " + hint
	}
	return fault.Unknown(ErrUnknownTable, "table", table,
		fmt.Sprintf("%s %s in %s%s", ErrUnknownTable, table, run.DatabaseNames(selected), hint))
}

// knownTable returns [ErrUnknownTable] if no selected database has a table.
func (l Admin) knownTable(ctx context.Context, table string) error {
	databases, err := l.databasesOf(ctx, table)
	if err == nil && len(databases) == 0 {
		err = l.unknownTable(ctx, table)
	}
	return err
}

// Selected returns the databases to work on.
func (l Admin) Selected() ([]*repo.Database, error) {
	if l.Only == "" {
		return l.Databases, nil
	}
	for _, d := range l.Databases {
		if d.Name == l.Only {
			return []*repo.Database{d}, nil
		}
	}
	return nil, run.UnknownDatabase(l.Only, l.Databases)
}

// each calls do for every selected database that is migrated and has an application schema, and
// joins the errors.
func (l Admin) each(ctx context.Context, do func(*repo.Database) error) error {
	selected, err := l.Selected()
	for _, d := range selected {
		ready := d.CheckMigrated(ctx)
		if ready == nil {
			_, ready = d.ApplicationSchema(ctx)
		}
		switch {
		case errors.Is(ready, dberr.ErrNotMigrated):
			err = errors.Join(err, fmt.Errorf("%w: run `caretaker migrate` first", ready))
		case ready != nil:
			err = errors.Join(err, ready)
		default:
			err = errors.Join(err, do(d))
		}
	}
	return err
}
