package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

const cAndD = oneChild + "d: [{table: p, column: p_id, on_delete: async_delete}]\n"

// newTwoChildren is a main with tables c and d that have a row for each of the deleted parents 1 to n.
func newTwoChildren(t *testing.T, n int) *estate {
	t.Helper()
	e := newOneChild(t)
	e.exec("main", `CREATE TABLE d (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON d (p_id)`)
	e.exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
	e.exec("main", `INSERT INTO d (p_id) SELECT generate_series(1, $1::int)`, n)
	e.deleted("main", "p", 1, n)
	return e
}

const failuresByKey = `SELECT string_agg(concat_ws(' ', q.primary_key_value, failures, setbacks, last_definition, sqlstate), ', ' ORDER BY q.primary_key_value, q.id)
	FROM maintenance.record_failures x JOIN loose_foreign_keys_deleted_records q ON q.id = x.record_id AND q.partition = x.partition`

func TestLooseForeignKeysCleanup_FailureCountsOnceARecordAndRun(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 3)
	e.deleted("main", "p", 2, 2)
	e.mine("c", "OLD.p_id = 2", "P0001")
	e.mine("d", "OLD.p_id = 2", "23514")
	r := runBatch(t, e.service(cAndD), "main")
	wantFailed(t, r, "c.p_id -> p on main: P0001 raise_exception, 2 records; d.p_id -> p on main: 23514 check_violation, 2 records")
	wantCounts(t, r, "processed_records=2 deleted_rows=4 rescheduled_records=2")
	e.want("main", failuresByKey, "2 1 1 c.p_id -> p P0001, 2 1 1 c.p_id -> p P0001")
}

func TestLooseForeignKeysCleanup_OfTwoFailuresTheRecordsOwnCounts(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 2)
	e.mine("c", "OLD.p_id = 2", "42501")
	e.mine("d", "OLD.p_id = 2", "23514")
	wantState(t, runBatch(t, e.service(cAndD), "main"), repo.RunFailed)
	e.want("main", failuresByKey, "1 0 1 c.p_id -> p 42501, 2 1 1 d.p_id -> p 23514")
}

func TestLooseForeignKeysCleanup_OnlyIsolatedFailuresKill(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 1)
	e.exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 25, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.mine("c", "true", "42501")
	s := e.service(oneChild)
	r := runBatch(t, s, "main")
	wantCounts(t, r, "rescheduled_records=1")
	e.want("main", failuresByKey, "1 9 26 c.p_id -> p 42501")
	e.want("main", minutesLeft, "1:60")

	e.exec("main", `DROP TRIGGER mine ON c; DROP FUNCTION explode_c`)
	e.mine("c", "true", "23514")
	e.makeDue()
	wantCounts(t, runBatch(t, s, "main"), "dead_records=1")
}

func TestLooseForeignKeysCleanup_WhatFailedIsForgottenWithTheRecord(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 2)
	e.exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 9, 9, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	// One record goes with the last statement, the other, as d is locked, after it.
	e.exec("main", `BEGIN; SELECT FROM d WHERE p_id = 2 FOR UPDATE`)
	other := e.connect("main")
	s := e.service(cAndD)
	r := begin(t, s, "main")
	waitFor(t, "the first record to go", func() bool {
		var n int
		if err := other.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.record_failures`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	e.exec("main", `COMMIT`)
	wantState(t, ended(t, s, r.ID), repo.RunSucceeded)
	e.makeDue()
	runBatch(t, s, "main")
	e.want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
	e.wantQueue("main", "")
}

func TestLooseForeignKeysCleanup_FailedComesBeforeLocked(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 3)
	e.exec("main", `INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
		SELECT partition, id, 1, 1, 'x', 'x' FROM loose_foreign_keys_deleted_records`)
	e.mine("c", "OLD.p_id = 1", "P0001")
	lock := e.connect("main")
	if _, err := lock.Exec(t.Context(), `BEGIN; SELECT FROM d WHERE p_id < 3 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	r := runBatch(t, e.service(cAndD), "main")
	wantFailed(t, r, "c.p_id -> p on main: P0001 raise_exception, 1 records")
	wantCounts(t, r, "processed_records=1 deleted_rows=3 rescheduled_records=2")
	e.want("main", minutesLeft, "1:2 2:1")
	e.want("main", failuresByKey, "1 2 2 c.p_id -> p P0001, 2 1 1 x x")
}

func TestLooseForeignKeysCleanup_IsolatingEndsAfter64FailingStatements(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 300)
	e.mine("c", "true", "P0001")
	r := runBatch(t, e.service(oneChild), "main")
	wantFailed(t, r, "c.p_id -> p on main: P0001 raise_exception, 300 records")
	wantCounts(t, r, "rescheduled_records=300")
	e.want("main", `SELECT last_value FROM tried`, "64")
	e.want("main", `SELECT count(*) FILTER (WHERE failures = 1) BETWEEN 1 AND 64 AND bool_and(setbacks = 1) AND count(*) = 300 FROM maintenance.record_failures`, "true")
}

