package loosefk_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
			e := servicetest.NewDeletedParents(t, 40)
			e.Gate("main", "c")
			e.Shut("main", servicetest.App)
			s := e.Service(servicetest.OneChild, servicetest.Batches(10, 0))
			before := e.State("main", "c")
			r := servicetest.Begin(t, s, "main")
			e.AtGate("main", servicetest.App)
			// The statements at the gate hold the row: this waits until they have run into their time-out, and may let one more
			// be, which has the lease.
			e.Exec("main", `BEGIN; `+c.change)
			seen := e.State("main", "c")
			e.Exec("main", `COMMIT`)
			lease := e.Value("main", `SELECT string_agg(l::text || xmin, '') FROM maintenance.leases l`)
			e.Lift("main", servicetest.App)
			r = servicetest.Ended(t, s, r.ID)
			servicetest.WantLost(t, r)
			if seen == before {
				servicetest.WantCounts(t, r, "")
			}
			e.WantSame("main", seen, "c")
			e.Want("main", `SELECT string_agg(l::text || xmin, '') FROM maintenance.leases l`, lease)
		})
	}
}

func TestLooseForeignKeysCleanup_RowsOfACommittedStatementStayChangedWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 4)
	e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1), (2), (3), (4)`)
	e.Gate("main", "d")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild + "d: [{table: p, column: p_id, on_delete: async_delete}]\n")
	queue := e.State("main", "d")
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.Lift("main", servicetest.App)
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantLost(t, r)
	servicetest.WantCounts(t, r, "deleted_rows=12")
	e.Want("main", `SELECT count(*) FROM c`, "0")
	e.WantSame("main", queue, "d")

	// The next run goes on where this one was.
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	r = servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "processed_records=4 deleted_rows=4")
}

// Whatever the moment of the take-over, nothing may be written after it: what its transaction sees is what stays.
func TestLooseForeignKeysCleanup_ATakeOverAtAnyMomentSeesTheLastWrite(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewDeletedParents(t, 200)
			s := e.Service(servicetest.OneChild, servicetest.Batches(3, 0))
			r := servicetest.Begin(t, s, "main")
			e.Eventually("main", fmt.Sprintf(`SELECT count(*) < %d FROM loose_foreign_keys_deleted_records`, 200-50*i), "true")
			e.Exec("main", `BEGIN; UPDATE maintenance.leases SET epoch = epoch + 1, holder = 'successor'`)
			seen := e.State("main", "c")
			e.Exec("main", `COMMIT`)
			if r = servicetest.Ended(t, s, r.ID); r.Counts["processed_records"] < 200 {
				servicetest.WantLost(t, r)
			}
			e.WantSame("main", seen, "c")
			e.Want("main", `SELECT holder || epoch FROM maintenance.leases`, "successor2")
		})
	}
}

func TestLooseForeignKeysCleanup_LeaseAndFencesAreRenewed(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 200)`)
	e.Exec("ci", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	e.Deleted("main", "p", 1, 200)
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0), servicetest.With(func(c *loosefk.Config) { c.MaxRuntime = 7 * time.Second }))
	r := servicetest.Begin(t, s, "main")
	for _, database := range []string{"main", "ci"} {
		e.Eventually(database, `SELECT renewed_at >= acquired_at + interval '5 seconds' AND expires_at - renewed_at = interval '17 seconds'
			FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "true")
		e.Want(database, `SELECT epoch FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "1")
	}
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantState(t, r, repo.RunSucceeded)
	if !r.OverLimit {
		t.Error("not over_limit")
	}
	e.WantLease("main", 1, false)
	e.WantLease("ci", 1, false)
}
