package lfk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantPostponed fails the test unless the records left are those of these keys, postponed by a minute, otherwise as they were.
func wantPostponed(e *servicetest.Estate, keys string) {
	e.T.Helper()
	e.WantQueue("main", keys)
	e.Want("main", `SELECT bool_and(`+postponedMinutes+` = 1 AND cleanup_attempts = 0 AND status = 1) FROM loose_foreign_keys_deleted_records`, "true")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
}

// While some rows of a key are locked its record stays, whatever the other keys do, and goes when they are free. Each lock
// of a run is on a child of its own, of a parent of its own.
func TestLooseForeignKeysCleanup_ALockedRowPostponesItsRecordOnly(t *testing.T) {
	t.Parallel()
	const removes, nullifies, updates = "on_delete: async_delete", "on_delete: async_nullify",
		"on_delete: update_column_to, target_column: x, target_value: 2"
	type lock struct{ database, entry, sql string }
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	for _, test := range []struct {
		locked, free string
		locks        []lock
	}{
		{"deleted_rows=287", "deleted_rows=13", []lock{
			{"main", removes, "SELECT FROM c WHERE p_id = 7 FOR UPDATE"},
			{"main", removes, "SELECT FROM c WHERE p_id = 7 LIMIT 1 FOR UPDATE"},
			{"ci", removes, "SELECT FROM c WHERE p_id = 7 FOR UPDATE"},
			{"main", removes + ", delete_limit: 4", "SELECT FROM c WHERE p_id = 7 FOR UPDATE"},
			{"main", removes + ", delete_limit: 1", "DELETE FROM c WHERE p_id = 7"},
		}},
		{"deleted_rows=57 updated_rows=230", "deleted_rows=3 updated_rows=10", []lock{
			{"main", removes, "SELECT FROM c WHERE p_id = 7 FOR KEY SHARE"},
			// A reference to a row, as the check of a foreign key makes it, does not keep it from being updated.
			{"main", nullifies, "UPDATE c SET x = 1 WHERE p_id = 7 AND id < 10; SELECT FROM c WHERE p_id IN (8, 9) FOR KEY SHARE"},
			{"ci", nullifies, "SELECT FROM c WHERE p_id = 7 FOR UPDATE"},
			{"main", updates, "SELECT FROM c WHERE p_id = 7 FOR UPDATE"},
			{"main", updates + ", delete_limit: 1", "SELECT FROM c WHERE p_id = 7 FOR SHARE"},
		}},
	} {
		definitions, postponed, releases := "", []string{}, []func(){}
		for i, l := range test.locks {
			child := fmt.Sprint("c", i)
			e.Exec(l.database, strings.ReplaceAll(`DROP TABLE IF EXISTS child; CREATE TABLE child (id bigserial PRIMARY KEY, p_id bigint, x integer);
				CREATE INDEX ON child (p_id); INSERT INTO child (p_id) SELECT 1 + i % 20 FROM generate_series(0, 59) i`, "child", child))
			e.Deleted("main", fmt.Sprint("p", i), 1, 20)
			definitions += fmt.Sprintf("%s: [{table: p%d, column: p_id, %s}]\n", child, i, l.entry)
			postponed = append(postponed, fmt.Sprintf("%s on %s (1)", child, l.database))
			other := e.Connect(l.database)
			assert.Must(other.Exec(t.Context(), "BEGIN; "+strings.ReplaceAll(l.sql, " c ", " "+child+" ")))(t)
			releases = append(releases, func() { assert.Must(other.Exec(t.Context(), "ROLLBACK"))(t) })
		}
		s := e.Service(definitions, unhurried)
		r := wantRun(t, s, "processed_records=95 rescheduled_records=5 "+test.locked)
		wantPostponed(e, "7 7 7 7 7")
		assert.That(t, !r.OverLimit && r.Reason == "5 records postponed, because other transactions have locked "+
			"rows of "+strings.Join(postponed, ", "),
			"over_limit %t, reason %q", r.OverLimit, r.Reason)
		for _, release := range releases {
			release()
		}
		dueAgain(e, "main")
		wantRun(t, s, "processed_records=5 "+test.free)
		e.WantQueue("main", "")
		for i, l := range test.locks {
			e.Want(l.database, fmt.Sprintf(`SELECT count(*) FROM c%d WHERE p_id <= 20 AND x IS DISTINCT FROM 2`, i), "0")
		}
	}
}

