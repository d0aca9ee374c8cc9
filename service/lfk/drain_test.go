package lfk_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// recording notes the deletions of rows of a table of main, as its application does.
func recording(e *servicetest.Estate, table string) {
	e.T.Helper()
	e.Exec("main", `CREATE TRIGGER `+table+`_loose_fk_trigger AFTER DELETE ON `+table+` REFERENCING OLD TABLE AS old_table
		FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`)
}

func TestLooseForeignKeysCleanup_ARunWorksWhatItsOwnDeletionsRecord(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	definitions := ""
	for i, table := range []string{"d1", "d2", "d3", "d4"} {
		parent := "p"
		if i > 0 {
			parent = "d" + string(rune('0'+i))
		}
		e.Exec("main", `CREATE TABLE `+table+` (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON `+table+` (p_id)`)
		e.Exec("main", `INSERT INTO `+table+` (p_id) SELECT 1 + i / 2 FROM generate_series(0, 2 * $1::int - 1) i`, 50<<i)
		recording(e, table)
		definitions += table + ": [{table: " + parent + ", column: p_id, on_delete: async_delete}]\n"
	}
	e.Deleted("main", "p", 1, 40)
	r := servicetest.RunBatch(t, e.Service(definitions, servicetest.Batches(30, 0)), "main")
	wantWithinLimits(t, r)
	// d4 records its deletions, too, and has no definition.
	servicetest.WantCounts(t, r, "processed_records=600 deleted_rows=1200")
	for table, left := range map[string]string{"d1": "20", "d2": "40", "d3": "80", "d4": "160"} {
		e.Want("main", "SELECT count(*) FROM "+table, left)
	}
	e.Want("main", `SELECT string_agg(DISTINCT fully_qualified_table_name, ' ') FROM loose_foreign_keys_deleted_records`, "public.d4")
}

func TestLooseForeignKeysCleanup_ATableThatIsItsOwnParentIsDoneInOneRun(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE tree (id bigserial PRIMARY KEY, parent_id bigint); CREATE INDEX ON tree (parent_id)`)
	recording(e, "tree")
	// A chain of 60 below 1, and a bush below 1001.
	e.Exec("main", `INSERT INTO tree (id, parent_id) SELECT i, i - 1 FROM generate_series(1, 60) i`)
	e.Exec("main", `INSERT INTO tree (id, parent_id) SELECT 1000 + i, 1000 + i / 3 FROM generate_series(1, 900) i`)
	e.Exec("main", `DELETE FROM tree WHERE id IN (1, 1001)`)
	r := servicetest.RunBatch(t, e.Service("tree: [{table: tree, column: parent_id, on_delete: async_delete}]\n", servicetest.Batches(100, 0)), "main")
	wantWithinLimits(t, r)
	e.WantQueue("main", "")
	e.Want("main", `SELECT count(*) FROM tree WHERE id <= 60 OR id = 1003`, "0")
	e.Want("main", `SELECT count(*) FROM tree t WHERE parent_id > 1000 AND NOT EXISTS (SELECT FROM tree p WHERE p.id = t.parent_id)`, "0")
}

// In mid-run: a record that commits late, with an older time and a lower id than what has been
// read. One of a parent that had none. One of a parent that was through.
func TestLooseForeignKeysCleanup_WhatIsRecordedWhileItWorksBelongsToTheRun(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (o_id bigint); INSERT INTO d VALUES (1), (2); CREATE TABLE f (q_id bigint); INSERT INTO f VALUES (1), (2), (3);
		INSERT INTO c (p_id) SELECT generate_series(1, 20)`)
	late := e.HoldThenCommit(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 3)`)
	e.Deleted("main", "q", 1, 1)
	e.Deleted("main", "p", 4, 20)
	release := e.Hold(`SELECT FROM c WHERE p_id = 19 FOR UPDATE`)
	s := e.Service(servicetest.OneChild + "d: [{table: o, column: o_id, on_delete: async_delete}]\n" +
		"f: [{table: q, column: q_id, on_delete: async_delete}]\n")
	begun := servicetest.Begin(t, s, "main")
	e.Eventually("main", `SELECT count(*) = 0 FROM f WHERE q_id = 1`, "true")
	e.Eventually("main", anyWaits, "true")
	late()
	e.Deleted("main", "o", 1, 1)
	e.Deleted("main", "q", 2, 2)
	release()
	r := servicetest.Ended(t, s, begun.ID)
	wantWithinLimits(t, r)
	servicetest.WantCounts(t, r, "processed_records=21 deleted_rows=21")
	e.WantQueue("main", "")
}

// Records that a run has postponed wait for the next one, also if they are due again before the run
// has ended.
func TestLooseForeignKeysCleanup_WhatARunPutsOffIsNotItsOwnAgain(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, 6);
		CREATE FUNCTION soon() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.consume_after = clock_timestamp(); RETURN NEW; END';
		CREATE TRIGGER soon BEFORE UPDATE ON loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION soon()`)
	e.Mine("c", "OLD.p_id = 2", "23514")
	e.Hold(`SELECT FROM c WHERE p_id = 3 FOR UPDATE`)
	e.Deleted("main", "p", 1, 3)
	// Put off by an earlier run, and due again while this one is running: recorded before it, and not
	// due at its start.
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		VALUES ('public.p', 4, clock_timestamp() + interval '1 hour');
		CREATE FUNCTION due() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			UPDATE loose_foreign_keys_deleted_records SET consume_after = clock_timestamp() WHERE primary_key_value = 4; RETURN NULL; END $$;
		CREATE TRIGGER due AFTER DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 1) EXECUTE FUNCTION due()`)
	wantFailedRun(t, e.Service(servicetest.OneChild), "c.p_id -> p on main: 23514 check_violation, 1 record",
		"processed_records=1 deleted_rows=1 rescheduled_records=2")
	e.WantQueue("main", "2 3 4")
	e.Want("main", `SELECT bool_and(consume_after <= clock_timestamp()) FROM loose_foreign_keys_deleted_records`, "true")
	e.Want("main", failuresByKey, "2 1 1 c.p_id -> p 23514")
}

// Every deletion records another one: only a limit ends that.
func TestLooseForeignKeysCleanup_DeletionsWithoutEndAreEndedByALimit(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for _, limit := range []string{"max_deletes", "max_runtime"} {
		t.Run(limit, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); CREATE FUNCTION once_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO c (p_id) SELECT p_id + 1 FROM old_table;
				INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT 'public.p', p_id + 1 FROM old_table;
				RETURN NULL; END $$;
				CREATE TRIGGER once_more AFTER DELETE ON c REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION once_more();
				INSERT INTO c (p_id) VALUES (1)`)
			e.Deleted("main", "p", 1, 1)
			change := limits(30, 0)
			if limit == "max_runtime" {
				change = func(c *service.Config) { service.Settings[lfk.Config](c).MaxRuntime = time.Second }
			}
			r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, change), "main")
			wantOverLimit(t, r, limit)
			n := r.Counts["deleted_rows"]
			assert.That(t, (limit != "max_deletes" || n == 30) && n != 0 && r.Counts["processed_records"] == n, "counts %v", r.Counts)
			e.WantQueue("main", e.Value("main", `SELECT p_id FROM c`))
		})
	}
}

