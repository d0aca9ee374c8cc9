// Package neighbours_test lets extensions and tools that people run beside caretaker work on the same PostgreSQL:
// pg_partman, pg_repack, pglogical, pg_cron, a promoted standby. docs/neighbours.md says what holds.
package neighbours_test

import (
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	plainChild    = `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id);`
	childrenOfAll = `INSERT INTO c (p_id) SELECT p.id FROM p, generate_series(1, 2);`
)

func TestMain(m *testing.M) { servicetest.Main(m) }

// need skips the test where PostgreSQL lacks the extension. Under make test-neighbours, which installs it, the test fails.
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
	t.Parallel()
	need(t, extension)
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
	r := servicetest.RunBatch(e.T, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(e.T, r, "succeeded")
	servicetest.WantCounts(e.T, r, counts)
}

// wantEmptied runs the worker on main at once on all records that are left. No record may remain.
func wantEmptied(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	servicetest.WantState(e.T, servicetest.RunBatch(e.T, e.Service(servicetest.OneChild), "main"), "succeeded")
	e.WantQueue("main", "")
}
