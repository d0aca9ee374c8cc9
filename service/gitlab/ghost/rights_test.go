package ghost_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// denied is a service whose role may do everything with the tables of main, but for what some SQL changes then.
func denied(g *servicetest.Ghosts, sql string) *service.Service {
	g.T.Helper()
	role := g.Role(`GRANT USAGE ON SCHEMA public, maintenance TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO {role};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public, maintenance TO {role}; ` + sql)
	d := servicetest.Open(g.T, g.URLAs(role, "x"))
	return g.Service(func(c *service.Config) { c.Databases = []*repo.Database{d} })
}

func TestGhostUserMigration_WhatItLacks(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"an unlisted table without the privilege fails its user":   anUnlistedTableFailsItsUser(`REVOKE SELECT ON diaries FROM {role}`),
		"an unlisted table with row-level security fails its user": anUnlistedTableFailsItsUser(`ALTER TABLE diaries ENABLE ROW LEVEL SECURITY`),
		"row-level security of a listed table fails the run":       rowLevelSecurityOfAListedTableFailsTheRun,
		"a table that must not be read is named":                   aTableThatMustNotBeReadIsNamed,
		"a queue without a column that it needs is not configured": aQueueWithoutAColumnItNeedsIsNotConfigured,
	})
}

func anUnlistedTableFailsItsUser(sql string) func(g *servicetest.Ghosts) {
	return func(g *servicetest.Ghosts) {
		g.Doomed(10)
		g.Exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE); INSERT INTO diaries (keeper_id) VALUES (10)`)
		g.Run(denied(g, sql), "failed_users=1")
		g.WantLater(10, 30*time.Minute)
		g.WantLog(1, `"msg":"user deletion failed"`, `"table":"diaries","column":"keeper_id"`, "find rows of diaries.keeper_id on main: 42501 insufficient_privilege")
		g.Want("main", `SELECT count(*) FROM diaries`, "1")
	}
}

func rowLevelSecurityOfAListedTableFailsTheRun(g *servicetest.Ghosts) {
	g.Doomed(10)
	s := denied(g, `ALTER TABLE timelogs ENABLE ROW LEVEL SECURITY`)
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantState(g.T, r, control.RunFailed)
		assert.That(g.T, strings.Contains(r.Error, "table timelogs on main: row-level security may hide rows (privilege missing)"),
			"dry run %t: %q", dry, r.Error)
	}
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func aTableThatMustNotBeReadIsNamed(g *servicetest.Ghosts) {
	g.Doomed(10)
	s := denied(g, `REVOKE ALL ON reviews FROM {role}`)
	r := g.Runs(s, false)
	servicetest.WantState(g.T, r, control.RunFailed)
	assert.That(g.T, strings.Contains(r.Error, "reviews") && strings.Contains(r.Error, "SELECT"), "error %q", r.Error)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after < now()`, "1")
	// The status names an essential one.
	g.Exec("main", `DO $$ BEGIN EXECUTE format('REVOKE ALL ON ghost_user_migrations FROM tester_%s', (SELECT oid FROM pg_database
		WHERE datname = current_database())); END $$`)
	servicetest.WantDetail(g.T, servicetest.StatusOf(g.T, s, servicetest.GhostUsers), "grant SELECT", "ghost_user_migrations")
}

func aQueueWithoutAColumnItNeedsIsNotConfigured(g *servicetest.Ghosts) {
	for _, column := range []string{"hard_delete", "consume_after", "created_at"} {
		g.Exec("main", `ALTER TABLE ghost_user_migrations RENAME `+column+` TO hidden`)
		_, err := g.Service().RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
		servicetest.WantError(g.T, err, "ghost_user_migrations."+column)
		g.Exec("main", `ALTER TABLE ghost_user_migrations RENAME hidden TO `+column)
	}
}