func TestLooseForeignKeysCleanup_ALockedRowPostponesItsRecordOfSeveralColumns(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a int, b int, PRIMARY KEY (a, b)); INSERT INTO p SELECT i, i FROM generate_series(1, 5) i;
		CREATE TABLE c (id bigserial PRIMARY KEY, x int, y int); INSERT INTO c (x, y) SELECT a, b FROM p, generate_series(1, 3);
		CREATE TABLE n (id bigserial PRIMARY KEY, x int, y int); INSERT INTO n (x, y) SELECT a, b FROM p, generate_series(1, 3)`)
	track(e, "p", "a", "b")
	e.Exec("main", `DELETE FROM p`)
	release := e.Hold(`SELECT FROM c WHERE x = 3 LIMIT 1 FOR UPDATE`)
	also := e.Hold(`SELECT FROM n WHERE x = 4 LIMIT 1 FOR UPDATE`)
	s := e.Service("c: [{table: p, column: [x, y], on_delete: async_delete}]\nn: [{table: p, column: [x, y], on_delete: async_nullify}]")
	wantRun(t, s, "processed_records=3 rescheduled_records=2 deleted_rows=14 updated_rows=14")
	e.Want("main", `SELECT string_agg(key_values::text, ' ' ORDER BY key_values) FROM loose_foreign_keys_deleted_records`, "{3,3} {4,4}")
	e.Want("main", `SELECT string_agg(concat_ws('-', x, y), ' ') FROM c`, "3-3")
	e.Want("main", `SELECT string_agg(concat_ws('-', x, y), ' ') FROM n WHERE x IS NOT NULL`, "4-4")
	release()
	also()
	dueAgain(e, "main")
	wantRun(t, s, "processed_records=2 deleted_rows=1 updated_rows=1")
	e.Want("main", `SELECT (SELECT count(*) FROM c) + (SELECT count(x) FROM n)`, "0")
}

func TestLooseForeignKeysCleanup_ALockReleasedSoonIsWaitedFor(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 20 FROM generate_series(0, 59) i`)
	e.Deleted("main", "p", 1, 20)
	release := e.Hold(`SELECT FROM c WHERE p_id = 7 FOR UPDATE`)
	s := e.Service(servicetest.OneChild)
	begun := servicetest.Begin(t, s, "main")
	e.Eventually("main", `SELECT count(*) = 0 FROM c WHERE p_id <> 7`, "true")
	release()
	r := servicetest.Ended(t, s, begun.ID)
	servicetest.WantRun(t, r, "succeeded", "processed_records=20 deleted_rows=60")
}

// Of 20 rows, 10 have the deleted parent 1. While a statement waits for 5 of these, a transaction changes them.
func TestLooseForeignKeysCleanup_RowsThatChangeMeanwhileAreOfTheirNewParent(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	const removes = "on_delete: async_delete"
	for i, c := range []struct{ entry, change, counts, left string }{
		{removes, "p_id = 0", "deleted_rows=5", "15"},
		{removes + ", delete_limit: 2", "p_id = 0", "deleted_rows=5", "15"},
		{"on_delete: async_nullify", "p_id = 0", "updated_rows=5", "20"},
		{removes, "leaf = 1", "deleted_rows=10", "10"},
		{removes + ", delete_limit: 3", "leaf = 1", "deleted_rows=10", "10"},
		{removes, "x = 1", "deleted_rows=10", "10"},
	} {
		child := fmt.Sprint("c", i)
		e.Exec("main", strings.ReplaceAll(`CREATE TABLE child (id bigserial, p_id bigint, x integer,
			leaf integer DEFAULT 0) PARTITION BY LIST (leaf);
			CREATE TABLE child_0 PARTITION OF child FOR VALUES IN (0); CREATE TABLE child_1 PARTITION OF child FOR VALUES IN (1);
			INSERT INTO child (p_id) SELECT i % 2 FROM generate_series(1, 20) i`, "child", child))
		e.Deleted("main", "p", 1, 1)
		release := e.HoldThenCommit(`UPDATE ` + child + ` SET ` + c.change + ` WHERE p_id = 1 AND id < 10`)
		s := e.Service(child + ": [{table: p, column: p_id, " + c.entry + "}]")
		begun := servicetest.Begin(t, s, "main")
		e.Eventually("main", anyWaits, "true")
		release()
		r := servicetest.Ended(t, s, begun.ID)
		servicetest.WantRun(t, r, "succeeded", "processed_records=1 "+c.counts)
		e.Want("main", `SELECT count(*) || ' ' || count(*) FILTER (WHERE p_id = 1) FROM `+child, c.left+" 0")
		e.WantQueue("main", "")
	}
}

