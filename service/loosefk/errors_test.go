package loosefk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// minutesLeft is how long the records are postponed, in whole minutes, in the order of their keys.
const minutesLeft = `SELECT string_agg(primary_key_value || ':' || round(extract(epoch FROM consume_after - now()) / 60), ' ' ORDER BY primary_key_value)
	FROM loose_foreign_keys_deleted_records`

func makeDue(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
}

func TestLooseForeignKeysCleanup_OneBadRowCostsItsOwnRecordOnly(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 100)
	e.Mine("c", "OLD.p_id = 42", "P0001")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: P0001 raise_exception, 1 records")
	servicetest.WantCounts(t, r, "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.Want("main", minutesLeft, "42:1")
	e.Want("main", `SELECT status || ' ' || cleanup_attempts FROM loose_foreign_keys_deleted_records`, "1 0")
	e.Want("main", `SELECT count(*) FROM c`, "3")
	e.Want("main", `SELECT concat_ws(' ', failures, setbacks, last_definition, sqlstate) FROM maintenance.record_failures`, "1 1 c.p_id -> p P0001")
}

// A value out of range may be one row's: it does not stop the others, and its record is tried for ever.
func TestLooseForeignKeysCleanup_AValueOutOfRangeCostsItsOwnRecordAndNeverKillsIt(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 100)
	e.Mine("c", "OLD.p_id = 42", "22003")
	s := e.Service(servicetest.OneChild)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: 22003 numeric_value_out_of_range, 1 records")
	servicetest.WantCounts(t, r, "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.Want("main", failuresByKey, "42 0 1 c.p_id -> p 22003")
	e.Exec("main", `UPDATE maintenance.record_failures SET failures = 9`)
	makeDue(e)
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "rescheduled_records=1")
	e.Want("main", failuresByKey, "42 9 2 c.p_id -> p 22003")
}

func TestLooseForeignKeysCleanup_FailingRecordIsPutOffLongerAndAtLastDead(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 2)
	e.Mine("c", "OLD.p_id = 1", "P0001")
	recorded := e.Value("main", `SELECT created_at FROM loose_foreign_keys_deleted_records WHERE primary_key_value = 1`)
	s := e.Service(servicetest.OneChild)
	for i, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		r := servicetest.RunBatch(t, s, "main")
		servicetest.WantState(t, r, repo.RunFailed)
		if r.Counts["rescheduled_records"] != 1 || r.Counts["dead_records"] != 0 {
			t.Errorf("failure %d: %v", i+1, r.Counts)
		}
		e.Want("main", minutesLeft, fmt.Sprintf("1:%d", minutes))
		e.Want("main", `SELECT failures || ' ' || setbacks FROM maintenance.record_failures`, fmt.Sprintf("%d %d", i+1, i+1))
		makeDue(e)
	}
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: P0001 raise_exception, 1 records")
	servicetest.WantCounts(t, r, "dead_records=1")
	e.WantQueue("main", "")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
	e.Want("main", `SELECT concat_ws(' ', fully_qualified_table_name, primary_key_value, definition, sqlstate, failures, recorded_at) FROM maintenance.dead_records`,
		"public.p 1 c.p_id -> p P0001 10 "+recorded)
	e.Want("main", `SELECT message LIKE '%secret of 1%' AND dead_at > now() - interval '1 minute' FROM maintenance.dead_records`, "true")
	if b := servicetest.Status(t, s).Backlog; b.Dead != 1 || b.Pending != 0 || b.Due != 0 {
		t.Errorf("backlog %+v, want 1 dead", b)
	}

	// Put back once the cause is mended, it begins anew.
	e.Exec("main", `DROP TRIGGER mine ON c`)
	if n, err := lfkadmin.New(e.Open[0]).RetryDeadRecords(t.Context(), lfkadmin.DeadRecordFilter{}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	e.Want("main", `SELECT concat_ws(' ', primary_key_value, status, cleanup_attempts) FROM loose_foreign_keys_deleted_records`, "1 1 0")
	r = servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=3")
	if b := servicetest.Status(t, s).Backlog; b.Dead != 0 || b.Pending != 0 {
		t.Errorf("backlog %+v, want none", b)
	}
}

