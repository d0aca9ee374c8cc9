package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// denied is a service whose role may do everything with the tables of main, but for what some SQL changes then.
func (g *ghostEstate) denied(sql string) *service.Service {
	g.t.Helper()
	role := "denied_" + g.value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
	g.exec("main", `CREATE ROLE `+role)
	g.t.Cleanup(func() { g.exec("main", `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	g.exec("main", strings.ReplaceAll(`GRANT USAGE ON SCHEMA public, maintenance TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO {role};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public, maintenance TO {role}; `+sql, "{role}", role))
	d, err := repo.Open(context.Background(), "main", g.urls["main"]+"&options=-c%20role%3D"+role)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(d.Close)
	return g.service(func(c *service.Config) { c.Databases = []*repo.Database{d} })
}

func TestGhostUserMigration_AnUnlistedTableThatMustNotBeReadFailsItsUser(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"no privilege":       `REVOKE SELECT ON diaries FROM {role}`,
		"row-level security": `ALTER TABLE diaries ENABLE ROW LEVEL SECURITY`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGhosts(t)
			g.doomed(10)
			g.exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE); INSERT INTO diaries (keeper_id) VALUES (10)`)
			g.run(g.denied(sql), "failed_users=1")
			g.wantLater(10, 30*time.Minute)
			g.wantLog(1, `"msg":"user failed"`, `"table":"diaries","column":"keeper_id"`, "look for rows of diaries.keeper_id on main: 42501 insufficient_privilege")
			g.want("main", `SELECT count(*) FROM diaries`, "1")
		})
	}
}

func TestGhostUserMigration_RowLevelSecurityOfAListedTableFailsTheRun(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	s := g.denied(`ALTER TABLE timelogs ENABLE ROW LEVEL SECURITY`)
	for _, dry := range []bool{true, false} {
		r := g.runs(s, dry)
		wantState(t, r, repo.RunFailed)
		if !strings.Contains(r.Error, "table timelogs on main: row-level security may hide rows of it from our role") {
			t.Errorf("dry run %t: %q", dry, r.Error)
		}
	}
	g.want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func TestGhostUserMigration_AQueueWithoutAColumnItNeedsIsNotConfigured(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"hard_delete", "consume_after", "created_at"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			g := newGhosts(t)
			g.exec("main", `ALTER TABLE ghost_user_migrations DROP `+column)
			_, err := g.service().RunBatch(context.Background(), service.RunRequest{Worker: ghostWorker})
			if err == nil || !strings.Contains(err.Error(), "ghost_user_migrations."+column) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestGhostUserMigration_SchedulesThatNameNoGroupGoWithTheirUser(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01'); ALTER TABLE group_deletion_schedules DROP group_id`)
	g.run(g.service(), "migrated_users=1 deleted_rows=4")
	g.wantGone(10)
	g.want("main", `SELECT count(*) FROM group_deletion_schedules`, "0")
}
