package lfk_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// postponedMinutes is for how many minutes the newest run has postponed a record.
const postponedMinutes = `(SELECT min(minutes) FROM unnest('{1,2,4,8,16,32,60}'::integer[]) AS minutes,
	(SELECT started_at, finished_at FROM maintenance.runs ORDER BY started_at DESC LIMIT 1) AS newest
	WHERE consume_after - make_interval(mins => minutes) BETWEEN started_at AND finished_at)`

// minutesLeft is for how many minutes each record is postponed, in the order of their keys.
const minutesLeft = `SELECT string_agg(primary_key_value || ':' || ` + postponedMinutes + `, ' '
	ORDER BY primary_key_value) FROM loose_foreign_keys_deleted_records`

func makeDue(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
}

// A value out of range may be one row's: it does not stop the others, and its record is tried for ever.
func TestLooseForeignKeysCleanup_AValueOutOfRangeCostsItsOwnRecordAndNeverKillsIt(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 100)
	e.Mine("c", "OLD.p_id = 42", "22003")
	const failure = "c.p_id -> p on main: 22003 numeric_value_out_of_range, 1 record"
	s := e.Service(servicetest.OneChild)
	wantFailedRun(t, s, failure, "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.Want("main", failuresByKey, "42 0 1 c.p_id -> p 22003")
	e.Exec("main", `UPDATE maintenance.record_failures SET failures = 9`)
	makeDue(e)
	wantFailedRun(t, s, failure, "rescheduled_records=1")
	e.Want("main", failuresByKey, "42 9 2 c.p_id -> p 22003")
}

func TestLooseForeignKeysCleanup_FailingRecordIsPutOffLongerAndAtLastDead(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 2)
	e.Mine("c", "OLD.p_id = 1", "P0001")
	recorded := e.Value("main", `SELECT created_at FROM loose_foreign_keys_deleted_records WHERE primary_key_value = 1`)
	s := e.Service(servicetest.OneChild)
	for i, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		r := servicetest.RunBatch(t, s, "main")
		servicetest.WantState(t, r, control.RunFailed)
		assert.That(t, r.Counts["rescheduled_records"] == 1 && r.Counts["dead_records"] == 0, "failure %d: %v", i+1, r.Counts)
		e.Want("main", minutesLeft, fmt.Sprintf("1:%d", minutes))
		e.Want("main", `SELECT failures || ' ' || setbacks FROM maintenance.record_failures`, fmt.Sprintf("%d %d", i+1, i+1))
		makeDue(e)
	}
	wantFailedRun(t, s, "c.p_id -> p on main: P0001 raise_exception, 1 record", "dead_records=1")
	e.WantQueue("main", "")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
	e.Want("main", `SELECT concat_ws(' ', fully_qualified_table_name, primary_key_value, definition, sqlstate, failures, recorded_at) FROM maintenance.dead_records`,
		"public.p 1 c.p_id -> p P0001 10 "+recorded)
	e.Want("main", `SELECT message LIKE '%secret of 1%' AND dead_at > now() - interval '1 minute' FROM maintenance.dead_records`, "true")
	b := servicetest.Status(t, s).Backlog
	assert.That(t, b.Dead == 1 && b.Pending == 0 && b.Due == 0, "backlog %+v, want 1 dead", b)

	// Put back once the cause is fixed, it begins again.
	e.Exec("main", `DROP TRIGGER mine ON c`)
	if n, err := admin.New(e.Open[0].Database).RetryDeadRecords(t.Context(), admin.DeadRecordFilter{}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	e.Want("main", `SELECT concat_ws(' ', primary_key_value, status, cleanup_attempts) FROM loose_foreign_keys_deleted_records`, "1 1 0")
	wantRun(t, s, "processed_records=1 deleted_rows=3")
	if b := servicetest.Status(t, s).Backlog; b.Dead != 0 || b.Pending != 0 {
		t.Errorf("backlog %+v, want none", b)
	}
}

