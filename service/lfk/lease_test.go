package lfk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantHeld fails the test unless the error reports that this holder has the lease, and for how
// long.
func wantHeld(t *testing.T, err error, holder string, atMost time.Duration) {
	t.Helper()
	var held *fault.LeaseHeldError
	assert.Require(t, errors.As(err, &held), "error %v, want that the lease is held", err)
	assert.That(t, held.Lease.Holder == holder && held.Remaining > 0 && held.Remaining <= atMost && !held.Lease.ExpiresAt.IsZero(),
		"%+v, want held by %s for at most %s", held, holder, atMost)
}

const leaseRow = `SELECT l::text || ' ' || xmin FROM maintenance.leases l WHERE name = '` + servicetest.MainLease + `'`

func TestLooseForeignKeysCleanup_ForeignLeaseIsRespected(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 5)
	e.ForeignLease("main", servicetest.MainLease, "1 minute")
	before, lease := e.State("main", "c"), e.Value("main", leaseRow)
	s := e.Service(servicetest.OneChild)

	// A statement of the holder in flight has the row: no other process waits for it.
	release := e.Hold(`SELECT FROM maintenance.leases FOR SHARE`)
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
	wantHeld(t, err, "somebody", time.Minute)
	release()
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")

	r := e.Fire(s, servicetest.LooseForeignKeys)
	servicetest.WantState(t, r, control.RunSkipped)
	assert.That(t, r.Reason == "LEASE_HELD", "reason %q", r.Reason)
	e.WantSame("main", before, "c")
	e.Want("main", leaseRow, lease)
}

func TestLooseForeignKeysCleanup_ATakeOverWaitsForTheCommitOfTheStatementInFlight(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 1)
	e.ForeignLease("main", servicetest.MainLease, "5 seconds")
	held := e.Connect("main")
	assert.Must(held.Exec(context.Background(),
		`BEGIN; SELECT FROM maintenance.leases WHERE expires_at > clock_timestamp() FOR SHARE; DELETE FROM c WHERE id = 1`))(t)
	e.Eventually("main", `SELECT expires_at <= clock_timestamp() FROM maintenance.leases`, "true")
	s := e.Service(servicetest.OneChild)
	done := make(chan run.Run, 1)
	go func() {
		r, _ := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
		done <- r
	}()
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND wait_event_type = 'Lock'`, "true")
	e.Want("main", `SELECT holder FROM maintenance.leases`, "somebody")
	assert.Must(held.Exec(context.Background(), `COMMIT`))(t)
	r := <-done
	servicetest.WantRun(t, r, control.RunSucceeded, "processed_records=1 deleted_rows=2")
	e.WantLease("main", 8, false)
}

// At any moment and with any change, the rows that its transaction sees stay, and the run has
// counted them.
func TestLooseForeignKeysCleanup_NothingIsWrittenAfterTheLeaseIsLost(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for _, c := range []struct{ name, change string }{
		{"epoch raised", `UPDATE maintenance.leases SET epoch = epoch + 1`},
		{"another holder", `UPDATE maintenance.leases SET holder = 'successor'`},
		{"expired", `UPDATE maintenance.leases SET expires_at = now()`},
		{"row deleted", `DELETE FROM maintenance.leases`},
		{"taken over in a transaction that takes its time", `UPDATE maintenance.leases SET holder = 'successor', epoch = epoch + 1,
			acquired_at = now(), expires_at = now() + interval '1 hour'; SELECT pg_sleep(0.4)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			deletedParents(e, 40)
			e.Exec("main", `DELETE FROM maintenance.leases; CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END';
				CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
			s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0))
			r := servicetest.Begin(t, s, "main")
			e.Eventually("main", `SELECT count(*) < 40 FROM loose_foreign_keys_deleted_records`, "true")
			// The statements of the run share a lock of the row without a pause: a lock of the table waits its turn.
			e.Exec("main", `BEGIN; LOCK TABLE maintenance.leases IN EXCLUSIVE MODE; `+c.change)
			seen, rows := e.State("main", "c"), e.Value("main", `SELECT 120 - count(*) FROM c`)
			e.Exec("main", `COMMIT`)
			const leases = `SELECT string_agg(l::text || xmin, '') FROM maintenance.leases l`
			lease := e.Value("main", leases)
			r = servicetest.Ended(t, s, r.ID)
			servicetest.WantLost(t, r)
			got := fmt.Sprint(r.Counts["deleted_rows"])
			assert.That(t, got == rows && got != "0", "deleted_rows is %s, %s rows are gone", got, rows)
			e.WantSame("main", seen, "c")
			e.Want("main", leases, lease)
		})
	}
}

func TestLooseForeignKeysCleanup_LeaseAndFencesAreRenewed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 200)`)
	e.Exec("ci", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN OLD; END';
		CREATE TRIGGER slow BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION slow()`)
	e.Deleted("main", "p", 1, 200)
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0), servicetest.With(func(c *lfk.Config) { c.MaxRuntime = 20 * time.Second }))
	r := servicetest.Begin(t, s, "main")
	for _, database := range []string{"main", "ci"} {
		e.Eventually(database, `SELECT renewed_at >= acquired_at + interval '5 seconds' AND expires_at - renewed_at = interval '30 seconds'
			FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "true")
		e.Want(database, `SELECT epoch FROM maintenance.leases WHERE name = '`+servicetest.MainLease+`'`, "1")
	}
	assert.Must(s.CancelRun(t.Context(), r.ID, ""))(t)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), control.RunCancelled)
	e.WantLease("main", 1, false)
	e.WantLease("ci", 1, false)
}

