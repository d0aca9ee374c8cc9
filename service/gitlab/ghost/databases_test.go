package ghost_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_WorksOnThreeDatabases(t *testing.T) {
	servicetest.Cases(t, servicetest.NewThreeGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"what others commit before the user goes is moved too":                      whatOthersCommitBeforeTheUserGoesIsMovedToo,
		"a user with nothing is looked at in few statements":                        aUserWithNothingIsLookedAtInFewStatements,
		"fences every database while it runs":                                       fencesEveryDatabaseWhileItRuns,
		"a lease held in any database keeps it from running":                        aLeaseHeldInAnyDatabaseKeepsItFromRunning,
		"a database that does not answer fails the run":                             aDatabaseThatDoesNotAnswerFailsTheRun,
		"a lease that is lost in any database fails the run and reschedules nobody": aLeaseThatIsLostInAnyDatabaseFailsTheRunAndReschedulesNobody,
		"every column is as its list says":                                          everyColumnIsAsItsListSays(false),
		"every column is as its list says, with hard_delete":                        everyColumnIsAsItsListSays(true),
	})
}

func whatOthersCommitBeforeTheUserGoesIsMovedToo(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (2, 'child', 7, 1, 101, 2)`)
	commit := g.HoldThenCommit(`INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (3, 10, 1, 101, 3);
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Issue', 1, 10, 1);
		INSERT INTO todos (user_id, author_id, project_id, target_type, action, state) VALUES (7, 10, 1, 'Issue', 1, 'pending');
		INSERT INTO resource_link_events (action, user_id, issue_id, child_work_item_id, created_at) VALUES (1, 10, 1, 2, now())`)
	pipelines := g.Connect("ci")
	if _, err := pipelines.Exec(context.Background(), `BEGIN; INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`); err != nil {
		g.T.Fatal(err)
	}
	s := g.Service()
	r := g.Begin(s)
	g.Eventually("main", waitsSQL, "true")
	assert.Must(pipelines.Exec(context.Background(), `COMMIT`))(g.T)
	commit()
	r = g.Settled(s, servicetest.Ended(g.T, s, r.ID))
	servicetest.WantRun(g.T, r, control.RunSucceeded, "migrated_users=1 moved_rows=5 deleted_rows=4")
	g.WantGone(10)
	g.Want("main", `SELECT concat_ws(' ', (SELECT author_id FROM issues WHERE id = 3), (SELECT author_id FROM notes), (SELECT author_id FROM todos), (SELECT user_id FROM resource_link_events))`, "5 5 5 5")
	g.Want("ci", `SELECT user_id FROM p_ci_pipelines`, "5")
}

func aUserWithNothingIsLookedAtInFewStatements(g *servicetest.Ghosts) {
	g.Exec("main", `CREATE EXTENSION pg_stat_statements SCHEMA maintenance`)
	g.Doomed(10, 11)
	g.Exec("main", `DELETE FROM namespaces WHERE id IN (10, 11)`)
	g.Exec("main", `SELECT maintenance.pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = current_database()`)
	g.Run(g.Service(), "migrated_users=2 deleted_rows=2")
	// Twice at all of the more than 100 columns, and once at the namespace alone.
	g.Want("main", `SELECT sum(calls) / 2 <= 5 FROM maintenance.pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE 'SELECT ARRAY[EXISTS%'`, "true")
}

func fencesEveryDatabaseWhileItRuns(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	g.Gate("main", "issues")
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	for name := range g.SQL {
		g.Want(name, ghostLeases, "ghost_user_migration true")
	}
	leases, err := s.Leases(context.Background(), servicetest.GhostUsers)
	assert.That(g.T, err == nil && len(leases) == 1 && leases[0].Database == "main", "leases %+v, %v", leases, err)
	g.Lift("main", servicetest.App)
	servicetest.WantState(g.T, servicetest.Ended(g.T, s, r.ID), control.RunSucceeded)
	for name := range g.SQL {
		g.Want(name, ghostLeases, "ghost_user_migration false")
	}
}

func aLeaseHeldInAnyDatabaseKeepsItFromRunning(g *servicetest.Ghosts) {
	g.Doomed(10)
	s := g.Service(servicetest.With(func(c *ghost.Config) { c.Schedule = servicetest.EveryMinute }))
	for _, where := range []string{"main", "sec", "ci"} {
		g.Exec(where, `INSERT INTO maintenance.leases VALUES ('ghost_user_migration', 'somebody', 7, now(), now(), now() + interval '1 hour')
			ON CONFLICT (name) DO UPDATE SET holder = 'somebody', epoch = 7, expires_at = excluded.expires_at`)
		_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
		var held *fault.LeaseHeldError
		assert.That(g.T, errors.As(err, &held) && held.Lease.Holder == "somebody" && held.Lease.Database == where, "got %v", err)
		g.Want("main", `SELECT count(*) FROM maintenance.runs WHERE NOT dry_run`, "0")
		dry := g.Runs(s, true)
		assert.That(g.T, dry.State == control.RunSucceeded && dry.Counts["migrated_users"] == 1, "a dry run is %s, %v", dry.State, dry.Counts)
		if where == "ci" {
			break
		}
		g.Exec(where, `UPDATE maintenance.leases SET expires_at = now()`)
	}
	r := g.Fire(s, servicetest.GhostUsers)
	assert.That(g.T, r.State == control.RunSkipped && strings.HasPrefix(r.Reason, "LEASE_HELD"), "%+v", r)
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
	g.Want("ci", `SELECT holder || ' ' || epoch FROM maintenance.leases`, "somebody 7")
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func aDatabaseThatDoesNotAnswerFailsTheRun(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	down := assert.Must(repo.Open(context.Background(), "ci", "postgres://nobody@127.0.0.1:1/nowhere?connect_timeout=1"))(g.T)
	g.T.Cleanup(down.Close)
	s := g.Service(func(c *service.Config) { c.Databases = []*repo.Database{g.Open[0], down, g.Open[2]} })
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantRun(g.T, r, control.RunFailed, "")
		assert.That(g.T, r.Error != "", "no error is named")
	}
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
	g.Want("main", `SELECT author_id FROM issues`, "10")
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
}

func aLeaseThatIsLostInAnyDatabaseFailsTheRunAndReschedulesNobody(g *servicetest.Ghosts) {
	g.Doomed(10)
	before := g.Value("main", `SELECT consume_after FROM ghost_user_migrations`)
	g.Exec("sec", `INSERT INTO vulnerabilities (project_id, author_id, title, created_at, updated_at) VALUES (1, 10, 'v', now(), now())`)
	g.Gate("main", "merge_requests")
	g.Exec("main", `UPDATE merge_requests SET author_id = 10`)
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	g.Exec("sec", `UPDATE maintenance.leases SET epoch = epoch + 1, holder = 'another'`)
	g.Lift("main", servicetest.App)
	servicetest.WantLost(g.T, servicetest.Ended(g.T, s, r.ID))
	g.Want("sec", `SELECT author_id FROM vulnerabilities`, "10")
	g.Want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.Want("sec", `SELECT holder || ' ' || (expires_at > now()) FROM maintenance.leases`, "another true")
}

// leases are the leases of a database, with whether they are held.
const ghostLeases = `SELECT coalesce(string_agg(name || ' ' || (expires_at > now()), ',' ORDER BY name), '') FROM maintenance.leases`

// wantGhostRows fails the test for each row that is not as its action leaves it.
func wantGhostRows(g *servicetest.Ghosts, rows []servicetest.GhostRow, hardDelete bool) {
	g.T.Helper()
	for _, r := range rows {
		action := r.Normal
		if hardDelete {
			action = r.Hard
		}
		want := map[string]string{"G": "5", "N": "null", "D": "gone", "K": "10"}[action]
		got := g.Value(r.Database, fmt.Sprintf(`SELECT coalesce((SELECT coalesce(%[2]s::text, 'null') FROM %[1]s t WHERE to_jsonb(t) - '%[2]s' = $1::jsonb), 'gone')`,
			r.Table, r.Column), r.Rest)
		assert.That(g.T, got == want, "%s: %s, want %s", r.Line, got, want)
	}
}

func everyColumnIsAsItsListSays(hard bool) func(g *servicetest.Ghosts) {
	return func(g *servicetest.Ghosts) {
		for name := range g.SQL {
			g.Exec(name, `SET session_replication_role = replica`)
		}
		rows := g.InsertRows()
		for name := range g.SQL {
			g.Exec(name, `RESET session_replication_role`)
		}
		g.Doomed(10)
		g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
		s := g.Service()
		dry := g.Runs(s, true)
		servicetest.WantState(g.T, dry, "succeeded")
		r := g.Run(s, "")
		wantGhostRows(g, rows, hard)
		g.WantGone(10)
		assert.That(g.T, fmt.Sprint(r.Counts, r.Tables) == fmt.Sprint(dry.Counts, dry.Tables),
			"the dry run counted %v %v, the run %v %v", dry.Counts, dry.Tables, r.Counts, r.Tables)
		want := map[string]int64{"moved_rows": 27, "nullified_rows": 37}
		if hard {
			want = map[string]int64{"moved_rows": 6, "nullified_rows": 37 + 11}
		}
		for key, n := range want {
			assert.That(g.T, r.Counts[key] == n, "%s = %d, want %d", key, r.Counts[key], n)
		}
		servicetest.WantCounts(g.T, g.Run(s, ""), "")
	}
}

func TestGhostUserMigration_ADatabaseThatGoesAwayInTheMiddleFailsTheRun(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10, 11)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	g.Exec("ci", `INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`)
	g.Gate("ci", "p_ci_pipelines")
	g.Shut("ci", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("ci", servicetest.App)
	g.Exec("main", `ALTER DATABASE `+g.Value("ci", `SELECT current_database()`)+` ALLOW_CONNECTIONS false`)
	g.Exec("ci", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, control.RunFailed, "moved_rows=1")
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
}
