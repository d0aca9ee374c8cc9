package loosefk_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_ActionsChangeTheRowsOfDeletedParentsOnly(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	for i, test := range []struct{ entry, counts, left string }{
		{`on_delete: async_delete`, "deleted_rows=4", "3:x 3:y 4:x 4:y N:x N:y"},
		{`on_delete: async_nullify`, "updated_rows=4", "3:x 3:y 4:x 4:y N:x N:x N:x N:y N:y N:y"},
		{`on_delete: update_column_to, target_column: kind, target_value: z`, "updated_rows=4", "1:z 1:z 2:z 2:z 3:x 3:y 4:x 4:y N:x N:y"},
		{
			`on_delete: async_delete, conditions: [{column: kind, value: x}, {column: id, value: 1}]`, "deleted_rows=1",
			"1:y 2:x 2:y 3:x 3:y 4:x 4:y N:x N:y",
		},
	} {
		c := fmt.Sprint("c", i)
		e.Exec("main", `CREATE TABLE `+c+` (id bigserial PRIMARY KEY, p_id bigint, kind text);
			INSERT INTO `+c+` (p_id, kind) SELECT p, k FROM unnest(ARRAY[1, 2, 3, 4, NULL]) p, unnest('{x,y}'::text[]) k ORDER BY p, k`)
		e.Deleted("main", "p", 1, 2)
		wantRun(t, e.Service(c+": [{table: p, column: p_id, "+test.entry+"}]"), "processed_records=2 "+test.counts)
		e.WantQueue("main", "")
		e.Want("main", `SELECT string_agg(coalesce(p_id::text, 'N') || ':' || kind, ' ' ORDER BY coalesce(p_id::text, 'N'), kind) FROM `+c, test.left)
	}
}

