package ghost_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_TimeAndLimits(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"a deadline that has passed touches no row":                        aDeadlineThatHasPassedTouchesNoRow,
		"the deadline in the middle of a user defers it":                   theDeadlineInTheMiddleOfAUserDefersIt,
		"the deadline is kept in the last steps too":                       theDeadlineIsKeptInTheLastStepsToo,
		"a human with too much work does not keep a bot waiting":           aHumanWithTooMuchWorkDoesNotKeepABotWaiting,
		"a user who is still at work is deferred once the time is used up": aUserWhoIsStillAtWorkIsDeferredOnceTheTimeIsUsedUp,
		"limit users are taken and the rest is for the next run":           limitUsersAreTakenAndTheRestIsForTheNextRun,
		"many pending users are warned of once":                            manyPendingUsersAreWarnedOfOnce,
		"cancelled while a user meets an error it leaves the queue alone":  cancelledWhileAUserMeetsAnErrorItLeavesTheQueueAlone,
	})
}

func aDeadlineThatHasPassedTouchesNoRow(g *servicetest.Ghosts) {
	g.Doomed(10)
	s := g.Service(servicetest.Lasting(time.Nanosecond))
	before := g.Value("main", `SELECT consume_after FROM ghost_user_migrations`)
	r := g.Run(s, "")
	servicetest.WantCounts(g.T, r, "")
	assert.That(g.T, r.OverLimit && strings.Contains(r.Reason, "max_runtime"), "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.Exec("main", `DELETE FROM ghost_user_migrations`)
	if r := g.Run(s, ""); r.OverLimit {
		g.T.Error("over limit with nothing to do")
	}
}

func theDeadlineInTheMiddleOfAUserDefersIt(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.SlowIssues(10, 10_000)
	g.Exec("main", `INSERT INTO releases (tag, author_id, project_id, released_at, created_at, updated_at) VALUES ('v', 10, 1, now(), now(), now())`)
	r := g.Run(g.Service(servicetest.Lasting(2500*time.Millisecond)), "")
	moved := r.Counts["moved_rows"]
	servicetest.WantCounts(g.T, run.Run{Counts: r.Counts}, "deferred_users=1 moved_rows="+strings.TrimSpace(g.Value("main", `SELECT count(*) FROM issues WHERE author_id = 5`)))
	assert.That(g.T, moved != 0 && moved != 10_000 && r.OverLimit && strings.Contains(r.Reason, "max_runtime"),
		"moved %d, over limit %t, reason %q", moved, r.OverLimit, r.Reason)
	g.WantLater(10, 30*time.Second)
	g.Exec("main", `DROP TRIGGER dawdle ON issues; UPDATE ghost_user_migrations SET consume_after = now()`)
	r = g.Run(g.Service(), "")
	assert.That(g.T, r.Counts["moved_rows"] == 10_001-moved && r.Counts["migrated_users"] == 1,
		"the second run counts %v after %d", r.Counts, moved)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id = 5`, "10000")
}

func theDeadlineIsKeptInTheLastStepsToo(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN OLD; END $$;
		CREATE TRIGGER dawdle BEFORE DELETE ON routes FOR EACH ROW EXECUTE FUNCTION dawdle();
		CREATE TRIGGER dawdle BEFORE DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	r := g.Run(g.Service(servicetest.Lasting(1500*time.Millisecond)), "")
	assert.That(g.T, r.Counts["deferred_users"] == 1 && r.Counts["migrated_users"] == 0 && r.OverLimit,
		"counts %v, over limit %t", r.Counts, r.OverLimit)
	g.WantLater(10, 30*time.Second)
}

func aHumanWithTooMuchWorkDoesNotKeepABotWaiting(g *servicetest.Ghosts) {
	g.User(11, 6)
	g.Doomed(10)
	g.Queue(11)
	g.SlowIssues(10, 12_000)
	s := g.Service(servicetest.Lasting(5 * time.Second))
	r := g.Run(s, "")
	first := r.Counts["moved_rows"]
	assert.That(g.T, r.Counts["migrated_users"] == 1 && r.Counts["deferred_users"] == 1 && first != 0 && first != 12_000 && r.OverLimit,
		"counts %v, over limit %t", r.Counts, r.OverLimit)
	g.WantGone(11)
	g.WantLater(10, 30*time.Second)
	g.WantLog(1, `"msg":"user deferred"`, `"user_id":10`)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	assert.That(g.T, g.Run(s, "").Counts["moved_rows"] != 0, "the next run does not go on")
}

func aUserWhoIsStillAtWorkIsDeferredOnceTheTimeIsUsedUp(g *servicetest.Ghosts) {
	g.Doomed(10)
	// Each row that is moved is followed by another one.
	g.Exec("main", `CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO issues (author_id, namespace_id) VALUES (OLD.author_id, 101); RETURN NULL; END $$;
		CREATE TRIGGER go_on AFTER UPDATE ON issues FOR EACH ROW WHEN (OLD.author_id = 10) EXECUTE FUNCTION go_on();
		UPDATE issues SET author_id = 10`)
	r := g.Run(g.Service(servicetest.Lasting(2*time.Second)), "")
	assert.That(g.T, r.Counts["deferred_users"] == 1 && r.OverLimit, "%+v", r)
	g.WantLater(10, 30*time.Second)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id IS NULL`, "0")
}

