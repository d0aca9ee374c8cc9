package loosefk_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// limits sets the rows that a run may delete and update; 0 is the default.
func limits(deletes, updates int64) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[loosefk.Config](c)
		w.MaxDeletes, w.MaxUpdates = deletes, updates
	}
}

func wantOverLimit(t *testing.T, r service.Run, reason string) {
	t.Helper()
	servicetest.WantState(t, r, "succeeded")
	if !r.OverLimit || !strings.Contains(r.Reason, reason) {
		t.Errorf("over_limit %v, reason %q, want over_limit because of %q", r.OverLimit, r.Reason, reason)
	}
}

func wantWithinLimits(t *testing.T, r service.Run) {
	t.Helper()
	servicetest.WantState(t, r, "succeeded")
	if r.OverLimit || r.Reason != "" {
		t.Errorf("over_limit %v, reason %q, want a normal end", r.OverLimit, r.Reason)
	}
}

func TestLooseForeignKeysCleanup_StopsAtMaxDeletes(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.NewOneChild(t)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 8)`)
	e.Deleted("main", "p", 1, 1)
	const queue = `SELECT cleanup_attempts || ' ' || (consume_after <= now()) FROM loose_foreign_keys_deleted_records`
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild, limits(2, 0)), "deleted_rows=2 incremented_records=1"), "max_deletes")
	e.Want("main", `SELECT count(*) FROM c`, "6")
	e.Want("main", queue, "1 true")
	if bad, good := m.Counter("maintenance.sli.apdex", "database=main success=false"), m.Counter("maintenance.sli.apdex", "success=true"); bad != 1 || good != 0 {
		t.Errorf("apdex: %d not satisfied, %d satisfied, want 1 and 0", bad, good)
	}
	if rows := m.Counter("maintenance.rows", "worker=loose_foreign_keys_cleanup database=main action=deleted"); rows != 2 {
		t.Errorf("metric of deleted rows is %d, want 2", rows)
	}
}

func TestLooseForeignKeysCleanup_StopsAtMaxUpdatesOverAllTablesAndHomes(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE b (p_id bigint); INSERT INTO b SELECT 1 FROM generate_series(1, 10);
		CREATE TABLE c (p_id bigint); INSERT INTO c SELECT 1 FROM generate_series(1, 3)`)
	e.Exec("ci", `CREATE TABLE d (p_id bigint, x integer); INSERT INTO d SELECT 1 FROM generate_series(1, 4)`)
	e.Deleted("main", "p", 1, 1)
	s := e.Service(`
b:
  - {table: p, column: p_id, on_delete: async_delete}
c:
  - {table: p, column: p_id, on_delete: async_nullify}
d:
  - {table: p, column: p_id, on_delete: update_column_to, target_column: x, target_value: 1}
`, limits(0, 5))
	r := wantRun(t, s, "deleted_rows=10 updated_rows=5 incremented_records=1")
	wantOverLimit(t, r, "max_updates")
	e.Want("main", `SELECT count(*) FROM c WHERE p_id IS NULL`, "3")
	e.Want("ci", `SELECT count(x) FROM d`, "2")

	wantWithinLimits(t, wantRun(t, s, "updated_rows=2 processed_records=1"))
}

func TestLooseForeignKeysCleanup_StopsAtMaxRuntime(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 5 FROM generate_series(1, 50) i`)
	e.Deleted("main", "p", 1, 5)
	s := e.Service("c:\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 1}\n", func(c *service.Config) {
		service.Settings[loosefk.Config](c).MaxRuntime = 3 * time.Second
	})
	r := servicetest.RunBatch(t, s, "main")
	wantOverLimit(t, r, "max_runtime")
	deleted := r.Counts["deleted_rows"]
	// The eleventh statement ends after 3.3 s at the earliest.
	if deleted < 1 || deleted > 11 {
		t.Errorf("%d rows deleted within 3 s at 300 ms each", deleted)
	}
	servicetest.WantCounts(t, r, fmt.Sprintf("deleted_rows=%d incremented_records=5", deleted))
	e.Want("main", `SELECT count(*) FILTER (WHERE cleanup_attempts = 1) FROM loose_foreign_keys_deleted_records`, "5")
}

func TestLooseForeignKeysCleanup_AnOverrunCountsAttemptsAndTheFourthPushesBack(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, cleanup_attempts, consume_after)
		SELECT 'public.p', k, a, CASE WHEN k <> 2 THEN now() END FROM unnest(ARRAY[0, 1, 2, NULL, 3, 4]) WITH ORDINALITY x (a, k)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 6) k, generate_series(1, 3)`)
	const due = `SELECT string_agg(primary_key_value || ':' || cleanup_attempts || ':' || coalesce(consume_after::text, 'NULL'), ' ' ORDER BY primary_key_value)
		FROM loose_foreign_keys_deleted_records WHERE primary_key_value < 5`
	before := e.Value("main", strings.Replace(due, "cleanup_attempts", "coalesce(cleanup_attempts, 0) + 1", 1))
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild, limits(1, 0)), "deleted_rows=1 incremented_records=4 rescheduled_records=2"), "max_deletes")
	e.Want("main", due, before)
	e.Want("main", `SELECT bool_and(cleanup_attempts = 0 AND status = 1 AND consume_after BETWEEN now() + interval '4 minutes' AND now() + interval '5 minutes')
		FROM loose_foreign_keys_deleted_records WHERE primary_key_value >= 5`, "true")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
}

