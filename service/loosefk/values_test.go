package loosefk_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The names of some types, written without their length, mean a length of one.
func TestLooseForeignKeys_ValuesOfFixedLengthAreNotCutOff(t *testing.T) {
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);
		CREATE TABLE c (p_id int, kind char(4), flags bit(3), done char(3)); CREATE INDEX ON c (p_id);
		INSERT INTO c VALUES (1, 'abcd', B'101', 'no'), (1, 'a', B'101', 'no'), (1, 'abcd', B'100', 'no')`)
	e.Install("p")
	e.Exec("main", "DELETE FROM p")
	const conditions = `conditions: [{column: kind, value: abcd}, {column: flags, value: "101"}]`
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', " + conditions + "}]")
	wantFindings(t, keys)
	wantRun(t, e.Service("c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', "+conditions+"}]"), "processed_records=1 updated_rows=1")
	e.Want("main", "SELECT string_agg(concat_ws(' ', kind, flags, done), ', ' ORDER BY kind, flags) FROM c", "a    101 no , abcd 100 no , abcd 101 yes")
}

// A value that no row of the column can take is the definition's fault: no record is isolated, or dies of it.
func TestLooseForeignKeysCleanup_ATargetOutOfTheColumnsRangeIsNoFaultOfTheRecords(t *testing.T) {
	e, definitions, faults := servicetest.New(parallel(t), servicetest.Small, "main"), "", []string{}
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
	e := servicetest.New(parallel(t), servicetest.Small, "main")
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
		if got := e.Value("main", fmt.Sprintf(left, n)); got != "2 1 0, 3 2 0" {
			t.Errorf("%s: rows, and values of x and y, %s, want one row deleted", kind, got)
		}
	}
}

func TestLooseForeignKeysCleanup_KeysAreComparedWhateverTheColumnsWidth(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
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