func TestLooseForeignKeysCleanup_AHeavyKeyDoesNotHoldUpItsBatch(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	s := e.Service(servicetest.OneChild+"d:\n  - {table: p, column: p_id, on_delete: async_nullify}\n", limits(2000, 0), servicetest.Patient)
	for _, position := range []int{1, 250, 500} {
		e.Exec("main", `TRUNCATE c, d; DELETE FROM loose_foreign_keys_deleted_records; INSERT INTO d SELECT generate_series(1, 500)`)
		e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, 500) UNION ALL SELECT $1::int FROM generate_series(1, 3000)`, position)
		e.Deleted("main", "p", 1, 500)
		wantOverLimit(t, wantRun(t, s, "deleted_rows=2000 updated_rows=499 processed_records=499 incremented_records=1"), "max_deletes")
		e.WantQueue("main", fmt.Sprint(position))
	}
}

func TestLooseForeignKeysCleanup_HeavyKeysBeyondTheCapTakeTurnsWithTheOthers(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	// 30 heavy keys, and statements of 20 rows.
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 30) k, generate_series(1, 500)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(31, 100) i`)
	e.Deleted("main", "p", 1, 100)
	wantOverLimit(t, wantRun(t, e.Service("c:\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 20}\n", limits(1000, 0)),
		"deleted_rows=1000 processed_records=70 incremented_records=30"), "max_deletes")
	e.Want("main", `SELECT max(n) - min(n) <= 1 FROM (SELECT count(*) AS n FROM c GROUP BY p_id) x`, "true")
}

