package loosefk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_ADefinitionWithoutRowsTakesOneStatement(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	var definitions strings.Builder
	for i := range 153 {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE child_%03d (p_id bigint)`, i))
		fmt.Fprintf(&definitions, "child_%03d:\n  - {table: p, column: p_id, on_delete: async_delete}\n", i)
	}
	e.Deleted("main", "p", 1, 500)
	wantRun(t, e.Service(definitions.String()), "processed_records=500")
	e.Want("main", `SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ '"child_[0-9]+"'`, "153")
}

func TestLooseForeignKeysCleanup_DefinitionsMayBeMoreThanAConnectionRemembers(t *testing.T) {
	e := servicetest.New(parallel(t), "main")
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
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF OLD.p_id = 7 THEN RAISE 'not this one'; END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON c DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 10) k, generate_series(1, 3)`)
	e.Deleted("main", "p", 1, 10)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, r, "failed")
	servicetest.WantCounts(t, r, "processed_records=9 deleted_rows=27 rescheduled_records=1")
	if !strings.Contains(r.Error, "c.p_id -> p on main: P0001") {
		t.Errorf("error %q", r.Error)
	}
	e.WantQueue("main", "7")
	e.Want("main", `SELECT count(*) FROM c`, "3")
}

func TestLooseForeignKeysCleanup_BatchesSideBySideMayMeetInTheSameRows(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
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

func TestLooseForeignKeysCleanup_CascadesOfRealForeignKeysFollow(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `CREATE TABLE grandchild (c_id bigint REFERENCES c ON DELETE CASCADE)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 2 FROM generate_series(1, 10) i; INSERT INTO grandchild SELECT id FROM c, generate_series(1, 3)`)
	e.Deleted("main", "p", 1, 1)
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=1 deleted_rows=5")
	e.Want("main", `SELECT count(*) FROM grandchild`, "15")
}

// fewStatements says whether the statements on the child were few, some of them for shares of the first
// batches, and some did not count first.
const fewStatements = `SELECT sum(calls) <= 16 AND sum(calls) FILTER (WHERE query !~ 'counted AS') >= 2
	FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
	WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`

func TestLooseForeignKeysCleanup_ShortBatchesShareStatementsThatDoNotCount(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 6000)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=6000 deleted_rows=18000")
	e.Want("main", fewStatements, "true")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_SmallBatchesStaySmall(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 100)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
	// One for each batch of ten at least: more where statements take long.
	e.Want("main", `SELECT sum(calls) >= 10 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`, "true")
}

func TestLooseForeignKeysCleanup_MoreRowsThanExpectedStayWithinTheLimit(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 100)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 100 FROM generate_series(1, 5000)`)
	r := wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 1000)), "processed_records=99 deleted_rows=1000 incremented_records=1")
	wantOverLimit(t, r, "max_deletes")
	wantWithinLimits(t, wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=1 deleted_rows=4300"))
}

func TestLooseForeignKeysCleanup_RowsThatMayBeKeptAreCounted(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
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
			"(let it pass these rows, or disable it), 1 records", i+1, keeps))
	}
	wantFailedRun(t, e.Service(definitions, servicetest.Batches(10, 0)), strings.Join(failures, "; "),
		"processed_records=297 deleted_rows=297 rescheduled_records=3")
	e.WantQueue("main", "99 99 99")
	e.Want("main", `SELECT concat_ws(' ', (SELECT min(p_id) FROM c1), (SELECT min(p_id) FROM c2), (SELECT min(p_id) FROM c3))`, "99 99 99")
}

func TestLooseForeignKeysCleanup_ASlowStatementThatDoesNotCountIsTriedAgain(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 100)
	// Only a statement that is the first for this row is slow: the next one finds the sequence called.
	e.Exec("main", `CREATE SEQUENCE tries;
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF nextval(''tries'') = 1 THEN PERFORM pg_sleep(0.5); END IF; RETURN NULL; END';
		CREATE TRIGGER slow AFTER DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 100) EXECUTE FUNCTION slow()`)
	wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=100 deleted_rows=300")
	e.Want("main", `SELECT last_value > 1 FROM tries`, "true")
}

func TestLooseForeignKeysCleanup_LockedRowsOfAStatementThatDoesNotCountArePostponed(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 100)
	e.Hold(`SELECT FROM c WHERE p_id = 95 FOR UPDATE`)
	wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.WantQueue("main", "95")
}
