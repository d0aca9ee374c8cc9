package loosefk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_ADefinitionWithoutRowsTakesOneStatement(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	var definitions strings.Builder
	for i := range 153 {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE child_%03d (p_id bigint)`, i))
		fmt.Fprintf(&definitions, "child_%03d:\n  - {table: p, column: p_id, on_delete: async_delete}\n", i)
	}
	e.Deleted("main", "p", 1, 500)
	r := servicetest.RunBatch(t, e.Service(definitions.String()), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=500")
	e.Want("main", `SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ '"child_[0-9]+"'`, "153")
}

func TestLooseForeignKeysCleanup_DefinitionsMayBeMoreThanAConnectionRemembers(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main")
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
		servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=1 updated_rows=60")
	}
}

func TestLooseForeignKeysCleanup_WhatACommitUndoesIsNotCounted(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
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
	t.Parallel()
	e := servicetest.New(t, "main", "main")
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
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE grandchild (c_id bigint REFERENCES c ON DELETE CASCADE)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 2 FROM generate_series(1, 10) i; INSERT INTO grandchild SELECT id FROM c, generate_series(1, 3)`)
	e.Deleted("main", "p", 1, 1)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=5")
	e.Want("main", `SELECT count(*) FROM grandchild`, "15")
}
