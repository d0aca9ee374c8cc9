package lfk_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_ActionsChangeTheRowsOfDeletedParentsOnly(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
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
		e.Want("main", `SELECT string_agg(coalesce(p_id::text, 'N') || ':' || kind, ' ' ORDER BY coalesce(p_id::text, 'N'), kind) FROM `+c,
			test.left)
	}
}

func TestLooseForeignKeysCleanup_RowsAlreadyAtTheTargetAreNotRewritten(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
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

// Rows of living parents in one partition share their ctids with rows of deleted ones in another.
func TestLooseForeignKeysCleanup_CleansTablesOfEveryShape(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for _, action := range []string{"async_delete", "async_nullify"} {
		for _, limit := range []string{"", ", delete_limit: 3"} {
			t.Run(action+limit, func(t *testing.T) {
				e.InTurn(t)
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

func TestLooseForeignKeysCleanup_AppliesBothDefinitionsOfAChild(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
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
	assert.That(t, len(r.Tables) == 1 && r.Tables[0].Table == "c" && r.Tables[0].Deleted == 2 && r.Tables[0].Updated == 4,
		"tables %+v, want c with 2 deleted, 4 updated", r.Tables)
}

func TestLooseForeignKeysCleanup_NoStatementExceedsDeleteLimit(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
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
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci", "sec")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
		e.Exec(database, `INSERT INTO c (p_id) SELECT i % 5 FROM generate_series(1, 50) i`)
	}
	e.Exec("ci", `CREATE TABLE only_ci (p_id bigint); INSERT INTO only_ci VALUES (1), (4)`)
	e.Deleted("main", "p", 1, 3)
	wantRun(t, e.Service(servicetest.OneChild+"only_ci:\n  - {table: p, column: p_id, on_delete: async_delete}\n"),
		"processed_records=3 deleted_rows=61")
	for _, database := range []string{"main", "ci"} {
		e.Want(database, `SELECT count(*) FROM c WHERE p_id BETWEEN 1 AND 3`, "0")
		e.Want(database, `SELECT count(*) FROM c`, "20")
		e.Want(database, `SELECT count(*) || name || (max(expires_at) <= now()) FROM maintenance.leases GROUP BY name`, "1loose_foreign_keys_cleanup/maintrue")
	}
	e.Want("ci", `SELECT p_id FROM only_ci`, "4")
	e.Want("sec", `SELECT count(*) FROM maintenance.leases`, "0")
}

func TestLooseForeignKeysCleanup_ChildrenElsewhereGoBeforeThoseBesideTheQueue(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
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
		first, last := e.Value(other, `SELECT max(at) FROM clock`), e.Value(queue, `SELECT max(at) FROM clock`)
		assert.That(t, first < last, "on %s at %s, on %s at %s, want the queue's own database last", other, first, queue, last)
		e.Exec("main", `INSERT INTO c VALUES (1)`)
		e.Exec("ci", `INSERT INTO c VALUES (1)`)
	}
}

// The names of some types, written without their length, mean a length of one.
func TestLooseForeignKeys_ValuesOfFixedLengthAreNotCutOff(t *testing.T) {
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);
		CREATE TABLE c (p_id int, kind char(4), flags bit(3), done char(3)); CREATE INDEX ON c (p_id);
		INSERT INTO c VALUES (1, 'abcd', B'101', 'no'), (1, 'a', B'101', 'no'), (1, 'abcd', B'100', 'no')`)
	e.Install("p")
	e.Exec("main", "DELETE FROM p")
	const definition = `c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', ` +
		`conditions: [{column: kind, value: abcd}, {column: flags, value: "101"}]}]`
	servicetest.WantFindings(t, e.Keys(definition))
	wantRun(t, e.Service(definition), "processed_records=1 updated_rows=1")
	e.Want("main", "SELECT string_agg(concat_ws(' ', kind, flags, done), ', ' ORDER BY kind, flags) FROM c", "a    101 no , abcd 100 no , abcd 101 yes")
}

// A value that no row of the column can take is the definition's fault: no record is isolated, or dies of it.
func TestLooseForeignKeysCleanup_ATargetOutOfTheColumnsRangeIsNoFaultOfTheRecords(t *testing.T) {
	e, definitions, faults := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main"), "", []string{}
	for i, c := range []struct{ kind, value, error string }{
		{"smallint", "99999", "22003 numeric_value_out_of_range"},
		{"timestamptz", "999999-01-01", "22008 datetime_field_overflow"},
		{"timestamptz", "2024-02-30", "22008 datetime_field_overflow"},
		{"timestamptz", "soon", "22007 invalid_datetime_format"},
		{"boolean", "perhaps", "22P02 invalid_text_representation"},
	} {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE c%d (p_id integer, done %s); CREATE INDEX ON c%[1]d (p_id); INSERT INTO c%[1]d SELECT generate_series(1, 20)`, i, c.kind))
		e.Deleted("main", fmt.Sprint("p", i), 1, 20)
		definitions += fmt.Sprintf("c%d: [{table: p%[1]d, column: p_id, on_delete: update_column_to, target_column: done, target_value: '%s'}]\n", i, c.value)
		faults = append(faults, fmt.Sprintf("c%d.p_id -> p%[1]d on main: %s, 20 records", i, c.error))
	}
	wantFailedRun(t, e.Service(definitions), strings.Join(faults, "; "), "rescheduled_records=100")
	e.Want("main", `SELECT string_agg(DISTINCT failures || '/' || setbacks, ' ') FROM maintenance.record_failures`, "0/1")
}

func TestLooseForeignKeysCleanup_ValuesAreConvertedToTheColumnsType(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TYPE "Mood" AS ENUM ('sad', 'so so', 'glad'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0)`)
	var definitions strings.Builder
	var counted []string
	for _, test := range []struct{ kind, wanted, other, written, target string }{
		{"smallint", "4", "5", "4", "7"},
		{"integer", "-4", "4", "-4", "7"},
		{"bigint", "9223372036854775807", "4", "9223372036854775807", "7"},
		{"numeric(10,2)", "4.50", "4.51", `"4.5"`, "7"},
		{"boolean", "true", "false", "true", "false"},
		{"text", "it's", "its", `"it's"`, "''"},
		{"varchar(3)", "abc", "ab", "abc", "x"},
		{"char(10)", "Issue", "I", "Issue", "Epic"},
		{"bit(3)", "101", "100", `"101"`, `"110"`},
		{"bit varying(5)", "101", "1010", `"101"`, `"1"`},
		{"uuid", "0198f000-0000-7000-8000-000000000001", "0198f000-0000-7000-8000-000000000002", "0198F000-0000-7000-8000-000000000001", "0198f000-0000-7000-8000-000000000003"},
		{"date", "2026-02-28", "2026-02-27", `"2026-02-28"`, `"2026-03-01"`},
		{"timestamptz(0)", "2026-02-28 10:00:00+00", "2026-02-28 11:00:00+00", `"2026-02-28 11:00:00+01"`, `"2026-02-28 12:00:00+00"`},
		{`"Mood"`, "so so", "glad", "so so", "glad"},
		{"positive", "4", "5", "4", "7"},
		{"jsonb", `{"a": 1}`, `{"a": 2}`, `'{"a":1}'`, `'[]'`},
		{"inet", "10.0.0.1", "10.0.0.2", "10.0.0.1/32", "10.0.0.3"},
		{"integer[]", "{1,2}", "{1}", `'{1, 2}'`, `'{}'`},
	} {
		n := strconv.Itoa(len(counted))
		counted = append(counted, test.kind)
		e.Exec("main", fmt.Sprintf(`CREATE TABLE c%s (id bigserial PRIMARY KEY, p_id bigint, x %s, y %[2]s)`, n, test.kind))
		e.Exec("main", fmt.Sprintf(`INSERT INTO c%s (p_id, x) SELECT p, v::text::%s FROM generate_series(1, 2) p, unnest(ARRAY[$1, $2, NULL]) v`, n, test.kind), test.wanted, test.other)
		fmt.Fprintf(&definitions, `
c%s:
  - {table: p, column: p_id, on_delete: update_column_to, target_column: y, target_value: %s, conditions: [{column: x, value: %s}]}
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: x, value: %[3]s}]}
`, n, test.target, test.written)
	}
	e.Deleted("main", "p", 1, 1)
	// A value too long for its column matches nothing.
	e.Exec("main", `CREATE TABLE d (p_id bigint, v varchar(3), b char(3)); INSERT INTO d VALUES (1, 'abc', 'abc')`)
	definitions.WriteString(`
d:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: v, value: abcd}]}
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: b, value: abcd}]}
`)
	wantRun(t, e.Service(definitions.String()), fmt.Sprintf("processed_records=1 updated_rows=%d deleted_rows=%[1]d", len(counted)))
	e.Want("main", `SELECT count(*) FROM d`, "1")
	for n, kind := range counted {
		const left = `SELECT string_agg(count, ', ' ORDER BY p_id) FROM (SELECT p_id, concat_ws(' ', count(*), count(x), count(y)) AS count FROM c%d GROUP BY p_id) s`
		got := e.Value("main", fmt.Sprintf(left, n))
		assert.That(t, got == "2 1 0, 3 2 0", "%s: rows, and values of x and y, %s, want one row deleted", kind, got)
	}
}

func TestLooseForeignKeysCleanup_KeysAreComparedWhateverTheColumnsWidth(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE DOMAIN wide AS bigint`)
	kinds, definitions := []string{"smallint", "integer", "bigint", "numeric", "wide"}, ""
	for _, kind := range kinds {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE c_%s (p_id %[1]s); INSERT INTO c_%[1]s SELECT i / 10 FROM generate_series(10, 69) i; CREATE INDEX ON c_%[1]s (p_id)`, kind))
		definitions += "c_" + kind + ":\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 4}\n"
	}
	e.Deleted("main", "p", 1, 3)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.p', k FROM unnest('{65537,4294967297,9223372036854775807,-9223372036854775808,-7}'::bigint[]) k`)
	wantRun(t, e.Service(definitions), "processed_records=8 deleted_rows=150")
	for _, kind := range kinds {
		e.Want("main", `SELECT count(*) FILTER (WHERE p_id > 3) || ' ' || count(*) FROM c_`+kind, "30 30")
	}
}

// Another system may mark a record as processed while a run has it in hand.
func TestLooseForeignKeysCleanup_ARecordThatAnotherSystemTakesStaysItsOwn(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 2)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	run := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET status = 2 WHERE primary_key_value = 1`)
	e.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, run.ID), "succeeded")
	e.Want("main", `SELECT string_agg(primary_key_value || ' ' || status, ',') FROM loose_foreign_keys_deleted_records`, "1 2")
}
