package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
)

func TestMigrate_MakesOursAndRiversTablesOnceInTheSchemaMaintenance(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d, err := repo.Open(ctx, "main", databases.Clone(t, devdb.Template{Name: "bare"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := CheckQueueMigrated(ctx, d); !errors.Is(err, repo.ErrNotMigrated) {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
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
		if o.err != nil {
			t.Error(o.err)
		}
	}
	slices.Sort(applied)
	if n := len(applied); n != len(slices.Compact(slices.Clone(applied))) || !slices.Contains(applied, "queue/001_create_river_migration") || !strings.HasPrefix(applied[0], "every/") {
		t.Errorf("applied %v", applied)
	}
	if err := CheckQueueMigrated(ctx, d); err != nil {
		t.Error(err)
	}
	var elsewhere int
	err = d.Pool().QueryRow(ctx, `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE relname LIKE 'river%' AND nspname <> 'maintenance'`).Scan(&elsewhere)
	if err != nil || elsewhere != 0 {
		t.Errorf("%d tables elsewhere, %v", elsewhere, err)
	}
}

func TestCheckQueueMigrated_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := newLab(t)
	l.exec(`DELETE FROM maintenance.river_migration WHERE version = (SELECT max(version) FROM maintenance.river_migration)`)
	if err := CheckQueueMigrated(ctx, l.main); !errors.Is(err, repo.ErrNotMigrated) {
		t.Errorf("older: got %v, want ErrNotMigrated", err)
	}
	gone := must(repo.Open(ctx, "main", "postgres://127.0.0.1:1/main"))(t)
	t.Cleanup(gone.Close)
	if err := CheckQueueMigrated(ctx, gone); !errors.Is(err, repo.ErrUnreachable) {
		t.Errorf("down: got %v, want ErrUnreachable", err)
	}
}

// A connection that is cut in the middle says nothing about the tables: the server tries again.
func TestCheckQueueMigrated_CutInTheMiddleIsUnreachable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := newLab(t)
	locker := must(pgx.Connect(ctx, l.url))(t)
	t.Cleanup(func() { _ = locker.Close(ctx) })
	must(locker.Exec(ctx, `BEGIN; LOCK TABLE maintenance.river_migration IN ACCESS EXCLUSIVE MODE`))(t)
	checked := make(chan error, 1)
	go func() { checked <- CheckQueueMigrated(ctx, l.main) }()
	devdb.Eventually(t, "the check to wait for the table", func() bool {
		var ended bool
		err := l.sql.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&ended)
		return err == nil && ended
	})
	if err := <-checked; !errors.Is(err, repo.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}