// Each SQLSTATE has a parent with two children, of which one fails. The error of a child concerns
// neither the other definitions nor the other parents: all are in one run.
func TestLooseForeignKeysCleanup_SQLSTATEDecidesWhatBecomesOfTheRecords(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE FUNCTION explode() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM nextval('tried_' || TG_TABLE_NAME); RAISE 'secret of %', OLD.p_id USING ERRCODE = TG_ARGV[0]; END $$`)
	// Of the keys 1 to 4, 2 has the row that fails, and 4 has none.
	const setUp = `CREATE TABLE c_code (p_id bigint); INSERT INTO c_code SELECT i % 3 + 1 FROM generate_series(1, 9) i;
		CREATE TABLE d_code (p_id bigint); INSERT INTO d_code VALUES (1), (2), (9); CREATE SEQUENCE tried_c_code;
		CREATE TRIGGER mine BEFORE DELETE ON c_code FOR EACH ROW WHEN (OLD.p_id = 2) EXECUTE FUNCTION explode('CODE')`
	const records = `SELECT string_agg(concat_ws(' ', primary_key_value || ':' || ` + postponedMinutes + `,
			failures || '/' || setbacks), ', ' ORDER BY primary_key_value)
		FROM loose_foreign_keys_deleted_records q LEFT JOIN maintenance.record_failures x ON q.id = x.record_id AND q.partition = x.partition
		WHERE cleanup_attempts = 0 AND fully_qualified_table_name = 'public.p_`
	const isolated, uncounted, all, locked = "2:1 1/1", "2:1 0/1", "1:1 0/1, 2:1 0/1, 3:1 0/1", "1:1, 2:1, 3:1"
	cases := []struct{ code, failure, left string }{
		// A fault of the row is isolated and counted.
		{"P0001", "P0001 raise_exception, 1 record", isolated},
		{"23514", "23514 check_violation, 1 record", isolated},
		{"22012", "22012 division_by_zero, 1 record", isolated},
		{"XX001", "XX001 data_corrupted, 1 record", isolated},
		// So is a value that may be a row's or the definition's, but it is not counted.
		{"22003", "22003 numeric_value_out_of_range, 1 record", uncounted},
		{"22007", "22007 invalid_datetime_format, 1 record", uncounted},
		{"22008", "22008 datetime_field_overflow, 1 record", uncounted},
		// The schema or the database is not the rows' fault: nothing is split, nothing counted.
		{"42501", "42501 insufficient_privilege (run `caretaker doctor`), 3 records", all},
		{"3F000", "3F000 invalid_schema_name, 3 records", all},
		{"0A000", "0A000 feature_not_supported, 3 records", all},
		{"2F003", "2F003 prohibited_sql_statement_attempted, 3 records", all},
		{"22P02", "22P02 invalid_text_representation, 3 records", all},
		{"53100", "unreachable (53100 disk_full), 3 records", all},
		{"58030", "unreachable (58030 io_error), 3 records", all},
		{"25006", "unreachable (25006 read_only_sql_transaction), 3 records", all},
		{"57P01", "unreachable (57P01 admin_shutdown), 3 records", all},
		{"08006", "unreachable (08006 connection_failure), 3 records", all},
		// Locks are no failure.
		{"40001", "", locked},
		{"40P01", "", locked},
		{"55P03", "", locked},
	}
	definitions, failures := "", []string{}
	for _, c := range cases {
		name := strings.ToLower(c.code)
		e.Exec("main", strings.NewReplacer("code", name, "CODE", c.code).Replace(setUp))
		e.Deleted("main", "p_"+name, 1, 4)
		for _, child := range []string{"c_", "d_"} {
			definitions += child + name + ": [{table: p_" + name + ", column: p_id, on_delete: async_delete}]\n"
		}
		if c.failure != "" {
			failures = append(failures, fmt.Sprintf("c_%s.p_id -> p_%[1]s on main: %s", name, c.failure))
		}
	}
	slices.Sort(failures)
	r := servicetest.RunBatch(t, e.Service(definitions, unhurried), "main")
	servicetest.WantFailed(t, r, strings.Join(failures, "; "))
	rescheduled := int64(0)
	for _, c := range cases {
		name := strings.ToLower(c.code)
		e.Want("main", records+name+"'", c.left)
		e.Want("main", `SELECT string_agg(p_id::text, ' ') FROM d_`+name, "9")
		if c.left == all {
			e.Want("main", `SELECT last_value FROM tried_c_`+name, "1")
		}
		rescheduled += int64(strings.Count(c.left, ":"))
	}
	assert.That(t, r.Counts["rescheduled_records"] == rescheduled && r.Counts["processed_records"] == int64(4*len(cases))-rescheduled,
		"counts %v", r.Counts)
}