func TestLooseForeignKeysCleanup_LostFenceIsALostLease(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
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

// A statement does not see a parent that is committed while it works: the following check does.
func TestLooseForeignKeysCleanup_AParentThatComesWhileAStatementWorksKeepsItsChildren(t *testing.T) {
	const mine = `UPDATE c SET v = 'mine' WHERE id = 2; `
	for _, c := range []struct{ definition, also, rows, pooled string }{
		{"", mine, "1 2mine", ""},
		{", delete_limit: 1", mine, "1 2mine", ""},
		{"", "", "1 2second", `default_transaction_isolation = 'repeatable read'`},
	} {
		e := servicetest.New(t, servicetest.IntegerKeys(), "main")
		if c.pooled != "" {
			e, _ = servicetest.Pooled(t, 4, e.URLs)
			e.Exec("main", "ALTER DATABASE "+servicetest.DatabaseOf(e.URLs["main"])+" SET "+c.pooled)
		}
		e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1); CREATE TABLE c (id bigint, p_id bigint, v text); CREATE INDEX ON c (p_id);
			INSERT INTO c VALUES (1, 1, ''), (2, 1, 'second');
			CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN OLD; END';
			CREATE TRIGGER wait BEFORE DELETE ON c FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION wait(); SELECT pg_advisory_lock(7)`)
		track(e, "p")
		e.Exec("main", `DELETE FROM p`)
		s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete" + c.definition + "}]")
		run := servicetest.Begin(t, s, "main")
		e.Eventually("main", `SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
			WHERE d.datname = current_database() AND locktype = 'advisory' AND objid = 7 AND NOT granted`, "1")
		e.Exec("main", `BEGIN; INSERT INTO p VALUES (1); `+c.also+`COMMIT; SELECT pg_advisory_unlock(7)`)
		r := servicetest.Ended(t, s, run.ID)
		servicetest.WantRun(t, r, "succeeded", "rescheduled_records=1 deleted_rows=0")
		e.Want("main", `SELECT string_agg(id || v, ' ' ORDER BY id) FROM c`, c.rows)
	}
}

func TestLooseForeignKeysCleanup_AParentThatATriggerOfTheChildInsertsAgainIsHeld(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.IntegerKeys(), "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1), (2), (3);
		CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT id FROM p;
		CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO p VALUES (OLD.p_id); RETURN NULL; END';
		CREATE TRIGGER again AFTER DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 2) EXECUTE FUNCTION again()`)
	track(e, "p")
	e.Exec("main", `DELETE FROM p`)
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]", unhurried)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantRun(t, r, "succeeded", "processed_records=2 rescheduled_records=1 deleted_rows=2")
	e.Want("main", `SELECT string_agg(p_id::text, ' ') FROM c`, "2")
}

// A server with GitLab's workers may have made protections in the same database, now or before. That costs one look a run, and one before the first.
func TestLooseForeignKeysCleanup_ProtectionsHoldWithoutTheWorkersForGitLab(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE EXTENSION pg_stat_statements; CREATE TABLE users (id bigint PRIMARY KEY, c_id bigint REFERENCES c ON DELETE CASCADE);
		INSERT INTO c (id, p_id) SELECT 100 + i, i FROM generate_series(1, 9) i; INSERT INTO users SELECT i, 100 + i FROM generate_series(1, 9) i`)
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0), func(c *service.Config) { c.Use = service.UseLooseForeignKeys })
	e.Deleted("main", "p", 4, 9)
	wantRun(t, s, "processed_records=6 deleted_rows=6")
	e.Exec("main", `INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 1, 'r', 'ann')`)
	e.Deleted("main", "p", 1, 2)
	r := wantRun(t, s, "processed_records=1 deleted_rows=1 rescheduled_records=1")
	assert.That(t, strings.HasPrefix(r.Reason, "1 record held, PROTECTED: user 1 is protected by ann: r"), "reason %q", r.Reason)
	e.Exec("main", `DELETE FROM maintenance.protected_targets`)
	e.Deleted("main", "p", 3, 3)
	dueAgain(e, "main")
	wantRun(t, s, "processed_records=2 deleted_rows=2")
	e.Want("main", `SELECT sum(calls) <= 4 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE '%SELECT w.name, to_regclass(%'`, "true")
}
