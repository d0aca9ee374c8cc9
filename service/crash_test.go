package service_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// shortRun makes a run of a second at most: its lease holds for 11.
func shortRun(o *processOrder) { o.MaxRuntime = time.Second }

// afterExpiry runs the worker on main as soon as the lease that somebody has left behind has expired.
func (e *estate) afterExpiry(s *service.Service, holder string) (r service.Run) {
	e.t.Helper()
	waitFor(e.t, "the lease of "+holder+" to expire", func() bool {
		var err error
		r, err = s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "main"})
		var held *service.LeaseHeldError
		if !errors.As(err, &held) && err != nil {
			e.t.Fatal(err)
		}
		if held != nil && (held.Lease.Holder != holder || held.Remaining > 11*time.Second) {
			e.t.Fatalf("%+v, want held by %s for at most 11 s", held, holder)
		}
		return err == nil
	})
	return r
}

func TestLooseForeignKeysCleanup_KilledBetweenChildrenAndRemovalIsTakenOver(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 10 FROM generate_series(1, 100) i`)
	e.deleted("main", "p", 1, 5)
	e.gate("main", "loose_foreign_keys_deleted_records")
	e.shut("main", "doomed")
	p := e.start("doomed", oneChild, shortRun)
	e.atGate("main", "doomed")
	e.want("ci", `SELECT count(*) FROM c`, "50")
	// What its batches have committed is on record soon.
	e.eventually("main", `SELECT counts ->> 'deleted_rows' FROM maintenance.runs`, "50")
	p.kill()
	// The server gives up the removal that nobody waits for.
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	e.wantQueue("main", "1 2 3 4 5")
	e.wantLease("main", 1, true)

	s := e.service(oneChild)
	r := e.afterExpiry(s, "doomed")
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=5")
	if r.LeaseEpoch != 2 {
		t.Errorf("epoch %d, want 2", r.LeaseEpoch)
	}
	e.want("ci", `SELECT count(*) FROM c`, "50")
	e.wantQueue("main", "")
	e.wantLease("main", 2, false)
	e.wantLease("ci", 2, false)

	// Its run is closed as soon as somebody asks after its time.
	id := e.value("main", `SELECT id FROM maintenance.runs WHERE replica = 'doomed'`)
	dead := ended(t, s, id)
	wantLost(t, dead)
	wantCounts(t, dead, "deleted_rows=50")
	if dead.FinishedAt.IsZero() || !strings.Contains(dead.Error, "at least what its counts say") {
		t.Errorf("%+v, want an end and an error", dead)
	}
}

func TestLooseForeignKeysCleanup_KilledInTheMiddleOfAStatementIsTakenOver(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 6)
	e.exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 9)`)
	e.gate("main", "d")
	e.shut("main", "doomed")
	definitions := oneChild + "d: [{table: p, column: p_id, on_delete: async_nullify}]\n"
	p := e.start("doomed", definitions, shortRun)
	e.atGate("main", "doomed")
	e.want("main", `SELECT count(*) FROM c`, "0")
	p.kill()

	r := e.afterExpiry(e.service(definitions), "doomed")
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=6 updated_rows=6")
	e.want("main", `SELECT count(*) FILTER (WHERE p_id IS NULL) || ' of ' || count(*) FROM d`, "6 of 9")
	e.wantQueue("main", "")
	e.want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
}

func TestLooseForeignKeysCleanup_WokenBeyondItsLeaseWritesNothingAndFreesNoLease(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.exec("ci", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 20)`)
	e.deleted("main", "p", 1, 20)
	e.gate("main", "c")
	e.shut("main", "sleeper")
	e.shut("main", "successor")
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n" + oneChild
	sleeper := e.start("sleeper", definitions, shortRun)
	e.atGate("main", "sleeper")
	sleeper.signal(syscall.SIGSTOP)
	e.want("ci", `SELECT count(*) FROM d`, "0")
	for _, database := range []string{"main", "ci"} {
		e.eventually(database, `SELECT expires_at <= clock_timestamp() FROM maintenance.leases WHERE name = '`+mainLease+`'`, "true")
	}

	successor := e.start("successor", definitions, func(o *processOrder) { o.BatchSize = 10 })
	e.atGate("main", "successor")
	e.wantLease("main", 2, true)
	e.wantLease("ci", 2, true)
	before := e.state("main", "c")
	e.lift("main", "sleeper")
	sleeper.signal(syscall.SIGCONT)
	result := sleeper.result()
	if result.Error != "" {
		t.Fatal(result.Error)
	}
	wantLost(t, result.Run)
	wantCounts(t, result.Run, "deleted_rows=20")
	e.wantSame("main", before, "c")
	e.wantLease("main", 2, true)
	e.wantLease("ci", 2, true)
	e.want("main", `SELECT holder FROM maintenance.leases WHERE name = '`+mainLease+`'`, "successor")

	e.lift("main", "successor")
	result = successor.result()
	if result.Error != "" {
		t.Fatal(result.Error)
	}
	wantState(t, result.Run, repo.RunSucceeded)
	wantCounts(t, result.Run, "processed_records=20 deleted_rows=20")
	e.want("main", `SELECT count(*) FROM c`, "0")
	e.wantLease("main", 2, false)
}

func TestLooseForeignKeysCleanup_TwoProcessesNeverWorkOnOneDatabaseAtOnce(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 5)
	e.gate("main", "c")
	e.shut("main", "left")
	e.shut("main", "right")
	left, right := e.start("left", oneChild), e.start("right", oneChild)
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name IN ('left', 'right') AND wait_event = 'PgSleep'`, "1")
	first, second := left, right
	if e.value("main", `SELECT holder FROM maintenance.leases`) == "right" {
		first, second = right, left
	}
	if r := second.result(); r.Error == "" || r.Run.ID != "" {
		t.Errorf("%+v, want that the lease is held", r)
	}
	e.lift("main", "left")
	e.lift("main", "right")
	wantCounts(t, first.result().Run, "processed_records=5 deleted_rows=15")
	e.wantLease("main", 1, false)
}