func TestLooseForeignKeysCleanup_RowsAlreadyAtTheTargetAreNotRewritten(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint, status smallint)`)
	e.Exec("main", `INSERT INTO c (p_id, status) VALUES (1, 4), (1, 4), (2, 4), (2, NULL), (2, 5), (3, NULL)`)
	const definitions = "c:\n  - {table: p, column: p_id, on_delete: update_column_to, target_column: status, target_value: 4}\n"
	const rows = `SELECT string_agg(c::text || xmin, ' ' ORDER BY id) FROM c WHERE p_id = 1`
	before := e.Value("main", rows)
	e.Deleted("main", "p", 1, 1)
	s := e.Service(definitions)
	wantRun(t, s, "processed_records=1")
	e.Want("main", rows, before)

	// NULL is not at the target.
	e.Deleted("main", "p", 2, 2)
	wantRun(t, s, "processed_records=1 updated_rows=2")
	e.Want("main", `SELECT string_agg(coalesce(status::text, 'N'), ' ' ORDER BY id) FROM c`, "4 4 4 4 4 N")
}

// shapes are tables c of every shape, each with 40 rows for the keys 0 to 9.
var shapes = map[string]string{
	"composite_key": `CREATE TABLE c (a integer, b text, p_id bigint, PRIMARY KEY (a, b));
		INSERT INTO c SELECT i / 2, i % 2, i % 10 FROM generate_series(1, 40) i`,
	"no_key":     `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 10 FROM generate_series(1, 40) i`,
	"equal_rows": `CREATE TABLE c (p_id bigint, x text); INSERT INTO c SELECT i % 10, 'same' FROM generate_series(1, 40) i`,
	"leaves_of_two_levels": `CREATE TABLE c (id bigserial, p_id bigint, leaf integer, PRIMARY KEY (id, leaf)) PARTITION BY LIST (leaf);
		CREATE TABLE c_0 PARTITION OF c FOR VALUES IN (0);
		CREATE TABLE c_1 (leaf integer NOT NULL, gone text, p_id bigint, id bigint NOT NULL);
		ALTER TABLE c_1 DROP COLUMN gone; ALTER TABLE c ATTACH PARTITION c_1 FOR VALUES IN (1);
		CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2) PARTITION BY RANGE (id);
		CREATE TABLE c_2_a PARTITION OF c_2 FOR VALUES FROM (0) TO (20);
		CREATE TABLE c_2_b PARTITION OF c_2 DEFAULT;
		INSERT INTO c (p_id, leaf) SELECT i / 4, i % 4 % 3 FROM generate_series(0, 39) i`,
	"leaves_by_parent": `CREATE TABLE c (p_id bigint) PARTITION BY HASH (p_id);
		CREATE TABLE c_0 PARTITION OF c FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		INSERT INTO c SELECT i % 10 FROM generate_series(1, 40) i`,
	"inherited": `CREATE TABLE c (p_id bigint); CREATE TABLE c_0 () INHERITS (c);
		INSERT INTO c SELECT i % 10 FROM generate_series(1, 20) i; INSERT INTO c_0 SELECT i % 10 FROM generate_series(1, 20) i`,
}

func TestLooseForeignKeysCleanup_CleansTablesOfEveryShape(t *testing.T) {
	for _, action := range []string{"async_delete", "async_nullify"} {
		for _, limit := range []string{"", ", delete_limit: 3"} {
			t.Run(action+limit, func(t *testing.T) {
				e := servicetest.New(parallel(t), servicetest.Small, "main")
				definitions := ""
				for name, create := range shapes {
					e.Exec("main", regexp.MustCompile(`\bc\b|\bc_`).ReplaceAllStringFunc(create, func(c string) string { return name + c[1:] }))
					definitions += fmt.Sprintf("%s:\n  - {table: p, column: p_id, on_delete: %s%s}\n", name, action, limit)
				}
				e.Deleted("main", "p", 2, 4)
				r := servicetest.RunBatch(t, e.Service(definitions), "main")
				servicetest.WantState(t, r, "succeeded")
				e.WantQueue("main", "")
				left := "28"
				if action == "async_nullify" {
					servicetest.WantCounts(t, r, "processed_records=3 updated_rows=72")
					left = "40"
				} else {
					servicetest.WantCounts(t, r, "processed_records=3 deleted_rows=72")
				}
				for name := range shapes {
					e.Want("main", `SELECT count(*) FROM `+name+` WHERE p_id BETWEEN 2 AND 4`, "0")
					e.Want("main", `SELECT count(p_id) FROM `+name, "28")
					e.Want("main", `SELECT count(*) FROM `+name, left)
				}
			})
		}
	}
}

func TestLooseForeignKeysCleanup_LeavesRowsOfLiveParentsThatShareACtid(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint, leaf integer, x text) PARTITION BY LIST (leaf);
		CREATE TABLE c_0 PARTITION OF c FOR VALUES IN (0);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
		INSERT INTO c SELECT CASE WHEN leaf = 0 THEN 1 ELSE 2 END, leaf, i FROM generate_series(0, 1) leaf, generate_series(1, 50) i`)
	e.Deleted("main", "p", 1, 1)
	wantRun(t, e.Service("c:\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 7}\n"), "processed_records=1 deleted_rows=50")
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "50 2")
}

func TestLooseForeignKeysCleanup_AppliesBothDefinitionsOfAChild(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, owner_id bigint, editor_id integer, tester_id smallint, state text)`)
	e.Exec("main", `INSERT INTO c (owner_id, editor_id, tester_id) VALUES (1, 2, 3), (2, 1, 3), (2, 3, 1), (1, 1, 1), (2, 2, 2)`)
	e.Deleted("main", "p", 1, 1)
	r := wantRun(t, e.Service(`
c:
  - {table: p, column: editor_id, on_delete: async_nullify}
  - {table: p, column: tester_id, on_delete: update_column_to, target_column: state, target_value: untested}
  - {table: p, column: owner_id, on_delete: async_delete}
