package loosefk_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
	leaseRow = `SELECT l::text || ' ' || xmin FROM maintenance.leases l WHERE name = '` + servicetest.MainLease + `'`
)

func TestLooseForeignKeysCleanup_ForeignLeaseIsRespected(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 5)
	e.ForeignLease("main", servicetest.MainLease, "1 minute")
	before, lease := e.State("main", "c"), e.Value("main", leaseRow)
	s := e.Service(servicetest.OneChild)

	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
	wantHeld(t, err, "somebody", time.Minute)
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")

	r := e.Fire(s, servicetest.LooseForeignKeys)
	servicetest.WantState(t, r, repo.RunSkipped)
	if r.Reason != "LEASE_HELD" {
		t.Errorf("reason %q", r.Reason)
	}
	e.WantSame("main", before, "c")
	e.Want("main", leaseRow, lease)
}

func TestLooseForeignKeysCleanup_ExpiredLeaseIsTakenWithTheNextEpoch(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 5)
	e.ForeignLease("main", servicetest.MainLease, "0")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, r, repo.RunSucceeded)
	if r.LeaseEpoch != 8 {
		t.Errorf("epoch %d, want 8", r.LeaseEpoch)
	}
	e.WantLease("main", 8, false)
}

func TestLooseForeignKeysCleanup_EveryRunHasItsOwnEpochAndGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 1)
	s := e.Service(servicetest.OneChild)
	for epoch := int64(1); epoch <= 3; epoch++ {
		if r := servicetest.RunBatch(t, s, "main"); r.LeaseEpoch != epoch {
			t.Errorf("epoch %d, want %d", r.LeaseEpoch, epoch)
		}
		e.WantLease("main", epoch, false)
	}
}

func TestLooseForeignKeysCleanup_LeaseOutlastsTheRunByTenSeconds(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main", "ci")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1)`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	if err := s.SetFeatureFlag(context.Background(), "loose_foreign_keys_turbo_mode_main", true); err != nil {
		t.Fatal(err)
	}
	for database, ttl := range map[string]string{"main": "00:00:55", "ci": "00:00:40"} {
		e.Deleted(database, "p", 1, 1)
		r := servicetest.Begin(t, s, database)
		if r.TurboMode != (database == "main") {
			t.Errorf("turbo mode on %s: %t", database, r.TurboMode)
		}
		e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`, "1")
		e.Want(database, `SELECT expires_at - renewed_at FROM maintenance.leases WHERE name = 'loose_foreign_keys_cleanup/`+database+`'`, ttl)
		e.Lift("main", servicetest.App)
		servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunSucceeded)
		e.Exec("main", `INSERT INTO c (p_id) VALUES (1)`)
		e.Shut("main", servicetest.App)
	}
}

func TestLooseForeignKeysCleanup_AHeldLeaseIsAnsweredWithoutWaitingForItsHolder(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 1)
	e.ForeignLease("main", servicetest.MainLease, "1 minute")
	// As a statement of the holder in flight has it.
	e.Exec("main", `BEGIN; SELECT FROM maintenance.leases FOR SHARE`)
	defer e.Exec("main", `ROLLBACK`)
	_, err := e.Service(servicetest.OneChild).RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
	wantHeld(t, err, "somebody", time.Minute)
}

func TestLooseForeignKeysCleanup_ATakeOverWaitsForTheCommitOfTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 1)
	e.ForeignLease("main", servicetest.MainLease, "500 milliseconds")
	held := e.Connect("main")
	if _, err := held.Exec(context.Background(), `BEGIN; SELECT FROM maintenance.leases WHERE expires_at > clock_timestamp() FOR SHARE; DELETE FROM c WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	e.Eventually("main", `SELECT expires_at <= clock_timestamp() FROM maintenance.leases`, "true")
	s := e.Service(servicetest.OneChild)
	done := make(chan service.Run, 1)
	go func() {
		r, _ := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
		done <- r
	}()
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND wait_event_type = 'Lock'`, "true")
	e.Want("main", `SELECT holder FROM maintenance.leases`, "somebody")
	if _, err := held.Exec(context.Background(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	r := <-done
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=2")
	e.WantLease("main", 8, false)
}

func TestLooseForeignKeysCleanup_OneRunADatabaseAtATime(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE `+database+`_c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO `+database+`_c (p_id) VALUES (1)`)
		e.Gate(database, database+"_c")
		e.Shut(database, servicetest.App)
		e.Deleted(database, database+"_p", 1, 1)
	}
	const definitions = `
main_c: [{table: main_p, column: p_id, on_delete: async_delete}]
ci_c: [{table: ci_p, column: p_id, on_delete: async_delete}]
`
	s, other := e.Service(definitions), e.Service(definitions)
	onMain := servicetest.Begin(t, s, "main")
	for _, replica := range []*service.Service{s, other} {
		_, err := replica.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
		wantHeld(t, err, onMain.Replica, 40*time.Second)
	}
	onCI := servicetest.Begin(t, other, "ci")
	e.AtGate("main", servicetest.App)
	e.AtGate("ci", servicetest.App)
	for _, database := range []string{"main", "ci"} {
		e.Lift(database, servicetest.App)
	}
	servicetest.WantCounts(t, servicetest.Ended(t, s, onMain.ID), "processed_records=1 deleted_rows=1")
	servicetest.WantCounts(t, servicetest.Ended(t, s, onCI.ID), "processed_records=1 deleted_rows=1")
}
