package loosefk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// veto makes a trigger of a table of main keep the rows that meet a condition on OLD.
func veto(e *servicetest.Estate, table, condition string) {
	e.T.Helper()
	e.Exec("main", `CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER veto BEFORE DELETE OR UPDATE ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION keep()`)
}

func TestLooseForeignKeysCleanup_ARowThatATriggerKeepsIsNoLock(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	definitions, failures := "", []string{}
	for i, entry := range []string{
		"on_delete: async_delete", "on_delete: async_nullify", "on_delete: async_delete, delete_limit: 4", "on_delete: async_delete, delete_limit: 1",
	} {
		child := fmt.Sprint("c", i)
		e.Exec("main", `CREATE TABLE `+child+` (p_id bigint); INSERT INTO `+child+` SELECT i % 20 + 1 FROM generate_series(1, 60) i`)
		veto(e, child, "OLD.p_id = 7")
		e.Deleted("main", "p_of_"+child, 1, 20)
		e.Hold(`SELECT FROM ` + child + ` WHERE p_id = 9 FOR UPDATE`)
		definitions += child + ": [{table: p_of_" + child + ", column: p_id, " + entry + "}]\n"
		failures = append(failures, fmt.Sprintf("%s.p_id -> p_of_%[1]s on main: KEPT_BY_TRIGGER: trigger veto of %[1]s "+
			"(let it pass these rows, or disable it), 1 records", child))
	}
	r := wantFailedRun(t, e.Service(definitions, unhurried), strings.Join(failures, "; "),
		"processed_records=72 rescheduled_records=8 deleted_rows=162 updated_rows=54")
	if !strings.HasPrefix(r.Reason, "KEPT_BY_TRIGGER: trigger veto of c") {
		t.Errorf("reason %q", r.Reason)
	}
	e.Want("main", minutesLeft, "7:1 7:1 7:1 7:1 9:1 9:1 9:1 9:1")
	e.Want("main", `SELECT string_agg(DISTINCT concat_ws(' ', primary_key_value, failures, setbacks, sqlstate), ', ')
		FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id`, "7 1 1 KEPT_BY_TRIGGER")
}

// However many rows the statements may take, and the keys have: the others go in the same run.
func TestLooseForeignKeysCleanup_KeptRowsFailTheirOwnRecordOnly(t *testing.T) {
	e, definitions, n, gone := servicetest.New(parallel(t), servicetest.Small, "main"), "", 0, 0
	for _, rows := range []int{1, 3, 200} {
		for _, limit := range []string{"", ", delete_limit: 2", ", delete_limit: 50"} {
			n, gone = n+1, gone+9*rows
			child := fmt.Sprint("c", n)
			e.Exec("main", fmt.Sprintf(`CREATE TABLE %s (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON %[1]s (p_id);
				INSERT INTO %[1]s (p_id) SELECT k FROM generate_series(1, 10) k, generate_series(1, %d) i`, child, rows))
			veto(e, child, "OLD.p_id = 7")
			e.Deleted("main", "p_of_"+child, 1, 10)
			definitions += child + ": [{table: p_of_" + child + ", column: p_id, on_delete: async_delete" + limit + "}]\n"
		}
	}
	r := servicetest.RunBatch(t, e.Service(definitions), "main")
	servicetest.WantState(t, r, repo.RunFailed)
	servicetest.WantCounts(t, r, fmt.Sprintf("processed_records=%d rescheduled_records=%d deleted_rows=%d", 9*n, n, gone))
	e.Want("main", `SELECT count(*) FILTER (WHERE primary_key_value = 7 AND failures = 1 AND setbacks = 1 AND sqlstate = 'KEPT_BY_TRIGGER'
		AND last_definition = 'c' || right(fully_qualified_table_name, 1) || '.p_id -> p_of_c' || right(fully_qualified_table_name, 1)) || ' of ' || count(*)
		FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id AND q.partition = x.partition`, "9 of 9")
}

func TestLooseForeignKeysCleanup_ARecordWhoseRowsAreKeptIsPutOffLongerAndAtLastDead(t *testing.T) {
	e := servicetest.NewDeletedParents(parallel(t), 2)
	veto(e, "c", "OLD.p_id = 1")
	s := e.Service(servicetest.OneChild)
	for _, minutes := range []int{1, 2, 4} {
		servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunFailed)
		e.Want("main", minutesLeft, fmt.Sprintf("1:%d", minutes))
		makeDue(e)
	}
	e.Exec("main", `UPDATE maintenance.record_failures SET failures = 9`)
	const kept = "KEPT_BY_TRIGGER: trigger veto of c (let it pass these rows, or disable it)"
	wantFailedRun(t, s, "c.p_id -> p on main: "+kept+", 1 records", "dead_records=1")
	e.Want("main", `SELECT concat_ws(' ', primary_key_value, definition, sqlstate, message) FROM maintenance.dead_records`,
		"1 c.p_id -> p KEPT_BY_TRIGGER "+kept)
	if st := servicetest.Status(t, s); st.Failing == nil || st.Failing.Class != "DATA" || strings.Count(st.Failing.Message, "KEPT_BY_TRIGGER") != 1 {
		t.Errorf("failing %+v", st.Failing)
	}
}

// Of a partitioned child the trigger of the partition is named; the rule of a table stands for all of its rows.
func TestLooseForeignKeysCleanup_TriggersOfPartitionsAndRulesAreNamed(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint, leaf integer) PARTITION BY LIST (leaf); CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
		CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2); INSERT INTO c SELECT i, 1 + i % 2 FROM generate_series(1, 6) i;
		CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(3, 5);
		CREATE RULE stay AS ON DELETE TO d DO INSTEAD NOTHING`)
	veto(e, "c_2", "true")
	e.Deleted("main", "p", 1, 7)
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: KEPT_BY_TRIGGER: trigger veto of c_2 (let it pass these rows, or disable it), 3 records; "+
		"d.p_id -> p on main: KEPT_BY_TRIGGER: rule stay of d (let it pass these rows, or disable it), 3 records", "deleted_rows=3 processed_records=3 rescheduled_records=4")
	e.Want("main", `SELECT bool_and(failures = 1) FROM maintenance.record_failures`, "true")
}