func TestLooseForeignKeysCleanup_NullifyOfANotNullColumnFailsOnlyWhereThereAreChildren(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `ALTER TABLE c ALTER p_id SET NOT NULL; INSERT INTO c (p_id) VALUES (2), (5), (5), (7)`)
	e.Deleted("main", "p", 1, 6)
	wantFailedRun(t, e.Service("c: [{table: p, column: p_id, on_delete: async_nullify}]\n"),
		"c.p_id -> p on main: 23502 not_null_violation, 2 records", "processed_records=4 rescheduled_records=2")
	e.Want("main", minutesLeft, "2:1 5:1")
}

func TestLooseForeignKeysCleanup_MissingTargetOrConditionColumnIsOfTheSchema(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 2)
	e.Exec("main", `CREATE TABLE d (p_id bigint, kind integer); INSERT INTO d VALUES (1, 1)`)
	e.Deleted("main", "o", 1, 1)
	r := servicetest.RunBatch(t, e.Service(`
c:
  - {table: p, column: p_id, on_delete: update_column_to, target_column: gone, target_value: 1}
d:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: no number}]}
  - {table: o, column: p_id, on_delete: async_delete, conditions: [{column: gone, value: 1}]}
`), "main")
	servicetest.WantFailed(t, r, "c.p_id -> p on main: 42703 undefined_column, 2 records; d.p_id -> o on main: 42703 undefined_column, 1 record; "+
		"d.p_id -> p on main: 22P02 invalid_text_representation, 2 records")
	e.Want("main", `SELECT bool_and(failures = 0 AND setbacks = 1) FROM maintenance.record_failures`, "true")
	e.Want("main", `SELECT count(*) FROM d`, "1")
}

// A definition that fails is in the log when it begins to, when its condition changes, and when it works again.
func TestLooseForeignKeysCleanup_AFailingDefinitionIsNotInTheLogOfEveryRun(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 50)
	e.Mine("c", "OLD.p_id < 3", "P0001")
	var said servicetest.Buffer
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0), func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	want := func(when string, failed, again int) {
		t.Helper()
		makeDue(e)
		said.Reset()
		servicetest.RunBatch(t, s, "main")
		if f, a := strings.Count(said.String(), "definition failed"), strings.Count(said.String(), "definition recovered"); f != failed || a != again {
			t.Errorf("%s: %d lines of failure and %d of its end, want %d and %d:\n%s", when, f, a, failed, again, said.String())
		}
	}
	want("it begins", 1, 0)
	want("it goes on", 0, 0)

	// The records that fail are not among those of this run: they wait.
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		SELECT 'public.p', 100, now(); UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 hour' WHERE primary_key_value < 3`)
	said.Reset()
	servicetest.RunBatch(t, s, "main")
	assert.That(t, !strings.Contains(said.String(), "definition "), "log %s", said.String())

	e.Exec("main", `DROP TRIGGER mine ON c; DROP FUNCTION explode_c`)
	e.Mine("c", "OLD.p_id < 3", "42501")
	want("it changes", 1, 0)
	e.Exec("main", `DROP TRIGGER mine ON c`)
	want("it is mended", 0, 1)
	e.Deleted("main", "p", 1, 3)
	want("it works", 0, 0)
}

const cAndD = servicetest.OneChild + "d: [{table: p, column: p_id, on_delete: async_delete}]\n"

// newTwoChildren is a main with tables c and d that have a row for each of the deleted parents 1 to n.
func newTwoChildren(t *testing.T, n int) *servicetest.Estate {
	t.Helper()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE d (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON d (p_id)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
	e.Exec("main", `INSERT INTO d (p_id) SELECT generate_series(1, $1::int)`, n)
	e.Deleted("main", "p", 1, n)
	return e
}

const failuresByKey = `SELECT string_agg(concat_ws(' ', q.primary_key_value, failures, setbacks, last_definition, sqlstate), ', ' ORDER BY q.primary_key_value, q.id)
	FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id AND q.partition = x.partition`

func TestLooseForeignKeysCleanup_FailureCountsOnceARecordAndRun(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 3)
	e.Deleted("main", "p", 2, 2)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	e.Mine("d", "OLD.p_id = 2", "23514")
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: P0001 raise_exception, 2 records; "+
		"d.p_id -> p on main: 23514 check_violation, 2 records", "processed_records=2 deleted_rows=4 rescheduled_records=2")
	e.Want("main", failuresByKey, "2 1 1 c.p_id -> p P0001, 2 1 1 c.p_id -> p P0001")
}

