package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
)

// forGitLab are the tables of main that loose foreign keys do without, besides River's.
const forGitLab = "group_removals job_cancellations outside_paths protected_targets token_passes user_removals"

func emptyMain(t *testing.T, only bool) *repo.Database {
	t.Helper()
	url := databases.Clone(t, devdb.Template{Name: "bare"})
	d := must(repo.Open(t.Context(), "main", url))(t)
	t.Cleanup(d.Close)
	d.LooseForeignKeysOnly = only
	return d
}

func migrateAs(t *testing.T, d *repo.Database, only bool) []string {
	t.Helper()
	d.LooseForeignKeysOnly = only
	applied := must(Migrate(t.Context(), d))(t)
	return applied
}

// relations are the columns and indexes of the schema maintenance, but for River's.
func relations(t *testing.T, d *repo.Database) (all []string) {
	t.Helper()
	rows, err := d.Pool().Query(t.Context(), `
		SELECT format('%s.%s %s %s', table_name, column_name, data_type, column_default)
		FROM information_schema.columns
		WHERE table_schema = 'maintenance' AND table_name NOT LIKE 'river%'
		UNION ALL SELECT indexdef FROM pg_indexes
		WHERE schemaname = 'maintenance' AND tablename NOT LIKE 'river%' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var one string
		noError(t, rows.Scan(&one))
		all = append(all, one)
	}
	noError(t, rows.Err())
	return all
}

func tables(t *testing.T, d *repo.Database, pattern string) (names string) {
	t.Helper()
	err := d.Pool().QueryRow(t.Context(), `
		SELECT coalesce(string_agg(tablename, ' ' ORDER BY tablename), '') FROM pg_tables
		WHERE schemaname = 'maintenance' AND tablename ~ $1`, pattern).Scan(&names)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestMigrate_ForLooseForeignKeysAloneMakesOnlyTheirTables(t *testing.T) {
	t.Parallel()
	d := emptyMain(t, true)
	applied := migrateAs(t, d, true)
	if !slices.Contains(applied, "main/00001_runs_and_switches.sql") {
		t.Errorf("applied %v", applied)
	}
	got := strings.Fields(tables(t, d, ""))
	for _, name := range append(strings.Fields(forGitLab), "river_job", "river_queue") {
		if slices.Contains(got, name) {
			t.Errorf("%s is there", name)
		}
	}
	whole := emptyMain(t, false)
	migrateAs(t, whole, false)
	for name := range strings.FieldsSeq(tables(t, whole, "^(?!river)")) {
		if !slices.Contains(got, name) && !slices.Contains(strings.Fields(forGitLab), name) {
			t.Errorf("%s is missing", name)
		}
	}
	if err := d.CheckMigrated(t.Context()); err != nil {
		t.Error(err)
	}
	if again := migrateAs(t, d, true); len(again) > 0 {
		t.Errorf("applied %v again", again)
	}
}

func TestMigrate_GoesFromLooseForeignKeysToGitLabAndBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := emptyMain(t, true)
	migrateAs(t, d, true)
	must(d.Pool().Exec(ctx, `INSERT INTO maintenance.feature_flags VALUES ('kept', true)`))(t)
	d.LooseForeignKeysOnly = false
	if err := d.CheckMigrated(ctx); !errors.Is(err, repo.ErrNotMigrated) {
		t.Errorf("before: got %v, want ErrNotMigrated", err)
	}
	applied := migrateAs(t, d, false)
	if !slices.Contains(applied, "main/00010_jobs_and_protections.sql") ||
		!slices.Contains(applied, "queue/001_create_river_migration") {
		t.Errorf("applied %v", applied)
	}
	if err := errors.Join(d.CheckMigrated(ctx), CheckQueueMigrated(ctx, d)); err != nil {
		t.Error(err)
	}
	whole := emptyMain(t, false)
	migrateAs(t, whole, false)
	if got, want := relations(t, d), relations(t, whole); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if back := migrateAs(t, d, true); len(back) > 0 {
		t.Errorf("back: applied %v", back)
	}
	d.LooseForeignKeysOnly = true
	flags, err := d.FeatureFlags(ctx)
	if err := errors.Join(err, d.CheckMigrated(ctx)); err != nil || !flags["kept"] {
		t.Errorf("back: %v, %v", flags, err)
	}
	if tables(t, d, "^protected_targets$") == "" {
		t.Error("the way back has dropped tables")
	}
}
