package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
)

// The outages of these tests befall two replicas in the middle of everything: loose foreign keys are cleaned up,
// placeholder users claimed, their jobs worked, and the users handed over.

const (
	stormUsers    = 120
	stormChildren = 1200
)

// newStorm is a server of the test's own, full of work that takes some seconds and is noted row by row.
func newStorm(t *testing.T) (*estate, *server) {
	t.Helper()
	e := newEstate(t, "main")
	own := newServer(t, "main")
	e.add("main", own.cluster.URL("main"))
	e.stormWork()
	return e, own
}

// stormWork fills main.
func (e *estate) stormWork() {
	e.t.Helper()
	e.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
			SELECT 1000000, 'ghost', 'ghost', 0, 'active', 5, 1
			UNION ALL SELECT i, 'u' || i, 'u' || i, 0, 'active', 15, 1 FROM generate_series(1, `+fmt.Sprint(stormUsers)+`) i;
		INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, created_at, updated_at)
			SELECT i, i, 0, 1, now(), now() FROM generate_series(1, `+fmt.Sprint(stormUsers)+`) i;
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
		INSERT INTO c (p_id) SELECT i % 100 FROM generate_series(1, `+fmt.Sprint(stormChildren)+`) i;
		CREATE INDEX ON c (p_id)`)
	e.audited("c", "DELETE", "OLD.id", "0.004")
	e.audited("ghost_user_migrations", "INSERT", "NEW.user_id", "0.05")
	e.audited("users", "DELETE", "OLD.id", "0.01")
	e.deleted("main", "p", 0, 99)
}

func (e *estate) stormReplica(name, url string) *replica {
	e.t.Helper()
	return e.replica(name, url, oneChild, cleanupWorker, placeholderWorker, ghostWorker)
}

// wantStormDone waits until all is done, as long as there is some progress, however slow the machine. It fails the test
// unless everything has been done once.
func (e *estate) wantStormDone() {
	e.t.Helper()
	e.sql["main"] = e.connect("main")
	left, done := e.stormLeft()
	e.t.Cleanup(func() {
		if left != "NULL" {
			e.t.Log("left: " + left)
		}
	})
	for left != "NULL" {
		before := done
		waitFor(e.t, "more to be done", func() bool {
			e.stormTimePasses()
			left, done = e.stormLeft()
			return left == "NULL" || done != before
		})
	}
	e.want("main", `SELECT string_agg(what || ' ' || n || ' ' || rows, ', ' ORDER BY what) FROM
		(SELECT what, count(*) n, count(DISTINCT row) rows FROM audit GROUP BY what) x`,
		fmt.Sprintf("c %[1]d %[1]d, ghost_user_migrations %[2]d %[2]d, users %[2]d %[2]d", stormChildren, stormUsers))
	e.want("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	e.want("main", `SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM (SELECT kind, count(*) n FROM maintenance.river_job GROUP BY kind) x`,
		fmt.Sprintf("delete_placeholder_user %[1]d, delete_user %[1]d", stormUsers))
	e.want("main", `SELECT string_agg(DISTINCT deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "NULL")
	e.want("main", `SELECT count(*) FROM maintenance.dead_records`, "0")
}

