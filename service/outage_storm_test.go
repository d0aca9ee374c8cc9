package service_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The outages of these tests befall two replicas in the middle of everything: loose foreign keys are cleaned up,
// placeholder users claimed, their jobs worked, and the users handed over.

const (
	stormUsers    = 120
	stormChildren = 1200
)

// newStorm is a server of the test's own, full of work that takes some seconds and is noted row by row.
func newStorm(t *testing.T) (*servicetest.Estate, *servicetest.Server) {
	t.Helper()
	e := servicetest.New(t, "main")
	own := servicetest.NewServer(t, "main")
	e.Add("main", own.Cluster.URL("main"))
	stormWork(e)
	return e, own
}

// stormWork fills main.
func stormWork(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
			SELECT 1000000, 'ghost', 'ghost', 0, 'active', 5, 1
			UNION ALL SELECT i, 'u' || i, 'u' || i, 0, 'active', 15, 1 FROM generate_series(1, `+fmt.Sprint(stormUsers)+`) i;
		INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, created_at, updated_at)
			SELECT i, i, 0, 1, now(), now() FROM generate_series(1, `+fmt.Sprint(stormUsers)+`) i;
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
		INSERT INTO c (p_id) SELECT i % 100 FROM generate_series(1, `+fmt.Sprint(stormChildren)+`) i;
		CREATE INDEX ON c (p_id)`)
	audited(e, "c", "DELETE", "OLD.id", "0.004")
	audited(e, "ghost_user_migrations", "INSERT", "NEW.user_id", "0.05")
	audited(e, "users", "DELETE", "OLD.id", "0.01")
	e.Deleted("main", "p", 0, 99)
}

func stormReplica(e *servicetest.Estate, name, url string) *replica {
	e.T.Helper()
	return newReplica(e, name, url, servicetest.OneChild, servicetest.LooseForeignKeys, servicetest.PlaceholderUsers, servicetest.GhostUsers)
}

// wantStormDone waits until all is done, as long as there is some progress, however slow the machine. It fails the test
// unless everything has been done once.
func wantStormDone(e *servicetest.Estate) {
	e.T.Helper()
	e.SQL["main"] = e.Connect("main")
	left, _ := stormLeft(e)
	e.T.Cleanup(func() {
		if left != "NULL" {
			e.T.Log("left: " + left)
		}
	})
	for left != "NULL" {
		left = stormGoesOn(e)
	}
	e.Want("main", `SELECT string_agg(what || ' ' || n || ' ' || rows, ', ' ORDER BY what) FROM
		(SELECT what, count(*) n, count(DISTINCT row) rows FROM audit GROUP BY what) x`,
		fmt.Sprintf("c %[1]d %[1]d, ghost_user_migrations %[2]d %[2]d, users %[2]d %[2]d", stormChildren, stormUsers))
	e.Want("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	e.Want("main", `SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM (SELECT kind, count(*) n FROM maintenance.river_job GROUP BY kind) x`,
		fmt.Sprintf("delete_placeholder_user %[1]d, delete_user %[1]d", stormUsers))
	e.Want("main", `SELECT string_agg(DISTINCT deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "NULL")
	e.Want("main", `SELECT count(*) FROM maintenance.dead_records`, "0")
}

// stormGoesOn waits until something more is done, if anything is left, and returns what is left then.
func stormGoesOn(e *servicetest.Estate) (left string) {
	e.T.Helper()
	_, before := stormLeft(e)
	defer func() {
		if e.T.Failed() {
			e.T.Log("left: "+left, e.Value("main", `SELECT string_agg(concat_ws(' ', worker, state, error, heartbeat_at, now()), '; ') FROM maintenance.runs WHERE state = 'running'`))
		}
	}()
	devdb.Eventually(e.T, "more to be done", func() (goesOn bool) {
		stormTimePasses(e)
		var done string
		left, done = stormLeft(e)
		return left == "NULL" || done != before
	})
	return left
}

// stormTimePasses is as if the time had passed that a failed record, a lost attempt, or a lease whose holder has never
// heard that it has it, has to wait. A lease in use is renewed every 23 s.
func stormTimePasses(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1 AND consume_after > now()`)
	e.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() WHERE consume_after > now()`)
	e.Exec("main", `UPDATE maintenance.river_job SET attempted_at = attempted_at - interval '2 minutes' WHERE state = 'running' AND attempted_at < now() - interval '10 s'`)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE state IN ('retryable', 'scheduled')`)
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now() WHERE expires_at > now() AND renewed_at < now() - interval '40 s'`)
}

