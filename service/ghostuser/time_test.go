package ghostuser_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_ADeadlineThatHasPassedTouchesNoRow(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	s := g.Service(servicetest.Lasting(time.Nanosecond))
	before := g.Value("main", `SELECT consume_after FROM ghost_user_migrations`)
	r := g.Run(s, "")
	servicetest.WantCounts(t, r, "")
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, "max_runtime"), "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.Exec("main", `DELETE FROM ghost_user_migrations`)
	if r := g.Run(s, ""); r.OverLimit {
		t.Error("over limit with nothing to do")
	}
}

func TestGhostUserMigration_TheDeadlineInTheMiddleOfAUserDefersIt(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.SlowIssues(10, 10_000)
	g.Exec("main", `INSERT INTO releases (tag, author_id, project_id, released_at, created_at, updated_at) VALUES ('v', 10, 1, now(), now(), now())`)
	r := g.Run(g.Service(servicetest.Lasting(2500*time.Millisecond)), "")
	moved := r.Counts["moved_rows"]
	servicetest.WantCounts(t, run.Run{Counts: r.Counts}, "deferred_users=1 moved_rows="+strings.TrimSpace(g.Value("main", `SELECT count(*) FROM issues WHERE author_id = 5`)))
	assert.That(t, moved != 0 && moved != 10_000 && r.OverLimit && strings.Contains(r.Reason, "max_runtime"),
		"moved %d, over limit %t, reason %q", moved, r.OverLimit, r.Reason)
	g.WantLater(10, 30*time.Second)
	g.Exec("main", `DROP TRIGGER dawdle ON issues; UPDATE ghost_user_migrations SET consume_after = now()`)
	r = g.Run(g.Service(), "")
	assert.That(t, r.Counts["moved_rows"] == 10_001-moved && r.Counts["migrated_users"] == 1,
		"the second run counts %v after %d", r.Counts, moved)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id = 5`, "10000")
}

func TestGhostUserMigration_TheDeadlineIsKeptInTheLastStepsToo(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN OLD; END $$;
		CREATE TRIGGER dawdle BEFORE DELETE ON routes FOR EACH ROW EXECUTE FUNCTION dawdle();
		CREATE TRIGGER dawdle BEFORE DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	r := g.Run(g.Service(servicetest.Lasting(1500*time.Millisecond)), "")
	assert.That(t, r.Counts["deferred_users"] == 1 && r.Counts["migrated_users"] == 0 && r.OverLimit,
		"counts %v, over limit %t", r.Counts, r.OverLimit)
	g.WantLater(10, 30*time.Second)
}

func TestGhostUserMigration_AHumanWithTooMuchWorkDoesNotKeepABotWaiting(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	g.User(11, 6)
	g.Doomed(10)
	g.Queue(11)
	g.SlowIssues(10, 12_000)
	s := g.Service(servicetest.Lasting(5 * time.Second))
	r := g.Run(s, "")
	first := r.Counts["moved_rows"]
	assert.That(t, r.Counts["migrated_users"] == 1 && r.Counts["deferred_users"] == 1 && first != 0 && first != 12_000 && r.OverLimit,
		"counts %v, over limit %t", r.Counts, r.OverLimit)
	g.WantGone(11)
	g.WantLater(10, 30*time.Second)
	g.WantLog(1, `"msg":"user deferred"`, `"user_id":10`)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	assert.That(t, g.Run(s, "").Counts["moved_rows"] != 0, "the next run does not go on")
}

// The users are due at the same time, and their ids have gaps.
func TestGhostUserMigration_LimitUsersAreTakenAndTheRestIsForTheNextRun(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	s := g.Service(servicetest.With(func(c *ghostuser.Config) { c.Limit = 3 }))
	for _, n := range servicetest.PageEdges(3) {
		g.Exec("main", fmt.Sprintf(`INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT 2000 + 7 * i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(1, %d) i;
			INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) SELECT 2000 + 7 * i, '2020-01-01', now(), now() FROM generate_series(1, %[1]d) i`, n))
		for left := n; ; left -= 3 {
			r := g.Run(s, fmt.Sprintf("migrated_users=%d deleted_rows=%[1]d", min(left, 3)))
			if over := left > 3; r.OverLimit != over || over != strings.Contains(r.Reason, "limit reached: limit") {
				t.Errorf("%d of %d users are left: over limit %t, reason %q", left, n, r.OverLimit, r.Reason)
			}
			if left <= 3 {
				break
			}
		}
		g.Want("main", `SELECT count(*) + (SELECT count(*) FROM ghost_user_migrations) FROM users WHERE id > 2000`, "0")
	}
	g.WantLog(0, "many users pending")
}

func TestGhostUserMigration_ManyPendingUsersAreWarnedOfOnce(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	g.Exec("main", `INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(2001, 3001) i;
		INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) SELECT i, now() + interval '1 hour', now(), now() FROM generate_series(2001, 3000) i`)
	s := g.Service()
	g.Run(s, "")
	g.WantLog(0, "many users pending")
	g.Exec("main", `INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (3001, now() + interval '1 hour', now(), now())`)
	g.Run(s, "")
	g.WantLog(1, `"level":"WARN"`, "many users pending", `"pending":1001`)
	g.WantLog(0, "many users failed")
}

// The error that a user meets is that of a run that is to end anyway.
func TestGhostUserMigration_CancelledWhileAUserMeetsAnErrorItLeavesTheQueueAlone(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	g.Exec("main", `UPDATE issues SET author_id = 10; UPDATE merge_requests SET author_id = 10`)
	g.Gate("main", "issues")
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse AFTER UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION refuse()`)
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	assert.Must(s.CancelRun(context.Background(), r.ID, ""))(t)
	g.Lift("main", servicetest.App)
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, repo.RunCancelled, "")
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT i.author_id || ' ' || m.author_id FROM issues i, merge_requests m`, "10 10")
	g.WantLog(0, `"level":"ERROR"`)
}

func TestFault_GhostUserMigration_KilledInTheMiddleItGoesOnWithWhatIsLeft(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Fill("main", "issues", "author_id, namespace_id", "10, 101", 5000)
	g.Gate("main", "issues", "OLD.id = 3000")
	g.Shut("main", "doomed")
	p := g.Start("doomed", "", func(o *servicetest.Order) { o.Definitions, o.Database, o.Worker = "", "", servicetest.GhostUsers })
	g.AtGate("main", "doomed")
	p.Kill()
	g.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	left := g.Value("main", `SELECT count(*) FROM issues WHERE author_id = 10`)
	assert.That(t, left != "5000" && left != "0", "%s issues are left, want some", left)
	g.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4 moved_rows="+left)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id = 5`, "5000")
	g.Run(g.Service(), "")
}