func TestLooseForeignKeysCleanup_SlowRowsMakeStatementsSmaller(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) SELECT i % 10 FROM generate_series(1, 100) i`)
	e.deleted("main", "p", 0, 9)
	e.exec("main", `CREATE SEQUENCE tried; CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.1); PERFORM nextval(''tried''); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	s := e.service(oneChild)
	r := runBatch(t, s, "main")
	wantState(t, r, repo.RunSucceeded)
	if r.OverLimit {
		t.Errorf("over_limit: %s", r.Reason)
	}
	wantCounts(t, r, "processed_records=10 deleted_rows=100")

	// What has been learned serves the next run: no row is deleted twice.
	e.exec("main", `INSERT INTO c (p_id) SELECT i % 10 FROM generate_series(1, 30) i; ALTER SEQUENCE tried RESTART`)
	e.deleted("main", "p", 0, 9)
	wantCounts(t, runBatch(t, s, "main"), "processed_records=10 deleted_rows=30")
	e.want("main", `SELECT last_value FROM tried`, "30")
}

func TestLooseForeignKeysCleanup_OneRowThatTakesForEverIsAFaultOfItsOwn(t *testing.T) {
	t.Parallel()
	e := newTwoChildren(t, 2)
	e.exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1000); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 2) EXECUTE FUNCTION slow()`)
	r := runBatch(t, e.service("c: [{table: p, column: p_id, on_delete: async_delete, delete_limit: 1}]\n"), "main")
	wantFailed(t, r, "c.p_id -> p on main: 57014 query_canceled, 1 records")
	wantCounts(t, r, "processed_records=1 deleted_rows=1 rescheduled_records=1")
	e.want("main", failuresByKey, "2 1 1 c.p_id -> p 57014")
}

func TestLooseForeignKeysCleanup_AFaultOfTheQueueEndsTheRunAtOnce(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 100)`)
	e.deleted("main", "p", 1, 100)
	e.exec("main", `CREATE FUNCTION explode() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''secret''; END';
		CREATE TRIGGER mine BEFORE DELETE ON loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION explode()`)
	before := e.state("main")
	r := runBatch(t, e.service(oneChild, batches(2, 0)), "main")
	wantState(t, r, repo.RunFailed)
	if !strings.HasPrefix(r.Error, "remove records on main: P0001 raise_exception: a trigger") {
		t.Errorf("error %q", r.Error)
	}
	if n := r.Counts["deleted_rows"]; n < 2 || n > 4 {
		t.Errorf("%d rows deleted, want those of the batches in flight", n)
	}
	// No attempt is counted, nothing put off.
	e.wantSame("main", before)
	e.wantLease("main", 1, false)
	e.wantLease("ci", 1, false)
}

