package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// Migrate creates or updates the schema maintenance of a database, and returns the names of the
// applied migrations. In main it includes River's tables, except for loose foreign keys only.
// Servers may keep running meanwhile. Concurrent calls of several processes wait for each other.
func Migrate(ctx context.Context, d *repo.Database) (applied []string, err error) {
	applied, err = d.Migrate(ctx)
	if err != nil || d.Name != "main" || d.LooseForeignKeysOnly {
		return applied, err
	}
	queue, err := migrateQueue(ctx, d)
	return append(applied, queue...), err
}

// migrateQueue applies River's migrations and our additions to them, in one process at a time.
// After an error, applied has the steps that are already in effect.
func migrateQueue(ctx context.Context, main *repo.Database) (applied []string, err error) {
	err = main.WhileMigrating(ctx, func() error {
		// 1. River's own migrations.
		migrator, err := newMigrator(main)
		if err != nil {
			return err
		}
		result, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		if err != nil {
			return fmt.Errorf("cannot migrate the job queue: %w", err)
		}
		for _, v := range result.Versions {
			name := strings.ReplaceAll(v.Name, " ", "_")
			applied = append(applied, fmt.Sprintf("queue/%03d_%s", v.Version, name))
		}
		// 2. The index for lists and counts of jobs.
		indexed, err := main.Jobs.IndexJobs(ctx)
		if indexed {
			applied = append(applied, "queue/index_by_kind_and_state")
		}
		if err != nil {
			return err
		}
		// 3. The trigger that keeps the outcome of a finished job.
		kept, err := main.Jobs.KeepJobEnds(ctx)
		if kept {
			applied = append(applied, "queue/keep_ends")
		}
		return err
	})
	return applied, err
}

// CheckQueueMigrated returns [dberr.ErrNotMigrated] if River's tables are missing or older than
// this program, and [dberr.ErrUnreachable] if main does not answer.
func CheckQueueMigrated(ctx context.Context, main *repo.Database) error {
	if err := main.Ping(ctx); err != nil {
		return err
	}
	migrator, err := newMigrator(main)
	if err != nil {
		return err
	}
	var versions []int64
	for _, m := range migrator.AllVersions() {
		versions = append(versions, int64(m.Version))
	}
	migrated, err := main.QueueMigrated(ctx, versions)
	if err != nil {
		return err
	}
	if !migrated {
		return fmt.Errorf("the job queue in database %s is %w", main.Name, dberr.ErrNotMigrated)
	}
	return nil
}

// newMigrator returns River's migrator for the schema maintenance. It sends no query and logs
// nothing.
func newMigrator(main *repo.Database) (*rivermigrate.Migrator[jobqueue.Tx], error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(main.Jobs.Pool()), &rivermigrate.Config{
		Schema: schema, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot prepare the migrations of the job queue: %w", err)
	}
	return migrator, nil
}
