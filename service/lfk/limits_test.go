package lfk_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// limits sets the rows that a run may delete and update. 0 is the default.
func limits(deletes, updates int64) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[lfk.Config](c)
		w.MaxDeletes, w.MaxUpdates = deletes, updates
	}
}

func wantOverLimit(t *testing.T, r run.Run, reason string) {
	t.Helper()
	servicetest.WantState(t, r, "succeeded")
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, reason),
		"over_limit %v, reason %q, want over_limit because of %q", r.OverLimit, r.Reason, reason)
}

func wantWithinLimits(t *testing.T, r run.Run) {
	t.Helper()
	servicetest.WantState(t, r, "succeeded")
	assert.That(t, !r.OverLimit && r.Reason == "", "over_limit %v, reason %q, want a normal end", r.OverLimit, r.Reason)
}

func TestLooseForeignKeysCleanup_StopsAtMaxUpdatesOverAllTablesAndHomes(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
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
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 5 FROM generate_series(1, 50) i`)
	e.Deleted("main", "p", 1, 5)
	s := e.Service("c:\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 1}\n", func(c *service.Config) {
		service.Settings[lfk.Config](c).MaxRuntime = 3 * time.Second
	})
	r := servicetest.RunBatch(t, s, "main")
	wantOverLimit(t, r, "max_runtime")
	deleted := r.Counts["deleted_rows"]
	// The eleventh statement ends after 3.3 s at the earliest.
	assert.That(t, deleted >= 1 && deleted <= 11, "%d rows deleted within 3 s at 300 ms each", deleted)
	servicetest.WantCounts(t, r, fmt.Sprintf("deleted_rows=%d incremented_records=5", deleted))
	e.Want("main", `SELECT count(*) FILTER (WHERE cleanup_attempts = 1) FROM loose_foreign_keys_deleted_records`, "5")
}

func TestLooseForeignKeysCleanup_StatementsDoNotShrinkWherePlanningTakesLong(t *testing.T) {
	t.Parallel()
	for pause, rows := range map[string]int{"0.4": 2000, "2.2": 1000} {
		t.Run(pause, func(t *testing.T) {
			e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
			// The constraint is computed whenever a statement is planned, once for each time that it names c.
			e.Exec("main", `CREATE FUNCTION slow() RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
				CREATE TABLE c (id bigint, p_id bigint) PARTITION BY HASH (id); CREATE INDEX ON c (p_id);
				CREATE TABLE c_0 PARTITION OF c (CHECK (slow())) FOR VALUES WITH (MODULUS 1, REMAINDER 0);
				INSERT INTO c SELECT i, 1 + i % 20 FROM generate_series(1, `+strconv.Itoa(rows)+`) i;
				CREATE TABLE sent (n bigint);
				CREATE FUNCTION sent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO sent SELECT count(*) FROM gone; RETURN NULL; END';
				CREATE TRIGGER sent AFTER DELETE ON c REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION sent();
				CREATE OR REPLACE FUNCTION slow() RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(`+pause+`); RETURN true; END'`)
			e.Deleted("main", "p", 1, 20)
			wantRun(t, e.Service(servicetest.OneChild, servicetest.Goal(time.Second), unhurried), "processed_records=20 deleted_rows="+strconv.Itoa(rows))
			e.Want("main", `SELECT count(*) < 4 FROM sent WHERE n > 0`, "true")
		})
	}
}

