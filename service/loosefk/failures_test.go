package loosefk_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
	e := newTwoChildren(parallel(t), 3)
	e.Deleted("main", "p", 2, 2)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	e.Mine("d", "OLD.p_id = 2", "23514")
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: P0001 raise_exception, 2 records; d.p_id -> p on main: 23514 check_violation, 2 records", "processed_records=2 deleted_rows=4 rescheduled_records=2")
	e.Want("main", failuresByKey, "2 1 1 c.p_id -> p P0001, 2 1 1 c.p_id -> p P0001")
}

func TestLooseForeignKeysCleanup_OfTwoFailuresTheRecordsOwnCounts(t *testing.T) {
	e := newTwoChildren(parallel(t), 2)
	e.Mine("c", "OLD.p_id = 2", "42501")
	e.Mine("d", "OLD.p_id = 2", "23514")
	servicetest.WantState(t, servicetest.RunBatch(t, e.Service(cAndD), "main"), repo.RunFailed)
	e.Want("main", failuresByKey, "1 0 1 c.p_id -> p 42501, 2 1 1 d.p_id -> p 23514")
}

func TestLooseForeignKeysCleanup_OnlyIsolatedFailuresKill(t *testing.T) {
	e := newTwoChildren(parallel(t), 1)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 25, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.Mine("c", "true", "42501")
	s := e.Service(servicetest.OneChild)
	wantFailedRun(t, s, "c.p_id -> p on main: 42501 insufficient_privilege, 1 records", "rescheduled_records=1")
	e.Want("main", failuresByKey, "1 9 26 c.p_id -> p 42501")
	e.Want("main", minutesLeft, "1:60")

	e.Exec("main", `DROP TRIGGER mine ON c; DROP FUNCTION explode_c`)
	e.Mine("c", "true", "23514")
	makeDue(e)
	wantFailedRun(t, s, "c.p_id -> p on main: 23514 check_violation, 1 records", "dead_records=1")
}

func TestLooseForeignKeysCleanup_WhatFailedIsForgottenWithTheRecord(t *testing.T) {
	e := newTwoChildren(parallel(t), 2)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 9, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	// One record goes with the last statement, the other, as d is locked, after it.
	e.Exec("main", `BEGIN; SELECT FROM d WHERE p_id = 2 FOR UPDATE`)
	other := e.Connect("main")
	s := e.Service(cAndD)
	r := servicetest.Begin(t, s, "main")
	devdb.Eventually(t, "the first record to go", func() bool {
		var n int
		servicetest.NoError(t, other.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.record_failures`).Scan(&n))
		return n == 1
	})
	e.Exec("main", `COMMIT`)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunSucceeded)
	makeDue(e)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_FailedComesBeforeLocked(t *testing.T) {
	e := newTwoChildren(parallel(t), 3)
	e.Exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 1, 1, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.Mine("c", "OLD.p_id = 1", "P0001")
	lock := e.Connect("main")
	servicetest.Must(lock.Exec(t.Context(), `BEGIN; SELECT FROM d WHERE p_id < 3 FOR UPDATE`))(t)
	wantFailedRun(t, e.Service(cAndD), "c.p_id -> p on main: P0001 raise_exception, 1 records", "processed_records=1 deleted_rows=3 rescheduled_records=2")
	e.Want("main", minutesLeft, "1:2 2:1")
	e.Want("main", failuresByKey, "1 2 2 c.p_id -> p P0001, 2 1 1 x x")
}

func TestLooseForeignKeysCleanup_IsolatingEndsAfter64FailingStatements(t *testing.T) {
	e := newTwoChildren(parallel(t), 300)
	e.Mine("c", "true", "P0001")
	wantFailedRun(t, e.Service(servicetest.OneChild), "c.p_id -> p on main: P0001 raise_exception, 300 records", "rescheduled_records=300")
	e.Want("main", `SELECT last_value FROM tried`, "64")
	e.Want("main", `SELECT count(*) FILTER (WHERE failures = 1) BETWEEN 1 AND 64 AND bool_and(setbacks = 1) AND count(*) = 300 FROM maintenance.record_failures`, "true")
}

func TestLooseForeignKeysCleanup_SlowRowsMakeStatementsSmaller(t *testing.T) {
	e := servicetest.NewOneChild(parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % 10 FROM generate_series(1, 20) i`)
	e.Deleted("main", "p", 0, 9)
	e.Exec("main", `CREATE SEQUENCE tried; CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.1); PERFORM nextval(''tried''); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	s := e.Service(servicetest.OneChild)
	r := wantRun(t, s, "processed_records=10 deleted_rows=20")
	if r.OverLimit {
		t.Errorf("over_limit: %s", r.Reason)
	}

	// What has been learned serves the next run: no row is deleted twice.
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(0, 9); ALTER SEQUENCE tried RESTART`)
	e.Deleted("main", "p", 0, 9)
	wantRun(t, s, "processed_records=10 deleted_rows=10")
	e.Want("main", `SELECT last_value FROM tried`, "10")
}

func TestLooseForeignKeysCleanup_OneRowThatTakesForEverIsAFaultOfItsOwn(t *testing.T) {
	e := newTwoChildren(parallel(t), 2)
	e.Exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1000); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 2) EXECUTE FUNCTION slow()`)
	wantFailedRun(t, e.Service("c: [{table: p, column: p_id, on_delete: async_delete, delete_limit: 1}]\n"), "c.p_id -> p on main: 57014 query_canceled, 1 records", "processed_records=1 deleted_rows=1 rescheduled_records=1")
	e.Want("main", failuresByKey, "2 1 1 c.p_id -> p 57014")
}

func TestLooseForeignKeysCleanup_AFaultOfTheQueueEndsTheRunAtOnce(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 100)`)
	e.Deleted("main", "p", 1, 100)
	e.Exec("main", `CREATE FUNCTION explode() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''secret''; END';
		CREATE TRIGGER mine BEFORE DELETE ON loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION explode()`)
	before := e.State("main")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(2, 0)), "main")
	servicetest.WantState(t, r, repo.RunFailed)
	if !strings.HasPrefix(r.Error, "remove records on main: P0001 raise_exception: a trigger") {
		t.Errorf("error %q", r.Error)
	}
	if n := r.Counts["deleted_rows"]; n < 2 || n > 4 {
		t.Errorf("%d rows deleted, want those of the batches in flight", n)
	}
	// No attempt is counted, nothing postponed.
	e.WantSame("main", before)
	e.WantLease("main", 1, false)
	e.WantLease("ci", 1, false)
}

