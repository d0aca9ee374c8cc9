package loosefk_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantRun runs the worker on main. The run must succeed with these counts.
func wantRun(t *testing.T, s *service.Service, counts string) service.Run {
	t.Helper()
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, counts)
	return r
}

// wantFailedRun runs the worker on main. The run must fail with exactly this error and these counts.
func wantFailedRun(t *testing.T, s *service.Service, failure, counts string) service.Run {
	t.Helper()
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantFailed(t, r, failure)
	servicetest.WantCounts(t, r, counts)
	return r
}

// anyWaits reports whether a session waits for a lock.
const anyWaits = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// unhurried gives a run of many locks and failures time enough.
func unhurried(c *service.Config) { service.Settings[loosefk.Config](c).MaxRuntime = devdb.WaitTimeout }

// parallel lets a test run beside others, with a database of its own.
func parallel(t *testing.T) *testing.T {
	t.Helper()
	t.Parallel()
	return t
}