// One row of the 18 is deleted, and no other.
func TestLooseForeignKeysCleanup_StopsAtMaxDeletesCountsAttemptsAndTheFourthPushesBack(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, cleanup_attempts, consume_after)
		SELECT 'public.p', k, a, CASE WHEN k <> 2 THEN now() END FROM unnest(ARRAY[0, 1, 2, NULL, 3, 4]) WITH ORDINALITY x (a, k)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 6) k, generate_series(1, 3)`)
	const due = `SELECT string_agg(primary_key_value || ':' || cleanup_attempts || ':' || coalesce(consume_after::text, 'NULL'), ' ' ORDER BY primary_key_value)
		FROM loose_foreign_keys_deleted_records WHERE primary_key_value < 5`
	before := e.Value("main", strings.Replace(due, "cleanup_attempts", "coalesce(cleanup_attempts, 0) + 1", 1))
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild, limits(1, 0)),
		"deleted_rows=1 incremented_records=4 rescheduled_records=2"), "max_deletes")
	e.Want("main", `SELECT count(*) FROM c`, "17")
	e.Want("main", due, before)
	e.Want("main", `SELECT bool_and(cleanup_attempts = 0 AND status = 1 AND consume_after BETWEEN now() + interval '4 minutes' AND now() + interval '5 minutes')
		FROM loose_foreign_keys_deleted_records WHERE primary_key_value >= 5`, "true")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
}

func TestLooseForeignKeysCleanup_AnOverrunLeavesOtherParentsAlone(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 8); INSERT INTO d (p_id) SELECT 1 FROM generate_series(1, 8)`)
	e.Deleted("main", "p", 1, 1)
	e.Deleted("main", "o", 1, 1)
	const queue = `SELECT q::text || xmin FROM loose_foreign_keys_deleted_records q WHERE fully_qualified_table_name = 'public.%s'`
	before := map[string]string{}
	for _, parent := range []string{"p", "o"} {
		before[parent] = e.Value("main", fmt.Sprintf(queue, parent))
	}
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild+"d:\n  - {table: o, column: p_id, on_delete: async_delete}\n", limits(5, 0)),
		"deleted_rows=5 incremented_records=1"), "max_deletes")
	// Which parent is the first is drawn by lot.
	untouched := "p"
	if e.Value("main", `SELECT cleanup_attempts FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.p'`) == "1" {
		untouched = "o"
	}
	e.Want("main", fmt.Sprintf(queue, untouched), before[untouched])
}

func TestLooseForeignKeysCleanup_ParentsTakeTurns(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
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
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
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
	assert.That(t, len(first) >= 2, "always the same parent first: %v", first)
}

func TestLooseForeignKeysCleanup_TurboModeRaisesTheLimits(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	// A parent and a child each: a run on one database cleans the other's children too.
	s := e.Service("main_c:\n  - {table: main_p, column: p_id, on_delete: async_delete}\nci_c:\n  - {table: ci_p, column: p_id, on_delete: async_delete}\n",
		limits(2000, 0))
	assert.NoError(t, s.SetFeatureFlag(context.Background(), "loose_foreign_keys_turbo_mode_main", true))
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
		assert.That(t, r.TurboMode == (database == "main"), "turbo_mode on %s: %v", database, r.TurboMode)
	}
}

func TestLooseForeignKeysCleanup_ADefinitionWithoutRowsTakesOneStatement(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	var definitions strings.Builder
	for i := range 153 {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE child_%03d (p_id bigint)`, i))
		fmt.Fprintf(&definitions, "child_%03d:\n  - {table: p, column: p_id, on_delete: async_delete}\n", i)
	}
	e.Deleted("main", "p", 1, 500)
	wantRun(t, e.Service(definitions.String()), "processed_records=500")
	// On a busy machine a few are cancelled, and tried again with fewer keys.
	e.Want("main", `SELECT count(*) || ' of ' || percentile_disc(0.9) WITHIN GROUP (ORDER BY calls) FROM (
		SELECT sum(calls) AS calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ '"child_[0-9]+"' GROUP BY substring(query FROM 'child_[0-9]+')) c`, "153 of 1")
}

func TestLooseForeignKeysCleanup_DefinitionsMayBeMoreThanAConnectionRemembers(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main")
	e.Add("main", servicetest.Databases.Clone(t, servicetest.Migrated("main"))+"&statement_cache_capacity=32")
	var definitions, tables strings.Builder
	// Two statements for each: one that finds too many rows, and one that takes one at a time.
	for i := range 30 {
		fmt.Fprintf(&tables, "CREATE TABLE child_%03d (p_id bigint); INSERT INTO child_%03d VALUES (1), (1), (2), (2);", i, i)
		fmt.Fprintf(&definitions, "child_%03d:\n  - {table: p, column: p_id, on_delete: async_nullify, delete_limit: 1}\n", i)
	}
	e.Exec("main", tables.String())
	s := e.Service(definitions.String())
	for key := range 2 {
		e.Deleted("main", "p", key+1, key+1)
		wantRun(t, s, "processed_records=1 updated_rows=60")
	}
}

func TestLooseForeignKeysCleanup_WhatACommitUndoesIsNotCounted(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF OLD.p_id = 7 THEN RAISE 'not this one'; END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON c DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 10) k, generate_series(1, 3)`)
	e.Deleted("main", "p", 1, 10)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantRun(t, r, "failed", "processed_records=9 deleted_rows=27 rescheduled_records=1")
	assert.That(t, strings.Contains(r.Error, "c.p_id -> p on main: P0001"), "error %q", r.Error)
	e.WantQueue("main", "7")
	e.Want("main", `SELECT count(*) FROM c`, "3")
}