func TestLooseForeignKeysCleanup_OfTwoFailuresTheRecordsOwnCounts(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 2)
	e.Mine("c", "OLD.p_id = 2", "42501")
	e.Mine("d", "OLD.p_id = 2", "23514")
	servicetest.WantState(t, servicetest.RunBatch(t, e.Service(cAndD), "main"), control.RunFailed)
	e.Want("main", failuresByKey, "1 0 1 c.p_id -> p 42501, 2 1 1 d.p_id -> p 23514")
}

func TestLooseForeignKeysCleanup_OnlyIsolatedFailuresKill(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 1)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 25, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.Mine("c", "true", "42501")
	s := e.Service(servicetest.OneChild)
	wantFailedRun(t, s, "c.p_id -> p on main: 42501 insufficient_privilege (run `caretaker doctor`), 1 "+
		"record", "rescheduled_records=1")
	e.Want("main", failuresByKey, "1 9 26 c.p_id -> p 42501")
	e.Want("main", minutesLeft, "1:60")

	e.Exec("main", `DROP TRIGGER mine ON c; DROP FUNCTION explode_c`)
	e.Mine("c", "true", "23514")
	makeDue(e)
	wantFailedRun(t, s, "c.p_id -> p on main: 23514 check_violation, 1 record", "dead_records=1")
}

func TestLooseForeignKeysCleanup_WhatFailedIsForgottenWithTheRecord(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 2)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 9, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	// One record goes with the last statement, the other, as d is locked, after it.
	release := e.Hold(`SELECT FROM d WHERE p_id = 2 FOR UPDATE`)
	s := e.Service(cAndD)
	r := servicetest.Begin(t, s, "main")
	e.Eventually("main", `SELECT count(*) FROM maintenance.record_failures`, "1")
	release()
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), control.RunSucceeded)
	makeDue(e)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_FailedComesBeforeLocked(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 3)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 1, 1, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.Mine("c", "OLD.p_id = 1", "P0001")
	lock := e.Connect("main")
	assert.Must(lock.Exec(t.Context(), `BEGIN; SELECT FROM d WHERE p_id < 3 FOR UPDATE`))(t)
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: P0001 raise_exception, 1 record",
		"processed_records=1 deleted_rows=3 rescheduled_records=2")
	e.Want("main", minutesLeft, "1:2 2:1")
	e.Want("main", failuresByKey, "1 2 2 c.p_id -> p P0001, 2 1 1 x x")
}

func TestLooseForeignKeysCleanup_IsolatingEndsAfter64FailingStatements(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 300)
	e.Mine("c", "true", "P0001")
	wantFailedRun(t, e.Service(servicetest.OneChild), "c.p_id -> p on main: P0001 raise_exception, 300 records", "rescheduled_records=300")
	e.Want("main", `SELECT last_value FROM tried`, "64")
	e.Want("main", `SELECT count(*) FILTER (WHERE failures = 1) BETWEEN 1 AND 64 AND bool_and(setbacks = 1) AND count(*) = 300 FROM maintenance.record_failures`, "true")
}

func TestFault_LooseForeignKeysCleanup_SlowRowsMakeStatementsSmaller(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % 10 FROM generate_series(1, 20) i`)
	e.Deleted("main", "p", 0, 9)
	e.Exec("main", `CREATE SEQUENCE tried; CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.1); PERFORM nextval(''tried''); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	s := e.Service(servicetest.OneChild)
	r := wantRun(t, s, "processed_records=10 deleted_rows=20")
	assert.That(t, !r.OverLimit, "over_limit: %s", r.Reason)

	// The next run uses the learned sizes: no row is deleted twice.
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(0, 9); ALTER SEQUENCE tried RESTART`)
	e.Deleted("main", "p", 0, 9)
	wantRun(t, s, "processed_records=10 deleted_rows=10")
	e.Want("main", `SELECT last_value FROM tried`, "10")
}

func TestFault_LooseForeignKeysCleanup_OneRowThatTakesForEverIsAFaultOfItsOwn(t *testing.T) {
	e := newTwoChildren(servicetest.Parallel(t), 2)
	e.Exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1000); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 2) EXECUTE FUNCTION slow()`)
	wantFailedRun(t, e.Service("c: [{table: p, column: p_id, on_delete: async_delete, delete_limit: 1}]\n"),
		"c.p_id -> p on main: 57014 query_canceled, 1 record", "processed_records=1 deleted_rows=1 rescheduled_records=1")
	e.Want("main", failuresByKey, "2 1 1 c.p_id -> p 57014")
}