func TestLooseForeignKeysCleanup_HeldFenceMakesADatabaseUnreachableForThisRun(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
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

func TestLooseForeignKeysCleanup_LostFenceIsALostLease(t *testing.T) {
	e := servicetest.New(parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 10)`)
	e.Gate("ci", "c")
	e.Shut("ci", servicetest.App)
	e.Deleted("main", "p", 1, 10)
	s := e.Service(servicetest.OneChild)
	main, ci := e.State("main"), e.State("ci", "c")
	r := servicetest.Begin(t, s, "main")
	e.AtGate("ci", servicetest.App)
	e.Exec("ci", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.Lift("ci", servicetest.App)
	servicetest.WantLost(t, servicetest.Ended(t, s, r.ID))
	e.WantSame("main", main)
	e.WantSame("ci", ci, "c")
	e.WantLease("main", 1, false)
	e.WantLease("ci", 2, true)
}

func TestLooseForeignKeysCleanup_SLIs(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.NewDeletedParents(t, 10)
	e.Exec("main", `CREATE TABLE bad (o_id text)`)
	s := e.Service(servicetest.OneChild+"bad: [{table: o, column: missing, on_delete: async_delete}]\n", servicetest.With(func(c *loosefk.Config) { c.MaxDeletes = 6 }))
	want := func(after string, satisfied, over, succeeded, failed int64) {
		t.Helper()
		for attributes, n := range map[string]int64{"database=main success=true": satisfied, "database=main success=false": over} {
			if got := m.Counter("maintenance.sli.apdex", attributes); got != n {
				t.Errorf("after %s: apdex %s is %d, want %d", after, attributes, got, n)
			}
		}
		for attributes, n := range map[string]int64{"database=main error=false": succeeded, "database=main error=true": failed} {
			if got := m.Counter("maintenance.sli.error", attributes); got != n {
				t.Errorf("after %s: error %s is %d, want %d", after, attributes, got, n)
			}
		}
	}
	servicetest.RunBatch(t, s, "main")
	want("a run over its limit", 0, 1, 1, 0)
	makeDue(e)
	e.Exec("main", `DELETE FROM c; DELETE FROM loose_foreign_keys_deleted_records WHERE primary_key_value > 4`)
	servicetest.RunBatch(t, s, "main")
	want("a clean run", 1, 1, 2, 0)
	e.Deleted("main", "o", 1, 1)
	servicetest.RunBatch(t, s, "main")
	want("a failed run", 1, 1, 2, 1)
	if _, err := s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	// Whoever wrote it, an unexpired row is a held lease.
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now() + interval '1 hour'`)
	if r := e.Fire(s, servicetest.LooseForeignKeys); r.State != repo.RunSkipped {
		t.Fatal(r.State)
	}
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	e.Exec("main", `INSERT INTO c (p_id) VALUES (77)`)
	e.Deleted("main", "p", 77, 77)
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	servicetest.Must(s.CancelRun(t.Context(), r.ID, ""))(t)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunCancelled)
	want("dry, skipped and cancelled runs", 1, 1, 2, 1)
}
