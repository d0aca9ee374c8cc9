package loosefk_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestFault_LooseForeignKeysCleanup_KilledBetweenChildrenAndRemovalIsTakenOver(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 10 FROM generate_series(1, 100) i`)
	e.Deleted("main", "p", 1, 5)
	e.Gate("main", "loose_foreign_keys_deleted_records")
	e.Shut("main", "doomed")
	p := e.Start("doomed", servicetest.OneChild, servicetest.ShortRun)
	e.AtGate("main", "doomed")
	e.Want("ci", `SELECT count(*) FROM c`, "50")
	// What its batches have committed is on record soon.
	e.Eventually("main", `SELECT counts ->> 'deleted_rows' FROM maintenance.runs`, "50")
	p.Kill()
	// The server gives up the removal that nobody waits for.
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	e.WantQueue("main", "1 2 3 4 5")
	e.WantLease("main", 1, true)

	s := e.Service(servicetest.OneChild)
	r := e.AfterExpiry(s, "doomed")
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "processed_records=5")
	if r.LeaseEpoch != 2 {
		t.Errorf("epoch %d, want 2", r.LeaseEpoch)
	}
	e.Want("ci", `SELECT count(*) FROM c`, "50")
	e.WantQueue("main", "")
	e.WantLease("main", 2, false)
	e.WantLease("ci", 2, false)

	// Its run is closed as soon as somebody asks after its time.
	id := e.Value("main", `SELECT id FROM maintenance.runs WHERE replica = 'doomed'`)
	dead := servicetest.Ended(t, s, id)
	servicetest.WantLost(t, dead)
	servicetest.WantCounts(t, dead, "deleted_rows=50")
	if dead.FinishedAt.IsZero() || !strings.Contains(dead.Error, "at least what its counts say") {
		t.Errorf("%+v, want an end and an error", dead)
	}
}

func TestFault_LooseForeignKeysCleanup_WokenBeyondItsLeaseWritesNothingAndFreesNoLease(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.Exec("ci", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 20)`)
	e.Deleted("main", "p", 1, 20)
	e.Gate("main", "c")
	e.Shut("main", "sleeper")
	e.Shut("main", "successor")
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n" + servicetest.OneChild
	sleeper := e.Start("sleeper", definitions, servicetest.ShortRun)
	e.AtGate("main", "sleeper")
	sleeper.Signal(syscall.SIGSTOP)
	e.Want("ci", `SELECT count(*) FROM d`, "0")
	for _, database := range []string{"main", "ci"} {
		e.Eventually(database, `SELECT expires_at <= clock_timestamp() FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "true")
	}

	successor := e.Start("successor", definitions, func(o *servicetest.Order) { o.BatchSize = 10 })
	e.AtGate("main", "successor")
	e.WantLease("main", 2, true)
	e.WantLease("ci", 2, true)
	before := e.State("main", "c")
	e.Lift("main", "sleeper")
	sleeper.Signal(syscall.SIGCONT)
	result := sleeper.Result()
	if result.Error != "" {
		t.Fatal(result.Error)
	}
	servicetest.WantLost(t, result.Run)
	servicetest.WantCounts(t, result.Run, "deleted_rows=20")
	e.WantSame("main", before, "c")
	e.WantLease("main", 2, true)
	e.WantLease("ci", 2, true)
	e.Want("main", `SELECT holder FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "successor")

	e.Lift("main", "successor")
	result = successor.Result()
	if result.Error != "" {
		t.Fatal(result.Error)
	}
	servicetest.WantState(t, result.Run, repo.RunSucceeded)
	servicetest.WantCounts(t, result.Run, "processed_records=20 deleted_rows=20")
	e.Want("main", `SELECT count(*) FROM c`, "0")
	e.WantLease("main", 2, false)
}