func TestLooseForeignKeysCleanup_HeldFenceMakesADatabaseUnreachableForThisRun(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.exec(database, `CREATE TABLE `+database+`_c (p_id bigint); INSERT INTO `+database+`_c SELECT generate_series(1, 4)`)
	}
	e.exec("main", `CREATE TABLE main_d (o_id bigint); INSERT INTO main_d VALUES (1)`)
	e.deleted("main", "p", 1, 3)
	e.deleted("main", "o", 1, 1)
	e.foreignLease("ci", mainLease, "1 hour")
	// It never expires, and nothing else in the row matters.
	e.exec("ci", `UPDATE maintenance.leases SET renewed_at = 'infinity', expires_at = 'infinity'`)
	fence := e.value("ci", leaseRow)
	s := e.service(`
ci_c: [{table: p, column: p_id, on_delete: async_delete}]
main_c: [{table: p, column: p_id, on_delete: async_delete}]
main_d: [{table: o, column: o_id, on_delete: async_delete}]
`)
	r := runBatch(t, s, "main")
	wantFailed(t, r, "ci_c.p_id -> p on ci: unreachable, 3 records")
	wantCounts(t, r, "processed_records=1 deleted_rows=4 rescheduled_records=3")
	e.want("main", minutesLeft, "1:1 2:1 3:1")
	e.want("main", failuresByKey, "1 0 1 ci_c.p_id -> p , 2 0 1 ci_c.p_id -> p , 3 0 1 ci_c.p_id -> p ")
	e.want("ci", `SELECT count(*) FROM ci_c`, "4")
	e.want("ci", leaseRow, fence)
	e.wantLease("main", 1, false)

	e.exec("ci", `UPDATE maintenance.leases SET expires_at = now()`)
	e.makeDue()
	r = runBatch(t, s, "main")
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=3 deleted_rows=3")
	e.wantLease("ci", 8, false)
}

func TestLooseForeignKeysCleanup_LostFenceIsALostLease(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 10)`)
	e.gate("ci", "c")
	e.shut("ci", caretakerApp)
	e.deleted("main", "p", 1, 10)
	s := e.service(oneChild)
	main, ci := e.state("main"), e.state("ci", "c")
	r := begin(t, s, "main")
	e.atGate("ci", caretakerApp)
	e.exec("ci", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.lift("ci", caretakerApp)
	wantLost(t, ended(t, s, r.ID))
	e.wantSame("main", main)
	e.wantSame("ci", ci, "c")
	e.wantLease("main", 1, false)
	e.wantLease("ci", 2, true)
}

func TestLooseForeignKeysCleanup_SLIs(t *testing.T) {
	m := newMeter(t)
	e := newDeletedParents(t, 10)
	e.exec("main", `CREATE TABLE bad (o_id text)`)
	s := e.service(oneChild+"bad: [{table: o, column: missing, on_delete: async_delete}]\n", with(func(c *loosefk.Config) { c.MaxDeletes = 6 }))
	want := func(after string, satisfied, over, succeeded, failed int64) {
		t.Helper()
		for attributes, n := range map[string]int64{"database=main success=true": satisfied, "database=main success=false": over} {
			if got := m.counter("maintenance.sli.apdex", attributes); got != n {
				t.Errorf("after %s: apdex %s is %d, want %d", after, attributes, got, n)
			}
		}
		for attributes, n := range map[string]int64{"database=main error=false": succeeded, "database=main error=true": failed} {
			if got := m.counter("maintenance.sli.error", attributes); got != n {
				t.Errorf("after %s: error %s is %d, want %d", after, attributes, got, n)
			}
		}
	}
	runBatch(t, s, "main")
	want("a run over its limit", 0, 1, 1, 0)
	e.makeDue()
	e.exec("main", `DELETE FROM c; DELETE FROM loose_foreign_keys_deleted_records WHERE primary_key_value > 4`)
	runBatch(t, s, "main")
	want("a clean run", 1, 1, 2, 0)
	e.deleted("main", "o", 1, 1)
	runBatch(t, s, "main")
	want("a failed run", 1, 1, 2, 1)
	if _, err := s.RunBatch(t.Context(), service.RunRequest{Worker: cleanupWorker, Database: "main", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	// Whoever wrote it, an unexpired row is a held lease.
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now() + interval '1 hour'`)
	if r, _, err := s.RunScheduled(t.Context(), cleanupWorker, time.Now().Truncate(time.Minute)); err != nil || r.State != repo.RunSkipped {
		t.Fatal(r.State, err)
	}
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.gate("main", "c")
	e.shut("main", caretakerApp)
	e.exec("main", `INSERT INTO c (p_id) VALUES (77)`)
	e.deleted("main", "p", 77, 77)
	r := begin(t, s, "main")
	e.atGate("main", caretakerApp)
	if _, err := s.CancelRun(t.Context(), r.ID, ""); err != nil {
		t.Fatal(err)
	}
	wantState(t, ended(t, s, r.ID), repo.RunCancelled)
	want("dry, skipped and cancelled runs", 1, 1, 2, 1)
}
