package ghostuser_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// denied is a service whose role may do everything with the tables of main, but for what some SQL changes then.
func denied(g *servicetest.Ghosts, sql string) *service.Service {
	g.T.Helper()
	role := "denied_" + g.Value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
	g.Exec("main", `CREATE ROLE `+role)
	g.T.Cleanup(func() { g.Exec("main", `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	g.Exec("main", strings.ReplaceAll(`GRANT USAGE ON SCHEMA public, maintenance TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO {role};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public, maintenance TO {role}; `+sql, "{role}", role))
	d := servicetest.Must(repo.Open(context.Background(), "main", g.URLs["main"]+"&options=-c%20role%3D"+role))(g.T)
	g.T.Cleanup(d.Close)
	return g.Service(func(c *service.Config) { c.Databases = []*repo.Database{d} })
}

func TestGhostUserMigration_AnUnlistedTableThatMustNotBeReadFailsItsUser(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"no privilege":       `REVOKE SELECT ON diaries FROM {role}`,
		"row-level security": `ALTER TABLE diaries ENABLE ROW LEVEL SECURITY`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(10)
			g.Exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE); INSERT INTO diaries (keeper_id) VALUES (10)`)
			g.Run(denied(g, sql), "failed_users=1")
			g.WantLater(10, 30*time.Minute)
			g.WantLog(1, `"msg":"user failed"`, `"table":"diaries","column":"keeper_id"`, "look for rows of diaries.keeper_id on main: 42501 insufficient_privilege")
			g.Want("main", `SELECT count(*) FROM diaries`, "1")
		})
	}
}

func TestGhostUserMigration_RowLevelSecurityOfAListedTableFailsTheRun(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	s := denied(g, `ALTER TABLE timelogs ENABLE ROW LEVEL SECURITY`)
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantState(t, r, repo.RunFailed)
		if !strings.Contains(r.Error, "table timelogs on main: row-level security may hide rows of it from our role") {
			t.Errorf("dry run %t: %q", dry, r.Error)
		}
	}
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func TestGhostUserMigration_AQueueWithoutAColumnItNeedsIsNotConfigured(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"hard_delete", "consume_after", "created_at"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Exec("main", `ALTER TABLE ghost_user_migrations DROP `+column)
			_, err := g.Service().RunBatch(context.Background(), service.RunRequest{Worker: servicetest.GhostUsers})
			if err == nil || !strings.Contains(err.Error(), "ghost_user_migrations."+column) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestGhostUserMigration_SchedulesThatNameNoGroupGoWithTheirUser(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01'); ALTER TABLE group_deletion_schedules DROP group_id`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.Want("main", `SELECT count(*) FROM group_deletion_schedules`, "0")
}