func TestLooseForeignKeysCleanup_SQLSTATEDecidesWhatBecomesOfTheRecords(t *testing.T) {
	const all = "1:1 2:1 3:1"
	for _, c := range []struct {
		sqlstate, error string
		left, failures  string
		tried           string
	}{
		// A fault of the row is isolated and counted.
		{"P0001", "P0001 raise_exception, 1 records", "2:1", "2:1/1", ""},
		{"23514", "23514 check_violation, 1 records", "2:1", "2:1/1", ""},
		{"22012", "22012 division_by_zero, 1 records", "2:1", "2:1/1", ""},
		{"XX001", "XX001 data_corrupted, 1 records", "2:1", "2:1/1", ""},
		// So is a value that may be a row's or the definition's, but it is not counted.
		{"22003", "22003 numeric_value_out_of_range, 1 records", "2:1", "2:0/1", ""},
		{"22007", "22007 invalid_datetime_format, 1 records", "2:1", "2:0/1", ""},
		{"22008", "22008 datetime_field_overflow, 1 records", "2:1", "2:0/1", ""},
		// The schema or the database is not the rows' fault: nothing is split, nothing counted.
		{"42501", "42501 insufficient_privilege, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"3F000", "3F000 invalid_schema_name, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"0A000", "0A000 feature_not_supported, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"2F003", "2F003 prohibited_sql_statement_attempted, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"22P02", "22P02 invalid_text_representation, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"53100", "unreachable, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"58030", "unreachable, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"25006", "unreachable, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"57P01", "unreachable, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		{"08006", "unreachable, 3 records", all, "1:0/1 2:0/1 3:0/1", "1"},
		// Locks are no failure.
		{"40001", "", all, "", ""},
		{"40P01", "", all, "", ""},
		{"55P03", "", all, "", ""},
	} {
		t.Run(c.sqlstate, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewDeletedParents(t, 3)
			e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1), (2), (9); CREATE TABLE other (o_id bigint); INSERT INTO other VALUES (1)`)
			e.Mine("c", "OLD.p_id = 2", c.sqlstate)
			// 4 has no children; what concerns c concerns neither the other definitions nor the other parents.
			e.Deleted("main", "p", 4, 4)
			e.Deleted("main", "o", 1, 1)
			r := servicetest.RunBatch(t, e.Service(servicetest.OneChild+"d: [{table: p, column: p_id, on_delete: async_delete}]\nother: [{table: o, column: o_id, on_delete: async_delete}]\n"), "main")
			if c.error == "" {
				servicetest.WantState(t, r, repo.RunSucceeded)
			} else {
				servicetest.WantFailed(t, r, "c.p_id -> p on main: "+c.error)
			}
			e.Want("main", minutesLeft, c.left)
			e.Want("main", `SELECT coalesce(string_agg(q.primary_key_value || ':' || failures || '/' || setbacks, ' ' ORDER BY q.primary_key_value), '')
				FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id AND q.partition = x.partition`, c.failures)
			e.Want("main", `SELECT max(cleanup_attempts) FROM loose_foreign_keys_deleted_records`, "0")
			e.Want("main", `SELECT string_agg(p_id::text, ' ') FROM d`, "9")
			e.Want("main", `SELECT count(*) FROM other`, "0")
			if left := int64(len(strings.Fields(c.left))); r.Counts["rescheduled_records"] != left || r.Counts["processed_records"] != 5-left {
				t.Errorf("counts %v", r.Counts)
			}
			if c.tried != "" {
				e.Want("main", `SELECT last_value FROM tried`, c.tried)
			}
		})
	}
}

func TestLooseForeignKeysCleanup_NullifyOfANotNullColumnFailsOnlyWhereThereAreChildren(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `ALTER TABLE c ALTER p_id SET NOT NULL; INSERT INTO c (p_id) VALUES (2), (5), (5), (7)`)
	e.Deleted("main", "p", 1, 6)
	r := servicetest.RunBatch(t, e.Service("c: [{table: p, column: p_id, on_delete: async_nullify}]\n"), "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: 23502 not_null_violation, 2 records")
	servicetest.WantCounts(t, r, "processed_records=4 rescheduled_records=2")
	e.Want("main", minutesLeft, "2:1 5:1")
}

func TestLooseForeignKeysCleanup_MissingTargetOrConditionColumnIsOfTheSchema(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 2)
	e.Exec("main", `CREATE TABLE d (p_id bigint, kind integer); INSERT INTO d VALUES (1, 1)`)
	e.Deleted("main", "o", 1, 1)
	r := servicetest.RunBatch(t, e.Service(`
c:
  - {table: p, column: p_id, on_delete: update_column_to, target_column: gone, target_value: 1}
d:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: no number}]}
  - {table: o, column: p_id, on_delete: async_delete, conditions: [{column: gone, value: 1}]}
`), "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: 42703 undefined_column, 2 records; d.p_id -> o on main: 42703 undefined_column, 1 records; "+
		"d.p_id -> p on main: 22P02 invalid_text_representation, 2 records")
	e.Want("main", `SELECT bool_and(failures = 0 AND setbacks = 1) FROM maintenance.record_failures`, "true")
	e.Want("main", `SELECT count(*) FROM d`, "1")
}