// denied is a service whose role may do everything with the tables of main, but for what some SQL changes then.
func denied(g *servicetest.Ghosts, sql string) *service.Service {
	g.T.Helper()
	role := g.Role(`GRANT USAGE ON SCHEMA public, maintenance TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO {role};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public, maintenance TO {role}; ` + sql)
	d := servicetest.Open(g.T, g.URLAs(role, "x"))
	return g.Service(func(c *service.Config) { c.Databases = []*repo.Database{d} })
}

func TestGhostUserMigration_AnUnlistedTableThatMustNotBeReadFailsItsUser(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"no privilege":       `REVOKE SELECT ON diaries FROM {role}`,
		"row-level security": `ALTER TABLE diaries ENABLE ROW LEVEL SECURITY`,
	} {
		t.Run(name, func(t *testing.T) {
			g := newDoomed(servicetest.Parallel(t), 10)
			g.Exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE); INSERT INTO diaries (keeper_id) VALUES (10)`)
			g.Run(denied(g, sql), "failed_users=1")
			g.WantLater(10, 30*time.Minute)
			g.WantLog(1, `"msg":"user failed"`, `"table":"diaries","column":"keeper_id"`, "look for rows of diaries.keeper_id on main: 42501 insufficient_privilege")
			g.Want("main", `SELECT count(*) FROM diaries`, "1")
		})
	}
}

func TestGhostUserMigration_RowLevelSecurityOfAListedTableFailsTheRun(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	s := denied(g, `ALTER TABLE timelogs ENABLE ROW LEVEL SECURITY`)
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantState(t, r, repo.RunFailed)
		assert.That(t, strings.Contains(r.Error, "table timelogs on main: row-level security may hide rows of it from our role"),
			"dry run %t: %q", dry, r.Error)
	}
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func TestGhostUserMigration_AQueueWithoutAColumnItNeedsIsNotConfigured(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	for _, column := range []string{"hard_delete", "consume_after", "created_at"} {
		g.Exec("main", `ALTER TABLE ghost_user_migrations RENAME `+column+` TO hidden`)
		_, err := g.Service().RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
		servicetest.WantError(t, err, "ghost_user_migrations."+column)
		g.Exec("main", `ALTER TABLE ghost_user_migrations RENAME hidden TO `+column)
	}
}

// condition is a column by which the worker tells rows that it deletes from rows that it must not, and a row to be told.
type condition struct {
	table, column, reference, row string
	hard                          bool
}

// conditions are all of them. The personal namespace and the route of the user, and an issue of theirs, are there.
func conditions() []condition {
	return []condition{
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES ({user}, 'ssh')`, false},
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES ({user}, 'ssh')`, true},
		{"oauth_applications", "owner_type", "owner_id", `INSERT INTO oauth_applications (name, uid, secret, redirect_uri, owner_id)
			VALUES ('a', 'u', 's', 'r', {user})`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES ({user}, 1)`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES ({user}, 1)`, true},
		{"namespaces", "type", "owner_id", ``, false},
		{"routes", "source_type", "source_id", `UPDATE routes SET namespace_id = 100 WHERE source_id = {user}`, false},
		{"members", "source_type", "source_id", `INSERT INTO members (access_level, source_id, user_id, member_namespace_id) VALUES (50,
			{user}, 7, 100)`, false},
		{"notes", "noteable_type", "noteable_id", `INSERT INTO notes (noteable_id, author_id, project_id) VALUES ({issue}, 7, 1)`, true},
		{"award_emoji", "awardable_type", "awardable_id", `INSERT INTO award_emoji (awardable_id, user_id) VALUES ({issue}, 7)`, true},
		{"todos", "target_type", "target_id", `INSERT INTO todos (target_id, user_id, author_id, project_id, action, state) VALUES ({issue}, 7,
			7, 1, 1, 'pending')`, true},
		{"events", "target_type", "target_id", `INSERT INTO events (target_id, author_id, project_id, action, created_at, updated_at)
			VALUES ({issue}, 7, 1, 1, now(), now())`, true},
		{"subscriptions", "subscribable_type", "subscribable_id", `INSERT INTO subscriptions (subscribable_id, user_id)
			VALUES ({issue}, 7)`, true},
	}
}

// hide renames the column. Rows need no value for it then.
func (c condition) hide(g *servicetest.Ghosts) {
	g.T.Helper()
	g.Exec("main", `ALTER TABLE `+c.table+` RENAME COLUMN `+c.column+` TO hidden;
		ALTER TABLE `+c.table+` ALTER hidden DROP NOT NULL, ALTER hidden DROP DEFAULT`)
}

// debugging logs lines of all levels.
func debugging(g *servicetest.Ghosts) *service.Service {
	return g.Service(func(c *service.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(g.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
}

func TestGhostUserMigration_WithoutTheColumnOfAConditionNothingIsDeletedOrSkipped(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	ran := func(counts string) {
		t.Helper()
		g.Log.Reset()
		s := debugging(g)
		dry, run := g.Runs(s, true), g.Run(s, counts)
		servicetest.WantState(t, dry, repo.RunSucceeded)
		assert.That(t, maps.Equal(dry.Counts, run.Counts), "dry run %v, run %v", dry.Counts, run.Counts)
	}
	for i, c := range conditions() {
		user, issue := 10+i, 1000+i
		g.Doomed(user)
		g.Fill("main", "issues", "id, author_id, namespace_id", fmt.Sprintf("%d, %d, 101", issue, user), 1)
		g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1 WHERE user_id = $2`, c.hard, user)
		c.hide(g)
		g.Exec("main", strings.NewReplacer("{user}", strconv.Itoa(user), "{issue}", strconv.Itoa(issue)).Replace(c.row))
		ran("")
		g.WantLog(2, `"level":"DEBUG"`, `"table":"`+c.table+`"`, `"missing":"`+c.column+`"`)
		g.WantLater(user, 30*time.Minute)
		g.WantLog(2, `"level":"ERROR"`, `"reason":"STILL_REFERENCED"`, c.table+"."+c.reference+" still refers to it, or to something else: "+
			c.table+" has no column "+c.column, `"table":"`+c.table+`","column":"`+c.reference+`"`)
		g.Want("main", fmt.Sprintf(`SELECT count(*) > 0 FROM %s WHERE %s IN (%d, %d)`, c.table, c.reference, user, issue), "true")
		g.Exec("main", `ALTER TABLE `+c.table+` RENAME COLUMN hidden TO `+c.column)
	}

	// Without such rows there is nothing to decide.
	g.Doomed(50, 51)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = true WHERE user_id = 51;
		DELETE FROM routes WHERE source_id IN (50, 51); DELETE FROM namespaces WHERE owner_id IN (50, 51)`)
	all := slices.CompactFunc(conditions(), func(a, b condition) bool { return a.table == b.table })
	for _, c := range all {
		c.hide(g)
	}
	ran("migrated_users=2 deleted_rows=2")
	for _, c := range all {
		g.WantLog(2, `"level":"DEBUG"`, `"table":"`+c.table+`"`, `"missing":"`+c.column+`"`)
	}
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (50, 51)`, "0")
}
