package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// Gates stop a run in the middle: a row trigger waits as long as the gate is shut for its client's application_name.

// caretakerApp is the application_name of the service's own connections.
const caretakerApp = "caretaker"

const gateSQL = `
CREATE TABLE IF NOT EXISTS gate (app text PRIMARY KEY);
CREATE OR REPLACE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WHILE EXISTS (SELECT FROM gate WHERE app = current_setting('application_name')) LOOP
    PERFORM pg_sleep(0.02);
  END LOOP;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER gate BEFORE DELETE OR UPDATE ON `

// gate puts an open gate before the rows of a table, or those of them that meet a condition on OLD.
func (e *estate) gate(database, table string, condition ...string) {
	e.t.Helper()
	when := strings.Join(append([]string{"true"}, condition...), " AND ")
	e.exec(database, gateSQL+table+` FOR EACH ROW WHEN (`+when+`) EXECUTE FUNCTION wait_at_gate()`)
}

func (e *estate) shut(database, app string) {
	e.t.Helper()
	e.exec(database, `INSERT INTO gate VALUES ($1)`, app)
}

func (e *estate) lift(database, app string) {
	e.t.Helper()
	e.exec(database, `DELETE FROM gate WHERE app = $1`, app)
}

// atGate waits until a statement of a client stands before a gate.
func (e *estate) atGate(database, app string) {
	e.t.Helper()
	e.eventually(database, `SELECT count(*) > 0 FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = '`+app+`' AND wait_event = 'PgSleep'`, "true")
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// eventually waits until a query's value is as expected.
func (e *estate) eventually(database, sql, want string) {
	e.t.Helper()
	got := ""
	reached := func() bool {
		got = e.value(database, sql)
		return got == want
	}
	if !reachedInTime(reached) {
		e.t.Fatalf("after %s, %s on %s is %q, want %q", patience, sql, database, got, want)
	}
}

func waitFor(t *testing.T, what string, reached func() bool) {
	t.Helper()
	if !reachedInTime(reached) {
		t.Fatalf("waited %s for %s", patience, what)
	}
}

func reachedInTime(reached func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if reached() {
			return true
		}
	}
	return reached()
}

// begin starts a run and returns at once.
func begin(t *testing.T, s *service.Service, database string) service.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: database, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, r, repo.RunRunning)
	return r
}

// ended waits for the end of a run.
func ended(t *testing.T, s *service.Service, id string) (r service.Run) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.WatchRun(ctx, id, func(run service.Run) error {
		r = run
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// state is all of a database that a run of the worker may change, with the version of every row.
func (e *estate) state(database string, tables ...string) string {
	e.t.Helper()
	all := ""
	for _, table := range append(tables, "loose_foreign_keys_deleted_records", "maintenance.dead_records", "maintenance.record_failures") {
		all += table + ": " + e.value(database, `SELECT string_agg(concat_ws(' ', x::text, x.tableoid, x.ctid, x.xmin), '; ' ORDER BY x.tableoid, x.ctid) FROM `+table+` x`) + "\n"
	}
	return all
}

// wantSame fails the test unless state is what it was.
func (e *estate) wantSame(database, before string, tables ...string) {
	e.t.Helper()
	if after := e.state(database, tables...); after != before {
		e.t.Errorf("%s has changed\nfrom %s\nto %s", database, before, after)
	}
}

// wantLease fails the test unless the row of main's lease in a database has this epoch and is held, or free.
func (e *estate) wantLease(database string, epoch int64, held bool) {
	e.t.Helper()
	var gotEpoch int64
	var gotHeld bool
	err := e.sql[database].QueryRow(context.Background(), `SELECT epoch, expires_at > clock_timestamp() FROM maintenance.leases WHERE name = $1`,
		mainLease).Scan(&gotEpoch, &gotHeld)
	if err != nil {
		e.t.Fatal(err)
	}
	if gotEpoch != epoch || gotHeld != held {
		e.t.Errorf("lease in %s: epoch %d, held %t; want %d, %t", database, gotEpoch, gotHeld, epoch, held)
	}
}
