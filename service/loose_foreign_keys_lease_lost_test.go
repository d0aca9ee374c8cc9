package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// wantLost fails the test unless the run ended because its lease was lost.
func wantLost(t *testing.T, r service.Run) {
	t.Helper()
	wantState(t, r, repo.RunFailed)
	if r.Reason != "LEASE_LOST" {
		t.Errorf("reason %q, error %q, want LEASE_LOST", r.Reason, r.Error)
	}
}

func TestLooseForeignKeysCleanup_NothingIsWrittenAfterTheLeaseIsLost(t *testing.T) {
	for _, c := range []struct{ name, change string }{
		{"epoch raised", `UPDATE maintenance.leases SET epoch = epoch + 1`},
		{"another holder", `UPDATE maintenance.leases SET holder = 'successor'`},
		{"expired", `UPDATE maintenance.leases SET expires_at = now()`},
		{"taken over", `UPDATE maintenance.leases SET holder = 'successor', epoch = epoch + 1, acquired_at = now(), expires_at = now() + interval '1 hour'`},
		{"row deleted", `DELETE FROM maintenance.leases`},
		{"taken over in a transaction that takes its time", `UPDATE maintenance.leases SET holder = 'successor', epoch = epoch + 1; SELECT pg_sleep(0.4)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newDeletedParents(t, 40)
			e.gate("main", "c")
			e.shut("main", caretakerApp)
			s := e.service(oneChild, batches(10, 0))
			before := e.state("main", "c")
			r := begin(t, s, "main")
			e.atGate("main", caretakerApp)
			// The statements at the gate hold the row: this waits until they have run into their time-out, and may let one more
			// be, which has the lease.
			e.exec("main", `BEGIN; `+c.change)
			seen := e.state("main", "c")
			e.exec("main", `COMMIT`)
			lease := e.value("main", `SELECT string_agg(l::text || xmin, '') FROM maintenance.leases l`)
			e.lift("main", caretakerApp)
			r = ended(t, s, r.ID)
			wantLost(t, r)
			if seen == before {
				wantCounts(t, r, "")
			}
			e.wantSame("main", seen, "c")
			e.want("main", `SELECT string_agg(l::text || xmin, '') FROM maintenance.leases l`, lease)
		})
	}
}

func TestLooseForeignKeysCleanup_RowsOfACommittedStatementStayChangedWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 4)
	e.exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1), (2), (3), (4)`)
	e.gate("main", "d")
	e.shut("main", caretakerApp)
	s := e.service(oneChild + "d: [{table: p, column: p_id, on_delete: async_delete}]\n")
	queue := e.state("main", "d")
	r := begin(t, s, "main")
	e.atGate("main", caretakerApp)
	e.exec("main", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.lift("main", caretakerApp)
	r = ended(t, s, r.ID)
	wantLost(t, r)
	wantCounts(t, r, "deleted_rows=12")
	e.want("main", `SELECT count(*) FROM c`, "0")
	e.wantSame("main", queue, "d")

	// The next run goes on where this one was.
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	r = runBatch(t, s, "main")
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=4 deleted_rows=4")
}

// Whatever the moment of the take-over, nothing may be written after it: what its transaction sees is what stays.
func TestLooseForeignKeysCleanup_ATakeOverAtAnyMomentSeesTheLastWrite(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			e := newDeletedParents(t, 400)
			s := e.service(oneChild, batches(3, 0))
			r := begin(t, s, "main")
			e.eventually("main", fmt.Sprintf(`SELECT count(*) < %d FROM loose_foreign_keys_deleted_records`, 400-20*i), "true")
			e.exec("main", `BEGIN; UPDATE maintenance.leases SET epoch = epoch + 1, holder = 'successor'`)
			seen := e.state("main", "c")
			e.exec("main", `COMMIT`)
			if r = ended(t, s, r.ID); r.Counts["processed_records"] < 400 {
				wantLost(t, r)
			}
			e.wantSame("main", seen, "c")
			e.want("main", `SELECT holder || epoch FROM maintenance.leases`, "successor2")
		})
	}
}

func TestLooseForeignKeysCleanup_LeaseAndFencesAreRenewed(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main", "ci")
	e.exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 200)`)
	e.exec("ci", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	e.deleted("main", "p", 1, 200)
	s := e.service(oneChild, batches(1, 0), with(func(c *loosefk.Config) { c.MaxRuntime = 7 * time.Second }))
	r := begin(t, s, "main")
	for _, database := range []string{"main", "ci"} {
		e.eventually(database, `SELECT renewed_at >= acquired_at + interval '5 seconds' AND expires_at - renewed_at = interval '17 seconds'
			FROM maintenance.leases WHERE name = '`+mainLease+`'`, "true")
		e.want(database, `SELECT epoch FROM maintenance.leases WHERE name = '`+mainLease+`'`, "1")
	}
	r = ended(t, s, r.ID)
	wantState(t, r, repo.RunSucceeded)
	if !r.OverLimit {
		t.Error("not over_limit")
	}
	e.wantLease("main", 1, false)
	e.wantLease("ci", 1, false)
}

func TestLooseForeignKeysCleanup_CancelledRunKeepsWhatItHasRemoved(t *testing.T) {
	for _, replica := range []string{"the same", "another"} {
		t.Run("by "+replica+" replica", func(t *testing.T) {
			t.Parallel()
			e := newDeletedParents(t, 10)
			e.gate("main", "c", "OLD.p_id > 4")
			e.shut("main", caretakerApp)
			s := e.service(oneChild, batches(2, 0))
			canceller := s
			if replica == "another" {
				canceller = e.service(oneChild)
			}
			r := begin(t, s, "main")
			e.eventually("main", `SELECT min(primary_key_value) FROM loose_foreign_keys_deleted_records`, "5")
			e.atGate("main", caretakerApp)
			before := e.state("main", "c")
			if _, err := canceller.CancelRun(context.Background(), r.ID, ""); err != nil {
				t.Fatal(err)
			}
			r = ended(t, canceller, r.ID)
			wantState(t, r, repo.RunCancelled)
			wantCounts(t, r, "processed_records=4 deleted_rows=12")
			if r.Reason != "CANCELLED" || r.FinishedAt.IsZero() {
				t.Errorf("reason %q, finished at %s", r.Reason, r.FinishedAt)
			}
			e.wantSame("main", before, "c")
			e.wantLease("main", 1, false)
		})
	}
}