func TestLooseForeignKeysCleanup_AFaultOfTheQueueEndsTheRunAtOnce(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 100)`)
	e.Deleted("main", "p", 1, 100)
	e.Exec("main", `CREATE FUNCTION explode() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''secret''; END';
		CREATE TRIGGER mine BEFORE DELETE ON loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION explode()`)
	before := e.State("main")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(2, 0)), "main")
	servicetest.WantState(t, r, control.RunFailed)
	assert.That(t, strings.HasPrefix(r.Error, "cannot remove records on main: P0001 raise_exception: a trigger"), "error %q", r.Error)
	n := r.Counts["deleted_rows"]
	assert.That(t, n >= 2 && n <= 4, "%d rows deleted, want those of the batches in flight", n)
	// No attempt is counted, nothing postponed.
	e.WantSame("main", before)
	e.WantLease("main", 1, false)
	e.WantLease("ci", 1, false)
}

func TestLooseForeignKeysCleanup_HeldFenceMakesADatabaseUnreachableForThisRun(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE `+database+`_c (p_id bigint); INSERT INTO `+database+`_c SELECT generate_series(1, 4)`)
	}
	e.Exec("main", `CREATE TABLE main_d (o_id bigint); INSERT INTO main_d VALUES (1)`)
	e.Deleted("main", "p", 1, 3)
	e.Deleted("main", "o", 1, 1)
	e.ForeignLease("ci", servicetest.MainLease, "1 hour")
	// It never expires, and nothing else in the row matters.
	e.Exec("ci", `UPDATE maintenance.leases SET renewed_at = 'infinity', expires_at = 'infinity'`)
	fence := e.Value("ci", leaseRow)
	s := e.Service(`
ci_c: [{table: p, column: p_id, on_delete: async_delete}]
main_c: [{table: p, column: p_id, on_delete: async_delete}]
main_d: [{table: o, column: o_id, on_delete: async_delete}]
`)
	wantFailedRun(t, s, "ci_c.p_id -> p on ci: unreachable, 3 records", "processed_records=1 deleted_rows=4 rescheduled_records=3")
	e.Want("main", minutesLeft, "1:1 2:1 3:1")
	e.Want("main", failuresByKey, "1 0 1 ci_c.p_id -> p , 2 0 1 ci_c.p_id -> p , 3 0 1 ci_c.p_id -> p ")
	e.Want("ci", `SELECT count(*) FROM ci_c`, "4")
	e.Want("ci", leaseRow, fence)
	e.WantLease("main", 1, false)

	e.Exec("ci", `UPDATE maintenance.leases SET expires_at = now()`)
	makeDue(e)
	wantRun(t, s, "processed_records=3 deleted_rows=3")
	e.WantLease("ci", 8, false)
}

// No row can hold a text that the encoding of its database has no characters for.
func TestLooseForeignKeysCleanup_AKeyThatTheChildsEncodingCannotHoldHasNoChildren(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	latin := servicetest.Migrated("")
	latin.Encoding = "LATIN1"
	e.Add("ci", servicetest.Databases.Clone(t, latin))
	for _, name := range []string{"main", "ci"} {
		e.Exec(name, `CREATE TABLE c (p_name text); CREATE INDEX ON c (p_name)`)
	}
	e.Exec("ci", `INSERT INTO c SELECT chr(233) || n FROM generate_series(1, 100) n`)
	e.Exec("main", `CREATE TABLE p (name text PRIMARY KEY)`)
	track(e, "p", "name")
	e.Exec("main", `INSERT INTO p SELECT 'é' || n FROM generate_series(1, 100) n UNION SELECT '€' || n FROM generate_series(1, 100) n;
		INSERT INTO c SELECT name FROM p; DELETE FROM p`)
	const definition = `c: [{table: p, column: p_name, on_delete: async_delete}]`
	s := e.Service(definition)
	servicetest.WantCounts(t, servicetest.DryRun(t, s), "processed_records=200 deleted_rows=300")
	wantRun(t, s, "processed_records=200 deleted_rows=300")
	e.Want("ci", `SELECT count(*) FROM c`, "0")
	e.Want("main", `SELECT (SELECT count(*) FROM c) || ' ' || (SELECT count(*) FROM maintenance.record_failures)`, "0 0")
}