func TestLooseForeignKeysCleanup_BatchesSideBySideMayMeetInTheSameRows(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, owner_id bigint, editor_id bigint, state text);
		INSERT INTO c (owner_id, editor_id) SELECT 1 + i % 200, 1 + (i * 7) % 200 FROM generate_series(1, 4000) i;
		CREATE INDEX ON c (owner_id); CREATE INDEX ON c (editor_id)`)
	e.Deleted("main", "p", 1, 150)
	s := e.Service(`
c:
  - {table: p, column: owner_id, on_delete: update_column_to, target_column: state, target_value: orphaned}
  - {table: p, column: editor_id, on_delete: async_nullify}
  - {table: p, column: owner_id, on_delete: async_delete}
`, servicetest.Batches(10, 0))
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), "succeeded")
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), "succeeded")
	e.WantQueue("main", "")
	e.Want("main", `SELECT count(*) FROM c WHERE owner_id <= 150 OR editor_id <= 150`, "0")
	e.Want("main", `SELECT count(*) FROM c`, "1000")
}

// fewStatements reports whether the statements on the child were few, some of them for shares of the first
// batches, and some did not count first.
const fewStatements = `SELECT sum(calls) <= 16 AND sum(calls) FILTER (WHERE query !~ 'counted AS') >= 2
	FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
	WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`

func TestLooseForeignKeysCleanup_ShortBatchesShareStatementsThatDoNotCount(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 6000)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	wantRun(t, e.Service(servicetest.OneChild, servicetest.Patient), "processed_records=6000 deleted_rows=18000")
	e.Want("main", fewStatements, "true")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_SmallBatchesStaySmall(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 100)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
	// One for each batch of ten at least: more where statements take long.
	e.Want("main", `SELECT sum(calls) >= 10 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`, "true")
}

func TestLooseForeignKeysCleanup_MoreRowsThanExpectedStayWithinTheLimit(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 100)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 100 FROM generate_series(1, 5000)`)
	r := wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 1000)),
		"processed_records=99 deleted_rows=1000 incremented_records=1")
	wantOverLimit(t, r, "max_deletes")
	wantWithinLimits(t, wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=1 deleted_rows=4300"))
}

