// Package neighbours_test lets extensions and tools that people run beside caretaker work on the
// same PostgreSQL: pg_partman, pg_repack, pglogical, pg_cron, a promoted standby.
// docs/guides/migrations-and-orms.md reports what holds.
package neighbours_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	plainChild    = `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id);`
	childrenOfAll = `INSERT INTO c (p_id) SELECT p.id FROM p, generate_series(1, 2);`
)

func TestMain(m *testing.M) { servicetest.Main(m) }

// need skips the test where PostgreSQL misses the extension. Under make test-neighbours, which
// installs it, the test fails.
func need(t *testing.T, extension string) {
	t.Helper()
	conn := assert.Must(pgx.Connect(t.Context(), servicetest.Databases.Cluster(t).URL("postgres")))(t)
	defer func() { assert.NoError(t, conn.Close(t.Context())) }()
	var has bool
	row := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = $1)`, extension)
	switch err := row.Scan(&has); {
	case err != nil:
		t.Fatal(err)
	case !has && os.Getenv("CARETAKER_TEST_NEIGHBOURS") != "":
		t.Fatalf("PostgreSQL lacks the extension %s, which make test-neighbours should have installed", extension)
	case !has:
		t.Skipf("PostgreSQL lacks the extension %s: make test-neighbours installs it", extension)
	}
}

// newEstate is a main with these tables, and a queue of caretaker's own that tracks p, where the extension is installed.
func newEstate(t *testing.T, extension, tables string) *servicetest.Estate {
	t.Helper()
	need(servicetest.Parallel(t), extension)
	e := servicetest.New(t, "", "main")
	e.Exec("main", tables)
	e.Install("p")
	return e
}

// newServer is newEstate on a PostgreSQL of the test's own, with settings. The server has another database called "other".
func newServer(t *testing.T, settings map[string]string, tables string) (*servicetest.Estate, *servicetest.Server) {
	t.Helper()
	server := servicetest.NewServer(t, "other", settings)
	e := &servicetest.Estate{T: t, URLs: map[string]string{}, Through: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	assert.NoError(t, server.Cluster.CreateDatabase(t.Context(), "estate"))
	assert.NoError(t, servicetest.Migrated("").Prepare(t.Context(), server.Cluster.URL("estate")))
	e.Add("main", server.Cluster.URL("estate"))
	e.Exec("main", tables)
	e.Install("p")
	return e, server
}

// address parses the URL of a database.
func address(t *testing.T, text string) *url.URL {
	t.Helper()
	return assert.Must(url.Parse(text))(t)
}

// wantKeys fails the test unless the rows of c refer to these parents.
func wantKeys(e *servicetest.Estate, keys string) {
	e.T.Helper()
	e.Want("main", `SELECT coalesce(string_agg(k, ' ' ORDER BY k::int), '') FROM (SELECT DISTINCT p_id::text AS k FROM c) c`, keys)
}

// wantRun runs the worker on main. The run must succeed with these counts.
func wantRun(e *servicetest.Estate, counts string) {
	e.T.Helper()
	servicetest.WantRun(e.T, servicetest.RunBatch(e.T, e.Service(servicetest.OneChild), "main"), "succeeded", counts)
}

// wantEmptied runs the worker on main at once on all records that are left. No record may remain.
func wantEmptied(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	servicetest.WantState(e.T, servicetest.RunBatch(e.T, e.Service(servicetest.OneChild), "main"), "succeeded")
	e.WantQueue("main", "")
}

func TestNeighbour_AJobOfCronDeletesTheChildrenOfTheRun(t *testing.T) {
	need(servicetest.Parallel(t), "pg_cron")
	e, server := newServer(t, map[string]string{"shared_preload_libraries": "pg_cron", "cron.use_background_workers": "on"},
		`CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 10);`+plainChild+childrenOfAll)
	e.Exec("main", `DELETE FROM p WHERE id < 9`)
	postgres := assert.Must(pgx.Connect(t.Context(), server.Cluster.URL("postgres")))(t)
	defer func() { assert.NoError(t, postgres.Close(t.Context())) }()
	release := e.Hold(`SELECT pg_advisory_xact_lock(1)`)
	// The job has deleted the children of 4 to 8, and does not commit before the lock is free.
	assert.Must(postgres.Exec(t.Context(), `CREATE EXTENSION pg_cron; SELECT cron.schedule_in_database('job', '* * * * *', $$
		WITH gone AS (DELETE FROM c WHERE p_id > 3 AND NOT EXISTS (SELECT FROM p WHERE p.id = p_id) RETURNING p_id)
		SELECT count(*), pg_advisory_xact_lock(1) FROM gone $$, 'estate')`))(t)
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`, "true")
	// The run deletes the rows that it can lock, and leaves the others to the next one.
	wantRun(e, "processed_records=3 deleted_rows=6 rescheduled_records=5")
	e.WantQueue("main", "4 5 6 7 8")
	release()
	e.Eventually("main", `SELECT count(*) FROM c WHERE p_id > 3`, "4")
	wantEmptied(e)
	wantKeys(e, "9 10")
}

// The URL names both hosts. The primary dies under a run, and the standby, which has all that was committed, is promoted.
func TestNeighbour_AServerWithTwoHostsInItsURLFollowsAFailOver(t *testing.T) {
	t.Parallel()
	e, own := newServer(t, nil, `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 40);`+plainChild+childrenOfAll)
	standby := assert.Must(own.Cluster.Standby(t.Context(), nil))(t)
	t.Cleanup(func() { assert.NoError(t, standby.Stop(context.Background())) })
	e.Exec("main", `ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
	e.Exec("main", `SELECT pg_reload_conf()`)
	e.Eventually("main", `SELECT sync_state FROM pg_stat_replication`, "sync")

	both := address(t, e.URLs["main"])
	both.Host += "," + address(t, standby.URL("estate")).Host
	both.RawQuery += "&target_session_attrs=read-write"
	d := servicetest.Open(t, both.String())
	e.Open = []*repo.Database{d}
	e.Exec("main", `DELETE FROM p WHERE id <= 20`)
	e.Gate("main", "c", "OLD.p_id > 10")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0))
	begun := servicetest.Begin(t, s, "main")
	e.Eventually("main", `SELECT count(*) FROM c`, "60")
	e.AtGate("main", servicetest.App)
	own.Kill()

	e.URLs["main"] = standby.URL("estate")
	e.SQL["main"] = e.Connect("main")
	e.Exec("main", `SELECT pg_promote()`) // what pg_ctl promote does
	e.Lift("main", servicetest.App)
	e.Exec("main", `DELETE FROM p WHERE id <= 25`)
	devdb.Eventually(t, "the next run", func() bool {
		_, err := s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys})
		var held *fault.LeaseHeldError
		assert.Require(t, err == nil || errors.Is(err, fault.ErrUnreachable) || errors.As(err, &held), "%v", err)
		return err == nil
	})
	servicetest.WantState(t, servicetest.Ended(t, s, begun.ID), control.RunFailed)
	wantEmptied(e)
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "30 26")
	e.Want("main", `SELECT sum((counts ->> 'processed_records')::int) || ' ' || sum((counts ->> 'deleted_rows')::int) FROM maintenance.runs`, "25 50")
}