func TestLooseForeignKeysCleanup_ALockedTablePostponesTheRecordsAndIsSaidInTheLogAndTheTrace(t *testing.T) {
	spans, log := servicetest.Tracing(t), &servicetest.Buffer{}
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 4)`)
	e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1)`)
	e.Deleted("main", "p", 1, 4)
	lock := e.Connect("ci")
	assert.Must(lock.Exec(t.Context(), `BEGIN; LOCK TABLE c IN ACCESS EXCLUSIVE MODE`))(t)
	s := e.Service(cAndD, servicetest.TracedLogTo(log))
	r := wantRun(t, s, "rescheduled_records=4 deleted_rows=1")
	wantPostponed(e, "1 2 3 4")
	want := "4 records postponed, because other transactions have locked rows of c on ci (4)"
	assert.That(t, r.Reason == want && strings.Count(log.String(), `"locked":"`+want) == 1, "reason %q, log %s", r.Reason, log)
	servicetest.WantAttributes(t, servicetest.Named(spans, "maintenance.batch")[0], map[string]string{"maintenance.outcome": "deferred", "maintenance.reason": "locked: c on ci"})
	assert.Must(lock.Exec(t.Context(), `ROLLBACK`))(t)
	dueAgain(e, "main")
	wantRun(t, s, "processed_records=4 deleted_rows=4")
}

// veto makes a trigger of a table of main keep the rows that meet a condition on OLD.
func veto(e *servicetest.Estate, table, condition string) {
	e.T.Helper()
	e.Exec("main", `CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER veto BEFORE DELETE OR UPDATE ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION keep()`)
}

func TestLooseForeignKeysCleanup_ARowThatATriggerKeepsIsNoLock(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	definitions, failures := "", []string{}
	for i, entry := range []string{
		"on_delete: async_delete", "on_delete: async_nullify", "on_delete: async_delete, delete_limit: 4",
		"on_delete: async_delete, delete_limit: 1",
	} {
		child := fmt.Sprint("c", i)
		e.Exec("main", `CREATE TABLE `+child+` (p_id bigint); INSERT INTO `+child+` SELECT i % 20 + 1 FROM generate_series(1, 60) i`)
		veto(e, child, "OLD.p_id = 7")
		e.Deleted("main", "p_of_"+child, 1, 20)
		e.Hold(`SELECT FROM ` + child + ` WHERE p_id = 9 FOR UPDATE`)
		definitions += child + ": [{table: p_of_" + child + ", column: p_id, " + entry + "}]\n"
		failures = append(failures, fmt.Sprintf("%s.p_id -> p_of_%[1]s on main: KEPT_BY_TRIGGER: trigger veto of %[1]s "+
			"(exempt these rows, or disable the trigger or rule), 1 record", child))
	}
	s := e.Service(definitions, unhurried)
	r := wantFailedRun(t, s, strings.Join(failures, "; "), "processed_records=72 rescheduled_records=8 deleted_rows=162 updated_rows=54")
	assert.That(t, strings.HasPrefix(r.Reason, "KEPT_BY_TRIGGER: trigger veto of c"), "reason %q", r.Reason)
	e.Want("main", minutesLeft, "7:1 7:1 7:1 7:1 9:1 9:1 9:1 9:1")
	e.Want("main", `SELECT string_agg(DISTINCT concat_ws(' ', primary_key_value, failures, setbacks, sqlstate), ', ')
		FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id`, "7 1 1 KEPT_BY_TRIGGER")
	// It dies as a record that fails does.
	e.Exec("main", `UPDATE maintenance.record_failures SET failures = 9`)
	makeDue(e)
	wantFailedRun(t, s, strings.Join(failures, "; "), "dead_records=4 rescheduled_records=4")
	e.Want("main", `SELECT concat_ws(' ', primary_key_value, definition, sqlstate, message) FROM maintenance.dead_records WHERE definition LIKE 'c0.%'`,
		"7 c0.p_id -> p_of_c0 KEPT_BY_TRIGGER KEPT_BY_TRIGGER: trigger veto of c0 (exempt these rows, or disable the trigger or rule)")
	if st := servicetest.Status(t, s); st.Failing == nil || st.Failing.Class != "DATA" || strings.Count(st.Failing.Message, "KEPT_BY_TRIGGER") != len(failures) {
		t.Errorf("failing %+v", st.Failing)
	}
}

