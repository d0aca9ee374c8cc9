package servicetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
)

// App is the application_name of the service's own connections.
const App = "caretaker"

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

// Gate puts an open gate before the rows of a table, or those of them that meet a condition on OLD.
func (e *Estate) Gate(database, table string, condition ...string) {
	e.T.Helper()
	when := strings.Join(append([]string{"true"}, condition...), " AND ")
	e.Exec(database, gateSQL+table+` FOR EACH ROW WHEN (`+when+`) EXECUTE FUNCTION wait_at_gate()`)
}

// Shut shuts the gates of a database for a client, by its application_name.
func (e *Estate) Shut(database, app string) {
	e.T.Helper()
	e.Exec(database, `INSERT INTO gate VALUES ($1)`, app)
}

// Lift opens them again.
func (e *Estate) Lift(database, app string) {
	e.T.Helper()
	e.Exec(database, `DELETE FROM gate WHERE app = $1`, app)
}

// AtGate waits until a statement of a client stands before a gate.
func (e *Estate) AtGate(database, app string) {
	e.T.Helper()
	e.Eventually(database, `SELECT count(*) > 0 FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = '`+app+`' AND wait_event = 'PgSleep'`, "true")
}

// Held runs sql in a transaction. Once waiting sessions wait for a lock, Held runs the statements in then
// and commits.
func (e *Estate) Held(sql string, waiting int, then ...string) {
	e.T.Helper()
	ctx, conn := context.Background(), e.Connect("main")
	tx, err := conn.Begin(ctx)
	if err != nil {
		e.T.Fatal(err)
	}
	if _, err := tx.Exec(ctx, e.sql(sql)); err != nil {
		e.T.Fatal(err)
	}
	watch, ended := e.Connect("main"), make(chan error, 1)
	go func() {
		if err := awaitLocks(ctx, watch, waiting); err != nil {
			ended <- err
			return
		}
		for _, sql := range then {
			if _, err := tx.Exec(ctx, e.sql(sql)); err != nil {
				ended <- err
				return
			}
		}
		ended <- tx.Commit(ctx)
	}()
	e.T.Cleanup(func() {
		if err := <-ended; err != nil {
			e.T.Error(err)
		}
	})
}

// awaitLocks waits until so many connections to the database wait for a lock.
func awaitLocks(ctx context.Context, conn *pgx.Conn, waiting int) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(devdb.WaitTimeout); time.Now().Before(end); <-again.C {
		var n int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		if err != nil || n >= waiting {
			return err
		}
	}
	return fmt.Errorf("fewer than %d sessions waited for a lock within %s", waiting, devdb.WaitTimeout)
}

// Hold runs SQL on main in a transaction of its own, which is rolled back when the function is called.
func (e *Estate) Hold(sql string) (release func()) { return e.transaction(sql, "ROLLBACK") }

func (e *Estate) transaction(sql, end string) (release func()) {
	e.T.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, e.URLs["main"])
	if err == nil {
		_, err = conn.Exec(ctx, "BEGIN; "+e.sql(sql))
	}
	if err != nil {
		e.T.Fatalf("%s: %v", sql, err)
	}
	e.T.Cleanup(func() { _ = conn.Close(ctx) })
	return func() {
		e.T.Helper()
		if _, err := conn.Exec(ctx, end); err != nil {
			e.T.Errorf("%s: %v", end, err)
		}
	}
}

// HoldThenCommit is hold, but the function commits.
func (e *Estate) HoldThenCommit(sql string) (release func()) { return e.transaction(sql, "COMMIT") }

// Other begins a transaction of another session, to be ended by commit.
func (e *Estate) Other(sql string) (commit func()) {
	e.T.Helper()
	ctx := context.Background()
	conn := e.Connect("main")
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, e.sql(sql))
	}
	if err != nil {
		e.T.Fatal(err)
	}
	return func() {
		e.T.Helper()
		if err := tx.Commit(ctx); err != nil {
			e.T.Fatal(err)
		}
	}
}

// DoomedGone waits until the server has given up the statements of the process of that name, which was killed.
func (e *Estate) DoomedGone() {
	e.T.Helper()
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
}
