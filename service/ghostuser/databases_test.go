package ghostuser_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// leases are the leases of a database, with whether they are held.
const ghostLeases = `SELECT coalesce(string_agg(name || ' ' || (expires_at > now()), ',' ORDER BY name), '') FROM maintenance.leases`

func TestGhostUserMigration_FencesEveryDatabaseWhileItRuns(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
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
	assert.That(t, err == nil && len(leases) == 1 && leases[0].Database == "main", "leases %+v, %v", leases, err)
	g.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunSucceeded)
	for name := range g.SQL {
		g.Want(name, ghostLeases, "ghost_user_migration false")
	}
}

func TestGhostUserMigration_ALeaseHeldInAnyDatabaseKeepsItFromRunning(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10)
	s := g.Service(servicetest.With(func(c *ghostuser.Config) { c.Schedule = servicetest.EveryMinute }))
	for _, where := range []string{"main", "sec", "ci"} {
		g.Exec(where, `INSERT INTO maintenance.leases VALUES ('ghost_user_migration', 'somebody', 7, now(), now(), now() + interval '1 hour')
			ON CONFLICT (name) DO UPDATE SET holder = 'somebody', epoch = 7, expires_at = excluded.expires_at`)
		_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.GhostUsers})
		var held *service.LeaseHeldError
		assert.That(t, errors.As(err, &held) && held.Lease.Holder == "somebody" && held.Lease.Database == where, "got %v", err)
		g.Want("main", `SELECT count(*) FROM maintenance.runs WHERE NOT dry_run`, "0")
		dry := g.Runs(s, true)
		assert.That(t, dry.State == repo.RunSucceeded && dry.Counts["migrated_users"] == 1, "a dry run is %s, %v", dry.State, dry.Counts)
		if where == "ci" {
			break
		}
		g.Exec(where, `UPDATE maintenance.leases SET expires_at = now()`)
	}
	r := g.Fire(s, servicetest.GhostUsers)
	assert.That(t, r.State == repo.RunSkipped && strings.HasPrefix(r.Reason, "LEASE_HELD"), "%+v", r)
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
	g.Want("ci", `SELECT holder || ' ' || epoch FROM maintenance.leases`, "somebody 7")
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func TestGhostUserMigration_ADatabaseThatDoesNotAnswerFailsTheRun(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	down := assert.Must(repo.Open(context.Background(), "ci", "postgres://nobody@127.0.0.1:1/nowhere?connect_timeout=1"))(t)
	t.Cleanup(down.Close)
	s := g.Service(func(c *service.Config) { c.Databases = []*repo.Database{g.Open[0], down, g.Open[2]} })
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantState(t, r, repo.RunFailed)
		servicetest.WantCounts(t, r, "")
		assert.That(t, r.Error != "", "no error is named")
	}
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
	g.Want("main", `SELECT author_id FROM issues`, "10")
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
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
	servicetest.WantState(t, r, repo.RunFailed)
	servicetest.WantCounts(t, r, "moved_rows=1")
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
}

func TestGhostUserMigration_ALeaseThatIsLostInAnyDatabaseFailsTheRunAndReschedulesNobody(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
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
	servicetest.WantLost(t, servicetest.Ended(t, s, r.ID))
	g.Want("sec", `SELECT author_id FROM vulnerabilities`, "10")
	g.Want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.Want("sec", `SELECT holder || ' ' || (expires_at > now()) FROM maintenance.leases`, "another true")
}

func TestGhostUserMigration_ATableThatMustNotBeReadIsNamed(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	s := denied(g, `REVOKE ALL ON reviews FROM {role}`)
	r := g.Runs(s, false)
	servicetest.WantState(t, r, repo.RunFailed)
	assert.That(t, strings.Contains(r.Error, "reviews") && strings.Contains(r.Error, "SELECT"), "error %q", r.Error)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after < now()`, "1")
	// The status names an essential one.
	g.Exec("main", `DO $$ BEGIN EXECUTE format('REVOKE ALL ON ghost_user_migrations FROM denied_%s', (SELECT oid FROM pg_database
		WHERE datname = current_database())); END $$`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.GhostUsers), "grant SELECT", "ghost_user_migrations")
}