// However many rows the statements may take, and the keys have: the others go in the same run.
func TestLooseForeignKeysCleanup_KeptRowsFailTheirOwnRecordOnly(t *testing.T) {
	e, definitions, n, gone := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main"), "", 0, 0
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
	r := servicetest.RunBatch(t, e.Service(definitions, unhurried), "main")
	servicetest.WantState(t, r, control.RunFailed)
	servicetest.WantCounts(t, r, fmt.Sprintf("processed_records=%d rescheduled_records=%d deleted_rows=%d", 9*n, n, gone))
	e.Want("main", `SELECT count(*) FILTER (WHERE primary_key_value = 7 AND failures = 1 AND setbacks = 1 AND sqlstate = 'KEPT_BY_TRIGGER'
		AND last_definition = 'c' || right(fully_qualified_table_name, 1) || '.p_id -> p_of_c' || right(fully_qualified_table_name, 1)) || ' of ' || count(*)
		FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id AND q.partition = x.partition`, "9 of 9")
}

// Of a partitioned child the trigger of the partition is named. The rule of a table stands for all
// of its rows.
func TestLooseForeignKeysCleanup_TriggersOfPartitionsAndRulesAreNamed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint, leaf integer) PARTITION BY LIST (leaf); CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
		CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2); INSERT INTO c SELECT i, 1 + i % 2 FROM generate_series(1, 6) i;
		CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(3, 5);
		CREATE RULE stay AS ON DELETE TO d DO INSTEAD NOTHING`)
	veto(e, "c_2", "true")
	e.Deleted("main", "p", 1, 7)
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: KEPT_BY_TRIGGER: trigger veto of c_2 (exempt these rows, or disable the trigger or rule), "+
		"3 records; d.p_id -> p on main: KEPT_BY_TRIGGER: rule stay of d (exempt these rows, or disable the trigger or rule), 3 records",
		"deleted_rows=3 processed_records=3 rescheduled_records=4")
	e.Want("main", `SELECT bool_and(failures = 1) FROM maintenance.record_failures`, "true")
}

// Many GitLab tables have triggers that set a column again. Rows that are not as they were to be do not count.
func TestLooseForeignKeysCleanup_ARowWhoseUpdateATriggerTakesBackIsKept(t *testing.T) {
	e, definitions, failures := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main"), "", []string{}
	e.Exec("main", `CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.p_id := OLD.p_id; NEW.v := OLD.v; RETURN NEW; END'`)
	const update = "update_column_to, target_column: v, target_value: '1.23'"
	cases := []struct {
		action     string
		rows, kept int
	}{
		{"async_nullify", 1, 1},
		{"async_nullify", 3000, 3000},
		{update, 1, 1},
		{update, 3000, 3000},
		// A value that the column rounds is no other one.
		{update, 3000, 0},
	}
	all := 0
	for i, c := range cases {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE c%d (id bigserial PRIMARY KEY, p_id bigint, v numeric(5, 1)); CREATE INDEX ON c%[1]d (p_id);
			INSERT INTO c%[1]d (p_id) SELECT k FROM generate_series(1, 100) k CROSS JOIN LATERAL generate_series(1, CASE k WHEN 99 THEN %d ELSE 1 END) i`, i, c.rows))
		if c.kept > 0 {
			e.Exec("main", fmt.Sprintf(`CREATE TRIGGER back BEFORE UPDATE ON c%d FOR EACH ROW WHEN (OLD.p_id = 99) EXECUTE FUNCTION back()`, i))
			failures = append(failures, fmt.Sprintf("c%d.p_id -> p%[1]d on main: KEPT_BY_TRIGGER: trigger back of c%[1]d "+
				"(exempt these rows, or disable the trigger or rule), 1 record", i))
		}
		e.Deleted("main", fmt.Sprint("p", i), 1, 100)
		definitions += fmt.Sprintf("c%d: [{table: p%[1]d, column: p_id, on_delete: %s}]\n", i, c.action)
		all += 99 + c.rows - c.kept
	}
	wantFailedRun(t, e.Service(definitions, servicetest.Batches(10, 0), unhurried), strings.Join(failures, "; "),
		fmt.Sprintf("processed_records=496 rescheduled_records=4 updated_rows=%d", all))
	for i, c := range cases {
		e.Want("main", fmt.Sprintf(`SELECT count(*) FROM c%d WHERE p_id IS NOT NULL AND v IS DISTINCT FROM 1.2`, i), fmt.Sprint(c.kept))
		e.Want("main", fmt.Sprintf(`SELECT sum(rows) FROM maintenance.receipts WHERE "table" = 'c%d'`, i), fmt.Sprint(99+c.rows-c.kept))
	}
	e.WantQueue("main", "99 99 99 99")
}

func TestLooseForeignKeysCleanup_ALockedParentTablePostponesRecordsWhereverTheirChildrenAre(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	e.Install()
	for child, place := range map[string]string{"main": "c on main", "ci": "public.p on main"} {
		t.Run(place, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (5)`)
			e.Exec(child, `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (5)`)
			track(e, "p")
			e.Exec("main", `DELETE FROM p`)
			other := e.Connect("main")
			assert.Must(other.Exec(t.Context(), `BEGIN; LOCK TABLE p`))(t)
			r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
			servicetest.WantRun(t, r, "succeeded", "rescheduled_records=1")
			assert.Equal(t, r.Reason, "1 record postponed, because other transactions have locked rows of "+
				""+place+" (1)")
			wantPostponed(e, "5")
		})
	}
}

