package lfk_test

import (
	"flag"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	// Properties are tried on a few schemas, unless -rapid.checks reports otherwise.
	_ = flag.Set("rapid.checks", "5")
	servicetest.Main(m)
}

func TestContract(t *testing.T) {
	servicetest.Contract(t, servicetest.Fixture{
		Worker: lfk.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
		},
		Due: func(e *servicetest.Estate, n int) {
			e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
			e.Deleted("main", "p", 1, n)
		},
		Done: servicetest.Change{Event: "DELETE", Table: "c", Thing: `r ->> 'id'`},
		Settings: map[string]string{
			"definitions": servicetest.Save(t, servicetest.OneChild), "batch_size": "1", "max_runtime": "2m",
		},
		Limit: map[string]string{"max_deletes": "3"},
	})
}

// wantRun runs the worker on main. The run must succeed with these counts.
func wantRun(t *testing.T, s *service.Service, counts string) run.Run {
	t.Helper()
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantRun(t, r, "succeeded", counts)
	return r
}

// wantFailedRun runs the worker on main. The run must fail with exactly this error and these counts.
func wantFailedRun(t *testing.T, s *service.Service, failure, counts string) run.Run {
	t.Helper()
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantFailed(t, r, failure)
	servicetest.WantCounts(t, r, counts)
	return r
}

// anyWaits reports whether a session waits for a lock.
const anyWaits = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// unhurried gives a run of many locks and failures time enough.
func unhurried(c *service.Config) { service.Settings[lfk.Config](c).MaxRuntime = devdb.WaitTimeout }

// deletedParents makes the children of parents 1 to n, three each, which have been deleted.
func deletedParents(e *servicetest.Estate, n int) {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % $1 + 1 FROM generate_series(1, 3 * $1) i`, n)
	e.Deleted("main", "p", 1, n)
}
