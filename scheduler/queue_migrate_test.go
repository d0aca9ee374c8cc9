package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
)

func TestMigrate_MakesOursAndRiversTablesOnceInTheSchemaMaintenance(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := emptyMain(t, false)
	wantIs(t, "before", CheckQueueMigrated(ctx, d), dberr.ErrNotMigrated)
	// Several processes at once, as when replicas are deployed.
	type outcome struct {
		applied []string
		err     error
	}
	outcomes := make(chan outcome)
	for range 3 {
		go func() {
			applied, err := Migrate(ctx, d)
			outcomes <- outcome{applied, err}
		}()
	}
	var applied []string
	for range 3 {
		o := <-outcomes
		applied = append(applied, o.applied...)
		assert.NoError(t, o.err)
	}
	slices.Sort(applied)
	if n := len(applied); n != len(slices.Compact(slices.Clone(applied))) || !slices.Contains(applied, "queue/001_create_river_migration") || !strings.HasPrefix(applied[0], "every/") {
		t.Errorf("applied %v", applied)
	}
	assert.NoError(t, CheckQueueMigrated(ctx, d))
	var elsewhere int
	err := d.Jobs.Pool().QueryRow(ctx, `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE relname LIKE 'river%' AND nspname <> 'maintenance'`).Scan(&elsewhere)
	assert.That(t, err == nil && elsewhere == 0, "%d tables elsewhere, %v", elsewhere, err)
}

// wantIs fails the test unless an error is this one.
func wantIs(t *testing.T, what string, err, want error) {
	t.Helper()
	assert.That(t, errors.Is(err, want), "%s: got %v, want %v", what, err, want)
}

func TestCheckQueueMigrated_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := newLab(t)
	// A connection that is cut in the middle reports nothing about the tables: the server tries again.
	locker := assert.Must(pgx.Connect(ctx, l.url))(t)
	t.Cleanup(func() { _ = locker.Close(ctx) })
	assert.Must(locker.Exec(ctx, `BEGIN; LOCK TABLE maintenance.river_migration IN ACCESS EXCLUSIVE MODE`))(t)
	checked := make(chan error, 1)
	go func() { checked <- CheckQueueMigrated(ctx, l.main) }()
	l.until(`SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`, "true")
	wantIs(t, "cut", <-checked, dberr.ErrUnreachable)
	assert.Must(locker.Exec(ctx, `ROLLBACK`))(t)

	l.exec(`DELETE FROM maintenance.river_migration WHERE version = (SELECT max(version) FROM maintenance.river_migration)`)
	wantIs(t, "older", CheckQueueMigrated(ctx, l.main), dberr.ErrNotMigrated)
	gone := assert.Must(repo.Open(ctx, "main", "postgres://127.0.0.1:1/main"))(t)
	t.Cleanup(gone.Close)
	wantIs(t, "down", CheckQueueMigrated(ctx, gone), dberr.ErrUnreachable)
}

// forGitLab are the tables of main that loose foreign keys do without, besides River's.
const forGitLab = "group_removals job_cancellations outside_paths protected_targets token_passes user_removals"

func emptyMain(t *testing.T, only bool) *repo.Database {
	t.Helper()
	url := databases.Clone(t, devdb.Template{Name: "bare"})
	d := assert.Must(repo.Open(t.Context(), "main", url))(t)
	t.Cleanup(d.Close)
	d.LooseForeignKeysOnly = only
	return d
}

func migrateAs(t *testing.T, d *repo.Database, only bool) []string {
	t.Helper()
	d.LooseForeignKeysOnly = only
	return assert.Must(Migrate(t.Context(), d))(t)
}

// relations are the columns and indexes of the schema maintenance, but for River's.
func relations(t *testing.T, d *repo.Database) (all string) {
	t.Helper()
	assert.NoError(t, d.Jobs.Pool().QueryRow(t.Context(), `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT format('%s.%s %s %s', table_name, column_name, data_type, column_default)
		FROM information_schema.columns
		WHERE table_schema = 'maintenance' AND table_name NOT LIKE 'river%'
		UNION ALL SELECT indexdef FROM pg_indexes
		WHERE schemaname = 'maintenance' AND tablename NOT LIKE 'river%') r (line)`).Scan(&all))
	return all
}

func tables(t *testing.T, d *repo.Database, pattern string) (names string) {
	t.Helper()
	assert.NoError(t, d.Jobs.Pool().QueryRow(t.Context(), `
		SELECT coalesce(string_agg(tablename, ' ' ORDER BY tablename), '') FROM pg_tables
		WHERE schemaname = 'maintenance' AND tablename ~ $1`, pattern).Scan(&names))
	return names
}

func TestMigrate_ForLooseForeignKeysMakesTheirTablesAndGoesToGitLabAndBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d, whole := emptyMain(t, true), emptyMain(t, false)
	migrateAs(t, whole, false)
	applied := migrateAs(t, d, true)
	assert.That(t, slices.Contains(applied, "main/00001_runs_and_switches.sql"), "applied %v", applied)
	got, gitLabs := strings.Fields(tables(t, d, "")), strings.Fields(forGitLab)
	for _, name := range append(gitLabs, "river_job", "river_queue") {
		assert.That(t, !slices.Contains(got, name), "%s is there", name)
	}
	for name := range strings.FieldsSeq(tables(t, whole, "^(?!river)")) {
		assert.That(t, slices.Contains(got, name) || slices.Contains(gitLabs, name), "%s is missing", name)
	}
	assert.NoError(t, d.CheckMigrated(ctx))
	again := migrateAs(t, d, true)
	assert.That(t, len(again) == 0, "applied %v again", again)

	assert.Must(d.Jobs.Pool().Exec(ctx, `INSERT INTO maintenance.feature_flags VALUES ('kept', true)`))(t)
	d.LooseForeignKeysOnly = false
	wantIs(t, "before", d.CheckMigrated(ctx), dberr.ErrNotMigrated)
	applied = migrateAs(t, d, false)
	assert.That(t, slices.Contains(applied, "main/00010_jobs_and_protections.sql") &&
		slices.Contains(applied, "queue/001_create_river_migration"), "applied %v", applied)
	assert.NoError(t, errors.Join(d.CheckMigrated(ctx), CheckQueueMigrated(ctx, d)))
	assert.Equal(t, relations(t, d), relations(t, whole), "the schema")
	back := migrateAs(t, d, true)
	assert.That(t, len(back) == 0, "back: applied %v", back)
	flags, err := d.Flags.FeatureFlags(ctx)
	if err := errors.Join(err, d.CheckMigrated(ctx)); err != nil || !flags["kept"] {
		t.Errorf("back: %v, %v", flags, err)
	}
	assert.That(t, tables(t, d, "^protected_targets$") != "", "the way back has dropped tables")
}