// stormLeft is what is left to be done, "NULL" if nothing is, and how much is done.
func stormLeft(e *servicetest.Estate) (left, done string) {
	e.T.Helper()
	left = e.Value("main", `SELECT string_agg(concat_ws(' ', n, what), ', ') FROM (
		SELECT count(*) n, 'children' what FROM c UNION ALL
		SELECT count(*), 'users' FROM users WHERE user_type = 15 UNION ALL
		SELECT count(*), 'unclaimed' FROM import_placeholder_user_details WHERE deletion_attempts = 0 UNION ALL
		SELECT count(*), 'records' FROM loose_foreign_keys_deleted_records WHERE status = 1 AND fully_qualified_table_name = 'public.p' UNION ALL
		SELECT count(*), kind || ' ' || state FROM maintenance.river_job WHERE finalized_at IS NULL GROUP BY kind, state) x WHERE n > 0`)
	return left, e.Value("main", `SELECT (SELECT count(*) FROM audit) + (SELECT count(*) FROM maintenance.river_job WHERE finalized_at IS NOT NULL)
		+ (SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE status = 2)`)
}

func TestFault_Outage_PrimaryKilledAndStartedAgainInTheMiddleOfEverything(t *testing.T) {
	e, own := newStorm(servicetest.Parallel(t))
	replicas := []*replica{stormReplica(e, "first", e.URLs["main"]), stormReplica(e, "second", e.URLs["main"])}
	scheduled := scheduled(e, replicas...)
	for range 3 {
		stormGoesOn(e)
		before := time.Now()
		own.Kill()
		for _, r := range replicas {
			r.wantUnreachable(t, before, "database main: unreachable")
		}
		own.Start()
		started := time.Now()
		for _, r := range replicas {
			r.wantBack(t, started)
		}
		e.SQL["main"] = e.Connect("main")
		passMinute(e)
	}
	wantStormDone(e)
	wantIdle(e, replicas...)
	scheduled()
}

// wantIdle waits until every worker of the replicas says that it has nothing to complain of, with a run at work or not.
func wantIdle(e *servicetest.Estate, replicas ...*replica) {
	e.T.Helper()
	for _, r := range replicas {
		var failing []string
		e.T.Cleanup(func() {
			if len(failing) > 0 {
				e.T.Logf("failing: %q", failing)
			}
		})
		devdb.Eventually(e.T, "no worker to be failing", func() bool {
			all := assert.Must(r.Status(context.Background(), ""))(e.T)
			failing = nil
			for _, st := range all {
				if st.Failing != nil {
					failing = append(failing, fmt.Sprintf("%s: %+v", st.Worker, *st.Failing))
				}
			}
			return len(failing) == 0
		})
	}
}

func TestFault_Outage_StormsOfTerminatedBackends(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"gust after gust": false, "behind a pooler, all the time": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e *servicetest.Estate
			if pooled {
				e, _ = servicetest.Pooled(t, 8, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main"))})
				stormWork(e)
			} else {
				e, _ = newStorm(t)
			}
			url := cmp.Or(e.Through["main"], e.URLs["main"])
			replicas := []*replica{stormReplica(e, "first", url), stormReplica(e, "second", url)}
			scheduled := scheduled(e, replicas...)
			stop := func() {}
			if pooled {
				stop = storm(e, 100*time.Millisecond)
				defer stop()
			}
			// Something is done between one gust and the next.
			for range 20 {
				if !pooled {
					e.Exec("main", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
					passMinute(e)
				}
				stormGoesOn(e)
			}
			stop()
			for _, r := range replicas {
				r.wantBack(t, time.Now())
			}
			wantStormDone(e)
			wantIdle(e, replicas...)
			scheduled()
			// Nobody has left a transaction open.
			e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
		})
	}
}

func TestFault_Outage_RunOnAnotherDatabaseGoesOnWithoutMainAndIsRecordedLater(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main")
	own := servicetest.NewServer(t, "main")
	e.Add("main", own.Cluster.URL("main"))
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("main")))
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 20) i`)
	e.Gate("ci", "c", "OLD.p_id > 10")
	e.Shut("ci", servicetest.App)
	e.Deleted("ci", "p", 1, 20)
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0))
	r := servicetest.Begin(t, s, "ci")
	e.Eventually("ci", `SELECT count(*) FROM c`, "10")
	// Whoever looks when main is back takes the run for dead.
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0'`)
	own.Stop()
	st := servicetest.Status(t, s)
	assert.That(t, st.Condition == service.ConditionRunning && st.CurrentRun != nil && st.CurrentRun.ID == r.ID && st.Failing == nil,
		"condition %s: %s", st.Condition, st.ConditionDetail)
	e.Lift("ci", servicetest.App)
	e.Eventually("ci", `SELECT count(*) FROM c`, "0")
	devdb.Eventually(t, "the run to end", func() bool { return servicetest.Status(t, s).Condition != service.ConditionRunning })
	wantFailing(t, servicetest.Status(t, s), service.FailureUnreachable, "main", "database main: unreachable")
	own.Start()
	e.SQL["main"] = e.Connect("main")
	other := e.Service(servicetest.OneChild)
	seen := assert.Must(other.Run(context.Background(), r.ID))(t)
	assert.That(t, !seen.FinishedAt.IsZero(), "%+v", seen)
	e.Eventually("main", `SELECT concat_ws(' ', state, reason, error, counts ->> 'deleted_rows') FROM maintenance.runs`, "succeeded   20")
	devdb.Eventually(t, "the worker to be idle", func() bool { return servicetest.Status(t, s).Condition == service.ConditionIdle })
}