// stormTimePasses is as if the time had passed that a failed record, a lost attempt, or a lease whose holder has never
// heard that it has it, has to wait. A lease in use is renewed every 23 s.
func (e *estate) stormTimePasses() {
	e.t.Helper()
	e.exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1 AND consume_after > now()`)
	e.exec("main", `UPDATE ghost_user_migrations SET consume_after = now() WHERE consume_after > now()`)
	e.exec("main", `UPDATE maintenance.river_job SET attempted_at = attempted_at - interval '2 minutes' WHERE state = 'running' AND attempted_at < now() - interval '10 s'`)
	e.exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE state IN ('retryable', 'scheduled')`)
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now() WHERE expires_at > now() AND renewed_at < now() - interval '40 s'`)
}

// stormLeft is what is left to be done, "NULL" if nothing is, and how much is done.
func (e *estate) stormLeft() (left, done string) {
	e.t.Helper()
	left = e.value("main", `SELECT string_agg(concat_ws(' ', n, what), ', ') FROM (
		SELECT count(*) n, 'children' what FROM c UNION ALL
		SELECT count(*), 'users' FROM users WHERE user_type = 15 UNION ALL
		SELECT count(*), 'unclaimed' FROM import_placeholder_user_details WHERE deletion_attempts = 0 UNION ALL
		SELECT count(*), 'records' FROM loose_foreign_keys_deleted_records WHERE status = 1 AND fully_qualified_table_name = 'public.p' UNION ALL
		SELECT count(*), kind || ' ' || state FROM maintenance.river_job WHERE finalized_at IS NULL GROUP BY kind, state) x WHERE n > 0`)
	return left, e.value("main", `SELECT (SELECT count(*) FROM audit) + (SELECT count(*) FROM maintenance.river_job WHERE finalized_at IS NOT NULL)
		+ (SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE status = 2)`)
}

func TestOutage_PrimaryKilledAndStartedAgainInTheMiddleOfEverything(t *testing.T) {
	t.Parallel()
	e, own := newStorm(t)
	replicas := []*replica{e.stormReplica("first", e.urls["main"]), e.stormReplica("second", e.urls["main"])}
	scheduled := e.scheduled(replicas...)
	for range 3 {
		time.Sleep(time.Second)
		before := time.Now()
		own.kill()
		for _, r := range replicas {
			r.wantUnreachable(t, before, "database main: unreachable")
		}
		own.start()
		started := time.Now()
		for _, r := range replicas {
			r.wantBack(t, started)
		}
		e.sql["main"] = e.connect("main")
		e.passMinute()
	}
	e.wantStormDone()
	e.wantIdle(replicas...)
	scheduled()
}

// wantIdle waits until every worker of the replicas says that it has nothing to complain of, with a run at work or not.
func (e *estate) wantIdle(replicas ...*replica) {
	e.t.Helper()
	for _, r := range replicas {
		var failing []string
		idle := reachedInTime(func() bool {
			all, err := r.Status(context.Background(), "")
			if err != nil {
				e.t.Fatal(err)
			}
			failing = nil
			for _, st := range all {
				if st.Failing != nil {
					failing = append(failing, fmt.Sprintf("%s: %+v", st.Worker, *st.Failing))
				}
			}
			return len(failing) == 0
		})
		if !idle {
			e.t.Fatalf("after %s these are failing: %q", patience, failing)
		}
	}
}

func TestOutage_StormsOfTerminatedBackends(t *testing.T) {
	t.Parallel()
	e, _ := newStorm(t)
	replicas := []*replica{e.stormReplica("first", e.urls["main"]), e.stormReplica("second", e.urls["main"])}
	scheduled := e.scheduled(replicas...)
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		e.exec("main", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
		e.passMinute()
	}
	for _, r := range replicas {
		r.wantBack(t, time.Now())
	}
	e.wantStormDone()
	e.wantIdle(replicas...)
	scheduled()
	// Nobody has left a transaction open.
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
}

func TestOutage_StormsOfTerminatedBackendsBehindAPooler(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 8, map[string]string{"main": databases.Clone(t, migrated("main"))})
	e.stormWork()
	replicas := []*replica{e.stormReplica("first", e.through["main"]), e.stormReplica("second", e.through["main"])}
	scheduled := e.scheduled(replicas...)
	stop := e.storm(100 * time.Millisecond)
	defer stop()
	time.Sleep(6 * time.Second)
	stop()
	for _, r := range replicas {
		r.wantBack(t, time.Now())
	}
	e.wantStormDone()
	e.wantIdle(replicas...)
	scheduled()
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
}

func TestOutage_RunOnAnotherDatabaseGoesOnWithoutMainAndIsRecordedLater(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main")
	own := newServer(t, "main")
	e.add("main", own.cluster.URL("main"))
	e.add("ci", databases.Clone(t, migrated("main")))
	e.exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 20) i`)
	e.gate("ci", "c", "OLD.p_id > 10")
	e.shut("ci", caretakerApp)
	e.deleted("ci", "p", 1, 20)
	s := e.service(oneChild, batches(5, 0))
	r := begin(t, s, "ci")
	e.eventually("ci", `SELECT count(*) FROM c`, "10")
	// Whoever looks when main is back takes the run for dead.
	e.exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0'`)
	own.stop()
	if st := status(t, s); st.Condition != service.ConditionRunning || st.CurrentRun == nil || st.CurrentRun.ID != r.ID || st.Failing != nil {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
	e.lift("ci", caretakerApp)
	e.eventually("ci", `SELECT count(*) FROM c`, "0")
	waitFor(t, "the run to end", func() bool { return status(t, s).Condition != service.ConditionRunning })
	wantFailing(t, status(t, s), service.FailureUnreachable, "main", "database main: unreachable")
	own.start()
	e.sql["main"] = e.connect("main")
	other := e.service(oneChild)
	if seen, err := other.Run(context.Background(), r.ID); err != nil || seen.FinishedAt.IsZero() {
		t.Errorf("%+v, %v", seen, err)
	}
	e.eventually("main", `SELECT concat_ws(' ', state, reason, error, counts ->> 'deleted_rows') FROM maintenance.runs`, "succeeded   20")
	waitFor(t, "the worker to be idle", func() bool { return status(t, s).Condition == service.ConditionIdle })
}