// Facts that a run has read of a child at its start need not be true any more when it comes to it.
func TestLooseForeignKeysCleanup_AChildThatChangesMeanwhileIsForTheNextRun(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for name, c := range map[string]struct{ definition, sql, next, rows string }{
		"a detachment begins": {
			"c", `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'c_1'::regclass`,
			"processed_records=1 deleted_rows=2", "0",
		},
		"a trigger keeps rows": {"d", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN OLD.id > 1 THEN OLD END; END $$;
			CREATE TRIGGER keep BEFORE DELETE ON d FOR EACH ROW EXECUTE FUNCTION keep()`, "rescheduled_records=1 deleted_rows=1", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE b (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON b (p_id);
				CREATE TABLE c (LIKE b) PARTITION BY RANGE (id); CREATE INDEX ON c (p_id);
				CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (1) TO (2); CREATE TABLE c_2 PARTITION OF c DEFAULT;
				CREATE TABLE d (LIKE b); CREATE INDEX ON d (p_id);
				INSERT INTO b VALUES (1, 7); INSERT INTO c VALUES (1, 7), (2, 7); INSERT INTO d VALUES (1, 7), (2, 7)`)
			e.Deleted("main", "p", 7, 7)
			e.Gate("main", "b")
			e.Shut("main", servicetest.App)
			const deletes = ": [{table: p, column: p_id, on_delete: async_delete}]\n"
			s := e.Service("b" + deletes + "c" + deletes + "d" + deletes)
			run := servicetest.Begin(t, s, "main")
			e.AtGate("main", servicetest.App)
			e.Exec("main", c.sql)
			e.Lift("main", servicetest.App)
			r := servicetest.Ended(t, s, run.ID)
			servicetest.WantCounts(t, r, "rescheduled_records=1 deleted_rows=3")
			assert.That(t, strings.HasPrefix(r.Error, c.definition+".p_id -> p on main: the child table has changed since the run started ("), "error %q", r.Error)
			dueAgain(e, "main")
			servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), c.next)
			e.Want("main", `SELECT count(*) FROM (SELECT FROM c UNION ALL SELECT FROM c_1 UNION ALL SELECT FROM d) x`, c.rows)
		})
	}
}
