package loosefk_test

import (
	"fmt"
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
	r := servicetest.RunBatch(t, e.Service("c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', "+conditions+"}]"), "main")
	servicetest.WantCounts(t, r, "processed_records=1 updated_rows=1")
	e.Want("main", "SELECT string_agg(concat_ws(' ', kind, flags, done), ', ' ORDER BY kind, flags) FROM c", "a    101 no , abcd 100 no , abcd 101 yes")
}

// A value that no row of the column can take is the definition's fault: no record is isolated, or dies of it.
func TestLooseForeignKeysCleanup_ATargetOutOfTheColumnsRangeIsNoFaultOfTheRecords(t *testing.T) {
	t.Parallel()
	e, definitions, faults := servicetest.New(t, "main", "main"), "", []string{}
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
	r := servicetest.RunBatch(t, e.Service(definitions), "main")
	servicetest.WantFailed(t, r, strings.Join(faults, "; "))
	servicetest.WantCounts(t, r, "rescheduled_records=100")
	e.Want("main", `SELECT string_agg(DISTINCT failures || '/' || setbacks, ' ') FROM maintenance.record_failures`, "0/1")
}