// The users are due at the same time, and their ids have gaps.
func limitUsersAreTakenAndTheRestIsForTheNextRun(g *servicetest.Ghosts) {
	s := g.Service(servicetest.With(func(c *ghost.Config) { c.Limit = 3 }))
	for _, n := range servicetest.PageEdges(3) {
		g.Exec("main", fmt.Sprintf(`INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT 2000 + 7 * i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(1, %d) i;
			INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) SELECT 2000 + 7 * i, '2020-01-01', now(), now() FROM generate_series(1, %[1]d) i`, n))
		for left := n; ; left -= 3 {
			r := g.Run(s, fmt.Sprintf("migrated_users=%d deleted_rows=%[1]d", min(left, 3)))
			if over := left > 3; r.OverLimit != over || over != strings.Contains(r.Reason, "limit reached: "+
				"workers.ghost_user_migration.limit") {
				g.T.Errorf("%d of %d users are left: over limit %t, reason %q", left, n, r.OverLimit, r.Reason)
			}
			if left <= 3 {
				break
			}
		}
		g.Want("main", `SELECT count(*) + (SELECT count(*) FROM ghost_user_migrations) FROM users WHERE id > 2000`, "0")
	}
	g.WantLog(0, "many users pending")
}

func manyPendingUsersAreWarnedOfOnce(g *servicetest.Ghosts) {
	g.Exec("main", `INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(2001, 3001) i;
		INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) SELECT i, now() + interval '1 hour', now(), now() FROM generate_series(2001, 3000) i`)
	s := g.Service()
	g.Run(s, "")
	g.WantLog(0, "many users pending")
	g.Exec("main", `INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (3001, now() + interval '1 hour', now(), now())`)
	g.Run(s, "")
	g.WantLog(1, `"level":"WARN"`, "many users pending", `"pending":1001`)
	g.WantLog(0, "many user deletions failed")
}

// The error that a user meets is that of a run that is to end anyway.
func cancelledWhileAUserMeetsAnErrorItLeavesTheQueueAlone(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	g.Exec("main", `UPDATE issues SET author_id = 10; UPDATE merge_requests SET author_id = 10`)
	g.Gate("main", "issues")
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse AFTER UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION refuse()`)
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	assert.Must(s.CancelRun(context.Background(), r.ID, ""))(g.T)
	g.Lift("main", servicetest.App)
	r = servicetest.Ended(g.T, s, r.ID)
	servicetest.WantRun(g.T, r, control.RunCancelled, "")
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT i.author_id || ' ' || m.author_id FROM issues i, merge_requests m`, "10 10")
	devdb.Eventually(g.T, "the last line of the run", func() bool { return len(g.Log.Lines("run finished")) > 0 })
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
