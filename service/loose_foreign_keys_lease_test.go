package service_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// newDeletedParents is a main with the children of parents 1 to n, three each, which have been deleted.
func newDeletedParents(t *testing.T, n int) *estate {
	t.Helper()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) SELECT i % $1 + 1 FROM generate_series(1, 3 * $1) i`, n)
	e.deleted("main", "p", 1, n)
	return e
}

// foreignLease is a lease row of somebody who is no caretaker.
func (e *estate) foreignLease(database, name, expires string) {
	e.t.Helper()
	e.exec(database, `INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ($1, 'somebody', 7, now(), now(), now() + $2::text::interval)`, name, expires)
}

// wantHeld fails the test unless the error says that this holder has the lease, and for how long.
func wantHeld(t *testing.T, err error, holder string, atMost time.Duration) {
	t.Helper()
	var held *service.LeaseHeldError
	if !errors.As(err, &held) {
		t.Fatalf("error %v, want that the lease is held", err)
	}
	if held.Lease.Holder != holder || held.Remaining <= 0 || held.Remaining > atMost || held.Lease.ExpiresAt.IsZero() {
		t.Errorf("%+v, want held by %s for at most %s", held, holder, atMost)
	}
}

const (
	mainLease = cleanupWorker + "/main"
	leaseRow  = `SELECT l::text || ' ' || xmin FROM maintenance.leases l WHERE name = '` + mainLease + `'`
)

func TestLooseForeignKeysCleanup_ForeignLeaseIsRespected(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 5)
	e.foreignLease("main", mainLease, "1 minute")
	before, lease := e.state("main", "c"), e.value("main", leaseRow)
	s := e.service(oneChild)

	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "main"})
	wantHeld(t, err, "somebody", time.Minute)
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "0")

	r, ours, err := s.RunScheduled(context.Background(), cleanupWorker, time.Now().Truncate(time.Minute))
	if err != nil || !ours {
		t.Fatal(ours, err)
	}
	wantState(t, r, repo.RunSkipped)
	if r.Reason != "LEASE_HELD" {
		t.Errorf("reason %q", r.Reason)
	}
	e.wantSame("main", before, "c")
	e.want("main", leaseRow, lease)
}

func TestLooseForeignKeysCleanup_ExpiredLeaseIsTakenWithTheNextEpoch(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 5)
	e.foreignLease("main", mainLease, "0")
	r := runBatch(t, e.service(oneChild), "main")
	wantState(t, r, repo.RunSucceeded)
	if r.LeaseEpoch != 8 {
		t.Errorf("epoch %d, want 8", r.LeaseEpoch)
	}
	e.wantLease("main", 8, false)
}

func TestLooseForeignKeysCleanup_EveryRunHasItsOwnEpochAndGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 1)
	s := e.service(oneChild)
	for epoch := int64(1); epoch <= 3; epoch++ {
		if r := runBatch(t, s, "main"); r.LeaseEpoch != epoch {
			t.Errorf("epoch %d, want %d", r.LeaseEpoch, epoch)
		}
		e.wantLease("main", epoch, false)
	}
}

func TestLooseForeignKeysCleanup_LeaseOutlastsTheRunByTenSeconds(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1)`)
	e.gate("main", "c")
	e.shut("main", caretakerApp)
	s := e.service(oneChild)
	if err := s.SetFeatureFlag(context.Background(), "loose_foreign_keys_turbo_mode_main", true); err != nil {
		t.Fatal(err)
	}
	for database, ttl := range map[string]string{"main": "00:00:55", "ci": "00:00:40"} {
		e.deleted(database, "p", 1, 1)
		r := begin(t, s, database)
		if r.TurboMode != (database == "main") {
			t.Errorf("turbo mode on %s: %t", database, r.TurboMode)
		}
		e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`, "1")
		e.want(database, `SELECT expires_at - renewed_at FROM maintenance.leases WHERE name = 'loose_foreign_keys_cleanup/`+database+`'`, ttl)
		e.lift("main", caretakerApp)
		wantState(t, ended(t, s, r.ID), repo.RunSucceeded)
		e.exec("main", `INSERT INTO c (p_id) VALUES (1)`)
		e.shut("main", caretakerApp)
	}
}

func TestLooseForeignKeysCleanup_AHeldLeaseIsAnsweredWithoutWaitingForItsHolder(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 1)
	e.foreignLease("main", mainLease, "1 minute")
	// As a statement of the holder in flight has it.
	e.exec("main", `BEGIN; SELECT FROM maintenance.leases FOR SHARE`)
	defer e.exec("main", `ROLLBACK`)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	_, err := e.service(oneChild).RunBatch(ctx, service.RunRequest{Worker: cleanupWorker, Database: "main"})
	wantHeld(t, err, "somebody", time.Minute)
}

func TestLooseForeignKeysCleanup_ATakeOverWaitsForTheCommitOfTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 1)
	e.foreignLease("main", mainLease, "500 milliseconds")
	held := e.connect("main")
	if _, err := held.Exec(context.Background(), `BEGIN; SELECT FROM maintenance.leases WHERE expires_at > clock_timestamp() FOR SHARE; DELETE FROM c WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	e.eventually("main", `SELECT expires_at <= clock_timestamp() FROM maintenance.leases`, "true")
	s := e.service(oneChild)
	done := make(chan service.Run, 1)
	go func() {
		r, _ := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "main"})
		done <- r
	}()
	e.eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND wait_event_type = 'Lock'`, "true")
	e.want("main", `SELECT holder FROM maintenance.leases`, "somebody")
	if _, err := held.Exec(context.Background(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	r := <-done
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=1 deleted_rows=2")
	e.wantLease("main", 8, false)
}

func TestLooseForeignKeysCleanup_OneRunADatabaseAtATime(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.exec(database, `CREATE TABLE `+database+`_c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO `+database+`_c (p_id) VALUES (1)`)
		e.gate(database, database+"_c")
		e.shut(database, caretakerApp)
		e.deleted(database, database+"_p", 1, 1)
	}
	const definitions = `
main_c: [{table: main_p, column: p_id, on_delete: async_delete}]
ci_c: [{table: ci_p, column: p_id, on_delete: async_delete}]
`
	s, other := e.service(definitions), e.service(definitions)
	onMain := begin(t, s, "main")
	for _, replica := range []*service.Service{s, other} {
		_, err := replica.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "main"})
		wantHeld(t, err, onMain.Replica, 40*time.Second)
	}
	onCI := begin(t, other, "ci")
	e.atGate("main", caretakerApp)
	e.atGate("ci", caretakerApp)
	for _, database := range []string{"main", "ci"} {
		e.lift(database, caretakerApp)
	}
	wantCounts(t, ended(t, s, onMain.ID), "processed_records=1 deleted_rows=1")
	wantCounts(t, ended(t, s, onCI.ID), "processed_records=1 deleted_rows=1")
}