func TestLooseForeignKeysCleanup_SetAsideKeysGoOnUntilTheyAreDone(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT k FROM generate_series(1, 20) k, generate_series(1, k * k * 3)`)
	e.Exec("main", `INSERT INTO d (p_id) SELECT 21 - k FROM generate_series(1, 20) k, generate_series(1, k * k)`)
	e.Exec("main", `INSERT INTO c (p_id) VALUES (41); INSERT INTO d (p_id) VALUES (41)`)
	e.Deleted("main", "p", 1, 20)
	wantWithinLimits(t, wantRun(t, e.Service(servicetest.OneChild+"d:\n  - {table: p, column: p_id, on_delete: async_delete}\n",
		servicetest.Batches(7, 0)), "deleted_rows=11480 processed_records=20"))
	e.Want("main", `SELECT (SELECT count(*) FROM c) || ' ' || (SELECT count(*) FROM d)`, "1 1")
}

func TestLooseForeignKeysCleanup_LimitsHoldToTheRowWithBatchesSideBySide(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	for _, action := range []string{"async_delete", "async_nullify"} {
		t.Run(action, func(t *testing.T) {
			e.InTurn(t)
			for database, table := range map[string]string{"main": "c", "ci": "d"} {
				e.Exec(database, fmt.Sprintf(`CREATE TABLE %s (p_id bigint);
					INSERT INTO %s SELECT i %% 300 FROM generate_series(1, 3000) i; CREATE INDEX ON %s (p_id)`, table, table, table))
			}
			e.Deleted("main", "p", 0, 299)
			e.Deleted("main", "o", 0, 299)
			definitions := "c:\n  - {table: p, column: p_id, on_delete: " + action + "}\nd:\n  - {table: o, column: p_id, on_delete: " + action + "}\n"
			s := e.Service(definitions, servicetest.Batches(25, 0), func(c *service.Config) {
				w := service.Settings[lfk.Config](c)
				w.MaxDeletes, w.MaxUpdates = 4_123, 4_123
			})
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, "succeeded")
			assert.That(t, r.OverLimit && r.Counts["deleted_rows"]+r.Counts["updated_rows"] == 4_123,
				"over_limit %v, counts %v, want 4123 rows", r.OverLimit, r.Counts)
			if left := int64(600) - r.Counts["processed_records"]; e.Value("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`) != fmt.Sprint(left) {
				t.Errorf("%s records left, want %d", e.Value("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`), left)
			}
			assert.That(t, r.Counts["incremented_records"] <= 50,
				"%d records charged, though only two batches were in hand", r.Counts["incremented_records"])
			// Records that are gone from the queue have no rows left.
			for database, table := range map[string]string{"main": "c", "ci": "d"} {
				parent := map[string]string{"main": "p", "ci": "o"}[database]
				pending := e.Value("main", `SELECT array_agg(primary_key_value) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.`+parent+`'`)
				e.Want(database, fmt.Sprintf(`SELECT count(*) FROM %s WHERE p_id <> ALL (coalesce('%s'::bigint[], '{}'))`, table, pending), "0")
			}
		})
	}
}

func TestLooseForeignKeysCleanup_ALimitReachedByTheLastRowIsANormalEnd(t *testing.T) {
	t.Parallel()
	const deletesFirst = `
c:
  - {table: p, column: p_id, on_delete: async_delete}
d:
  - {table: p, column: p_id, on_delete: async_nullify}
x:
  - {table: p, column: p_id, on_delete: async_delete}
`
	const updatesFirst = `
d:
  - {table: p, column: p_id, on_delete: async_nullify}
c:
  - {table: p, column: p_id, on_delete: async_delete}
x:
  - {table: p, column: p_id, on_delete: async_nullify}
`
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE TABLE x (p_id bigint)`)
	for name, test := range map[string]struct {
		definitions      string
		deletes, updates int64
	}{
		"deletes":                 {updatesFirst, 12, 0},
		"deletes of small cap":    {strings.ReplaceAll(updatesFirst, "on_delete", "delete_limit: 5, on_delete"), 12, 0},
		"updates":                 {deletesFirst, 0, 6},
		"updates one by one":      {strings.ReplaceAll(deletesFirst, "on_delete", "delete_limit: 1, on_delete"), 0, 6},
		"limits beyond the rows":  {deletesFirst, 13, 7},
		"limit on the other side": {updatesFirst, 12, 7},
	} {
		t.Run(name, func(t *testing.T) {
			// Records that are not due do not make it over_limit.
			e.Exec("main", `TRUNCATE c, d; DELETE FROM loose_foreign_keys_deleted_records;
				INSERT INTO d (p_id) SELECT k FROM generate_series(2, 4) k, generate_series(1, 2);
				INSERT INTO c (p_id) SELECT k FROM generate_series(1, 3) k, generate_series(1, 4);
				INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
				VALUES ('public.p', 5, now() + interval '1 hour'), ('public.unknown', 6, now())`)
			e.Deleted("main", "p", 1, 4)
			s := e.Service(test.definitions, limits(test.deletes, test.updates))
			wantWithinLimits(t, wantRun(t, s, "deleted_rows=12 updated_rows=6 processed_records=4"))
			e.WantQueue("main", "5 6")
		})
	}
}

func TestLooseForeignKeysCleanup_DueRecordsLeftMakeItOverLimitEvenWithoutChildren(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) VALUES (1)`)
	e.Deleted("main", "p", 1, 3)
	const rest = `SELECT string_agg(q::text || xmin, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records q WHERE primary_key_value > 1`
	before := e.Value("main", rest)
	wantOverLimit(t, wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(1, 1)), "deleted_rows=1 processed_records=1"),
		"max_deletes")
	e.Want("main", rest, before)
}

func TestLooseForeignKeysCleanup_StatementsGrowUpToTheirBound(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 120000); CREATE TABLE sizes (id serial, n bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO sizes (n) SELECT count(*) FROM old_table HAVING count(*) > 0; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON c REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION note()`)
	e.Deleted("main", "p", 1, 1)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Patient, limits(1<<30, 1<<30)), "main")
	wantWithinLimits(t, r)
	e.Want("main", `SELECT sum(n) || ' ' || (max(n) <= 50000) || ' ' || (SELECT n FROM sizes ORDER BY id LIMIT 1) FROM sizes`, "120000 true 1000")
}