`), "processed_records=1 deleted_rows=2 updated_rows=4")
	e.Want("main", `SELECT string_agg(c::text, ' ' ORDER BY id) FROM c`, "(2,2,,3,) (3,2,3,1,untested) (5,2,2,2,)")
	if len(r.Tables) != 1 || r.Tables[0].Table != "c" || r.Tables[0].Deleted != 2 || r.Tables[0].Updated != 4 {
		t.Errorf("tables %+v, want c with 2 deleted, 4 updated", r.Tables)
	}
}

func TestLooseForeignKeysCleanup_NoStatementExceedsDeleteLimit(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE sizes (child text, n bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO sizes SELECT TG_TABLE_NAME, count(*) FROM old_table; RETURN NULL; END $$`)
	definitions := ""
	for action, event := range map[string]string{
		"async_delete": "DELETE", "async_nullify": "UPDATE", "update_column_to, target_column: x, target_value: 1": "UPDATE",
	} {
		for _, keys := range []int{1, 7, 100} {
			child := fmt.Sprintf("c_%s_%d", action[6:9], keys)
			e.Exec("main", strings.ReplaceAll(`CREATE TABLE child (id bigserial, p_id bigint, x integer, leaf integer) PARTITION BY LIST (leaf);
				CREATE TABLE child_0 PARTITION OF child FOR VALUES IN (0); CREATE TABLE child_1 PARTITION OF child FOR VALUES IN (1);
				CREATE INDEX ON child (p_id); CREATE TRIGGER note AFTER `+event+` ON child REFERENCING OLD TABLE AS old_table
					FOR EACH STATEMENT EXECUTE FUNCTION note()`, "child", child))
			e.Exec("main", `INSERT INTO `+child+` (p_id, leaf) SELECT 1 + i % $1::int, i / 2 % 2 FROM generate_series(0, 99) i`, keys)
			e.Deleted("main", "p_of_"+child, 1, keys)
			definitions += child + ": [{table: p_of_" + child + ", column: p_id, delete_limit: 20, on_delete: " + action + "}]\n"
		}
	}
	wantRun(t, e.Service(definitions), "processed_records=324 deleted_rows=300 updated_rows=600")
	e.Want("main", `SELECT count(DISTINCT child) || ' ' || max(n) || ' ' || sum(n) FROM sizes`, "9 20 900")
}

func TestLooseForeignKeysCleanup_CleansEveryHomeBeforeTheRecordGoes(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci", "sec")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
		e.Exec(database, `INSERT INTO c (p_id) SELECT i % 5 FROM generate_series(1, 50) i`)
	}
	e.Exec("ci", `CREATE TABLE only_ci (p_id bigint); INSERT INTO only_ci VALUES (1), (4)`)
	e.Deleted("main", "p", 1, 3)
	wantRun(t, e.Service(servicetest.OneChild+"only_ci:\n  - {table: p, column: p_id, on_delete: async_delete}\n"), "processed_records=3 deleted_rows=61")
	for _, database := range []string{"main", "ci"} {
		e.Want(database, `SELECT count(*) FROM c WHERE p_id BETWEEN 1 AND 3`, "0")
		e.Want(database, `SELECT count(*) FROM c`, "20")
		e.Want(database, `SELECT count(*) || name || (max(expires_at) <= now()) FROM maintenance.leases GROUP BY name`, "1loose_foreign_keys_cleanup/maintrue")
	}
	e.Want("ci", `SELECT p_id FROM only_ci`, "4")
	e.Want("sec", `SELECT count(*) FROM maintenance.leases`, "0")
}

func TestLooseForeignKeysCleanup_ChildrenElsewhereGoBeforeThoseBesideTheQueue(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1);
			CREATE TABLE clock (at timestamptz);
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO clock VALUES (clock_timestamp()); RETURN NULL; END $$;
			CREATE TRIGGER note AFTER DELETE ON c FOR EACH ROW EXECUTE FUNCTION note()`)
	}
	for _, queue := range []string{"main", "ci"} {
		e.Deleted(queue, "p", 1, 1)
		other := map[string]string{"main": "ci", "ci": "main"}[queue]
		servicetest.WantCounts(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild), queue), "processed_records=1 deleted_rows=2")
		if first, last := e.Value(other, `SELECT max(at) FROM clock`), e.Value(queue, `SELECT max(at) FROM clock`); first >= last {
			t.Errorf("on %s at %s, on %s at %s, want the queue's own database last", other, first, queue, last)
		}
		e.Exec("main", `INSERT INTO c VALUES (1)`)
		e.Exec("ci", `INSERT INTO c VALUES (1)`)
	}
}