func TestLooseForeignKeysCleanup_RowsThatMayBeKeptAreCounted(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c1 (p_id bigint); INSERT INTO c1 SELECT generate_series(1, 100);
		CREATE TABLE c2 (p_id bigint) PARTITION BY RANGE (p_id); CREATE TABLE c2_low PARTITION OF c2 FOR VALUES FROM (1) TO (90);
		CREATE TABLE c2_high PARTITION OF c2 FOR VALUES FROM (90) TO (101); INSERT INTO c2 SELECT generate_series(1, 100);
		CREATE TABLE c3 (p_id bigint); INSERT INTO c3 SELECT generate_series(1, 94);
		CREATE TABLE heir () INHERITS (c3); INSERT INTO heir SELECT generate_series(95, 100)`)
	definitions, failures := "", []string{}
	for i, keeps := range []string{"c1", "c2_high", "heir"} {
		veto(e, keeps, "OLD.p_id = 99")
		e.Deleted("main", fmt.Sprint("p", i+1), 1, 100)
		definitions += fmt.Sprintf("c%d: [{table: p%[1]d, column: p_id, on_delete: async_delete}]\n", i+1)
		failures = append(failures, fmt.Sprintf("c%d.p_id -> p%[1]d on main: KEPT_BY_TRIGGER: trigger veto of %s "+
			"(exempt these rows, or disable the trigger or rule), 1 record", i+1, keeps))
	}
	wantFailedRun(t, e.Service(definitions, servicetest.Batches(10, 0)), strings.Join(failures, "; "),
		"processed_records=297 deleted_rows=297 rescheduled_records=3")
	e.WantQueue("main", "99 99 99")
	e.Want("main", `SELECT concat_ws(' ', (SELECT min(p_id) FROM c1), (SELECT min(p_id) FROM c2), (SELECT min(p_id) FROM c3))`, "99 99 99")
}

func TestLooseForeignKeysCleanup_ASlowStatementThatDoesNotCountIsTriedAgain(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 100)
	// Only a statement that is the first for this row is slow: the next one finds the sequence called.
	e.Exec("main", `CREATE SEQUENCE tries;
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF nextval(''tries'') = 1 THEN PERFORM pg_sleep(0.5); END IF; RETURN NULL; END';
		CREATE TRIGGER slow AFTER DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 100) EXECUTE FUNCTION slow()`)
	wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=100 deleted_rows=300")
	e.Want("main", `SELECT last_value > 1 FROM tries`, "true")
}

func TestLooseForeignKeysCleanup_LockedRowsOfAStatementThatDoesNotCountArePostponed(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 100)
	e.Hold(`SELECT FROM c WHERE p_id = 95 FOR UPDATE`)
	wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.WantQueue("main", "95")
}

func TestLooseForeignKeysCleanup_SLIs(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.NewDeletedParents(t, 10)
	e.Exec("main", `CREATE TABLE bad (o_id text)`)
	s := e.Service(servicetest.OneChild+"bad: [{table: o, column: missing, on_delete: async_delete}]\n", servicetest.With(func(c *lfk.Config) { c.MaxDeletes = 6 }))
	want := func(after string, satisfied, over, succeeded, failed int64) {
		t.Helper()
		for attributes, n := range map[string]int64{"database=main success=true": satisfied, "database=main success=false": over} {
			got := m.Counter("maintenance.sli.apdex", attributes)
			assert.That(t, got == n, "after %s: apdex %s is %d, want %d", after, attributes, got, n)
		}
		for attributes, n := range map[string]int64{"database=main error=false": succeeded, "database=main error=true": failed} {
			got := m.Counter("maintenance.sli.error", attributes)
			assert.That(t, got == n, "after %s: error %s is %d, want %d", after, attributes, got, n)
		}
	}
	servicetest.RunBatch(t, s, "main")
	want("a run over its limit", 0, 1, 1, 0)
	rows := m.Counter("maintenance.rows", "worker=loose_foreign_keys_cleanup database=main action=deleted")
	assert.That(t, rows == 6, "metric of deleted rows is %d, want 6", rows)
	makeDue(e)
	e.Exec("main", `DELETE FROM c; DELETE FROM loose_foreign_keys_deleted_records WHERE primary_key_value > 4`)
	servicetest.RunBatch(t, s, "main")
	want("a clean run", 1, 1, 2, 0)
	e.Deleted("main", "o", 1, 1)
	servicetest.RunBatch(t, s, "main")
	want("a failed run", 1, 1, 2, 1)
	servicetest.DryRun(t, s)
	// An unexpired row is a held lease, with any writer.
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now() + interval '1 hour'`)
	if r := e.Fire(s, servicetest.LooseForeignKeys); r.State != control.RunSkipped {
		t.Fatal(r.State)
	}
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	e.Exec("main", `INSERT INTO c (p_id) VALUES (77)`)
	e.Deleted("main", "p", 77, 77)
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	assert.Must(s.CancelRun(t.Context(), r.ID, ""))(t)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), control.RunCancelled)
	want("dry, skipped and cancelled runs", 1, 1, 2, 1)
}