func TestLooseForeignKeysCleanup_AnOverrunLeavesOtherParentsAlone(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 8); INSERT INTO d (p_id) SELECT 1 FROM generate_series(1, 8)`)
	e.Deleted("main", "p", 1, 1)
	e.Deleted("main", "o", 1, 1)
	const queue = `SELECT q::text || xmin FROM loose_foreign_keys_deleted_records q WHERE fully_qualified_table_name = 'public.%s'`
	before := map[string]string{}
	for _, parent := range []string{"p", "o"} {
		before[parent] = e.Value("main", fmt.Sprintf(queue, parent))
	}
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild+"d:\n  - {table: o, column: p_id, on_delete: async_delete}\n", limits(5, 0)), "deleted_rows=5 incremented_records=1"), "max_deletes")
	// Which parent is the first is drawn by lot.
	untouched := "p"
	if e.Value("main", `SELECT cleanup_attempts FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.p'`) == "1" {
		untouched = "o"
	}
	e.Want("main", fmt.Sprintf(queue, untouched), before[untouched])
}

func TestLooseForeignKeysCleanup_ParentsTakeTurns(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint)`)
	for _, table := range []string{"c", "d"} {
		e.Exec("main", `INSERT INTO `+table+` (p_id) SELECT i FROM generate_series(1, 100) i`)
	}
	e.Deleted("main", "p", 1, 100)
	e.Deleted("main", "o", 1, 100)
	s := e.Service(servicetest.OneChild+"d:\n  - {table: o, column: p_id, on_delete: async_delete}\n", servicetest.Batches(10, 60))
	wantOverLimit(t, wantRun(t, s, "deleted_rows=60 processed_records=60"), "max_deletes")
	e.Want("main", `SELECT (SELECT count(*) FROM c) || ' ' || (SELECT count(*) FROM d)`, "70 70")
}

func TestLooseForeignKeysCleanup_TheOrderOfParentsIsDrawnForEachRun(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	definitions := ""
	for i := range 4 {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE c%d (p_id bigint); INSERT INTO c%d SELECT i FROM generate_series(1, 30) i`, i, i))
		e.Deleted("main", fmt.Sprintf("p%d", i), 1, 30)
		definitions += fmt.Sprintf("c%d:\n  - {table: p%d, column: p_id, on_delete: async_delete}\n", i, i)
	}
	s := e.Service(definitions, servicetest.Batches(1, 1))
	first := map[string]bool{}
	// All 25 runs begin with the same parent once in 4 to the 24th.
	for range 25 {
		r := wantRun(t, s, "deleted_rows=1 processed_records=1")
		first[r.Tables[0].Table] = true
	}
	if len(first) < 2 {
		t.Errorf("always the same parent first: %v", first)
	}
}

func TestLooseForeignKeysCleanup_TurboModeRaisesTheLimits(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
	// A parent and a child each: a run on one database cleans the other's children too.
	s := e.Service("main_c:\n  - {table: main_p, column: p_id, on_delete: async_delete}\nci_c:\n  - {table: ci_p, column: p_id, on_delete: async_delete}\n",
		limits(2000, 0))
	servicetest.NoError(t, s.SetFeatureFlag(context.Background(), "loose_foreign_keys_turbo_mode_main", true))
	for database, lease := range map[string]string{"main": "00:00:55", "ci": "00:00:40"} {
		e.Exec(database, fmt.Sprintf(`CREATE TABLE %[1]s_c (p_id bigint); INSERT INTO %[1]s_c SELECT i / 100 FROM generate_series(0, 2999) i;
			CREATE INDEX ON %[1]s_c (p_id); CREATE TABLE leases (ttl interval);
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO leases SELECT expires_at - renewed_at FROM maintenance.leases; RETURN NULL; END $$;
			CREATE TRIGGER note AFTER DELETE ON %[1]s_c FOR EACH STATEMENT EXECUTE FUNCTION note()`, database))
		e.Deleted(database, database+"_p", 0, 29)
		r := servicetest.RunBatch(t, s, database)
		e.Want(database, `SELECT string_agg(DISTINCT ttl::text, ' ') FROM leases`, lease)
		if database == "main" {
			wantWithinLimits(t, r)
			servicetest.WantCounts(t, r, "deleted_rows=3000 processed_records=30")
		} else {
			wantOverLimit(t, r, "max_deletes")
			e.Want("ci", `SELECT count(*) FROM ci_c`, "1000")
		}
		if r.TurboMode != (database == "main") {
			t.Errorf("turbo_mode on %s: %v", database, r.TurboMode)
		}
	}
}
