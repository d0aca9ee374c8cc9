package ghost_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_WhileOthersHoldLocks(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"a locked row holds up nothing else":                                      aLockedRowHoldsUpNothingElse,
		"a locked row is looked at again after the others":                        aLockedRowIsLookedAtAgainAfterTheOthers,
		"locked dependants keep their row and no other":                           lockedDependantsKeepTheirRowAndNoOther,
		"a locked user is deferred":                                               aLockedUserIsDeferred,
		"a ghost that somebody else is making is waited for or left for later":    aGhostThatSomebodyElseIsMakingIsWaitedForOrLeftForLater,
		"a ghost that somebody else has made meanwhile is used":                   aGhostThatSomebodyElseHasMadeMeanwhileIsUsed,
		"does not stand in the way of those who lock the user and then the queue": doesNotStandInTheWayOfThoseWhoLockTheUserAndThenTheQueue,
		"a run held to a plan deletes nobody else":                                aRunHeldToAPlanDeletesNobodyElse,
		"a namespace that comes before the last step goes with its user":          aNamespaceThatComesBeforeTheLastStepGoesWithItsUser,
	})
}

func TestGhostUserMigration_WhileOthersHoldATable(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"a lock on projects defers the user":      aLockedTableDefersTheUser("projects"),
		"a lock on namespaces defers the user":    aLockedTableDefersTheUser("namespaces"),
		"a lock on the schedules defers the user": aLockedTableDefersTheUser("group_deletion_schedules"),
	})
}

func aLockedRowHoldsUpNothingElse(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Fill("main", "notes", "note, noteable_type, noteable_id, author_id, project_id", "'n' || i, 'Issue', 1, 10, 1", 2500)
	g.Exec("main", `INSERT INTO timelogs (time_spent, user_id, created_at, updated_at) VALUES (1, 10, now(), now()); INSERT INTO emails (user_id, email) VALUES (10, 'x')`)
	release := g.Hold(`SELECT FROM notes WHERE note = 'n1234' FOR UPDATE`)
	s := g.Service()
	r := g.Run(s, "migrated_users=1 deferred_users=1 moved_rows=2500 deleted_rows=5")
	assert.That(g.T, r.OverLimit && strings.Contains(r.Reason, "1 user deferred"), "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT string_agg(note, ',') FROM notes WHERE author_id = 10`, "n1234")
	g.Want("main", `SELECT user_id FROM timelogs`, "5")
	g.WantGone(11)
	g.WantLater(10, 30*time.Second)
	release()
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.WantGone(10)
}

func aLockedRowIsLookedAtAgainAfterTheOthers(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2), (3, 10, 1, 101, 3)`)
	holder := g.Connect("main")
	assert.Must(holder.Exec(context.Background(), `BEGIN; SELECT FROM issues WHERE id = 2 FOR UPDATE`))(g.T)
	// Moving the other issue ends the transaction that holds the first one.
	g.Exec("main", fmt.Sprintf(`CREATE FUNCTION let_go() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(%d, 10000); RETURN NEW; END $$;
		CREATE TRIGGER let_go BEFORE UPDATE ON issues FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION let_go()`, holder.PgConn().PID()))
	g.Run(g.Service(), "migrated_users=1 moved_rows=2 deleted_rows=4")
}

func lockedDependantsKeepTheirRowAndNoOther(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = true`)
	g.Fill("main", "issues", "id, author_id, namespace_id", "1000 + i, 10, 101", 30)
	g.Fill("main", "notes", "note, noteable_type, noteable_id, author_id, project_id", "'n' || i, 'Issue', 1001 + i % 30, 7, 1", 300)
	g.Exec("main", `INSERT INTO issue_assignees (user_id, issue_id, namespace_id) SELECT 7, id, 101 FROM issues WHERE id > 1000`)
	release := g.Hold(`SELECT FROM notes WHERE note = 'n17' FOR UPDATE; SELECT FROM issue_assignees WHERE issue_id = 1005 FOR UPDATE; SELECT FROM issues WHERE id = 1007 FOR UPDATE`)
	s := g.Service()
	// 27 issues, 28 assignees, 289 notes: what is locked stays, an issue that is locked keeps all that depends on it.
	g.Run(s, "deferred_users=1 deleted_rows=344")
	g.Want("main", `SELECT string_agg(id::text, ',' ORDER BY id) FROM issues WHERE author_id = 10`, "1005,1007,1018")
	g.Want("main", `SELECT string_agg(note, ',') FROM notes WHERE note = 'n17'`, "n17")
	g.WantLater(10, 30*time.Second)
	release()
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "")
	g.WantGone(10)
	g.Want("main", `SELECT (SELECT count(*) FROM issues WHERE id > 1000) + (SELECT count(*) FROM notes) + (SELECT count(*) FROM issue_assignees)`, "0")
}

func aLockedUserIsDeferred(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	// Rows that are referred to can be moved.
	g.Hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE; SELECT FROM issues FOR KEY SHARE`)
	g.Run(g.Service(), "migrated_users=1 deferred_users=1 moved_rows=1 deleted_rows=7")
	g.WantLater(10, 30*time.Second)
}

func aGhostThatSomebodyElseIsMakingIsWaitedForOrLeftForLater(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE users SET organization_id = 2 WHERE id = 10; UPDATE issues SET author_id = 10`)
	commit := g.HoldThenCommit(`SELECT pg_advisory_xact_lock(hashtextextended('caretaker/ghost_user/2', 0));
		INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) VALUES (900, 'g', 'g', 0, 5, 2)`)
	s := g.Service()
	g.Run(s, "migrated_users=1 deferred_users=1 deleted_rows=4")
	g.WantLater(10, 30*time.Second)
	commit()
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.Want("main", `SELECT author_id FROM issues`, "900")
	g.Want("main", `SELECT count(*) FROM users WHERE user_type = 5 AND organization_id = 2`, "1")
}

func aGhostThatSomebodyElseHasMadeMeanwhileIsUsed(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE users SET organization_id = 2 WHERE id IN (10, 11); UPDATE issues SET author_id = 10`)
	commit := g.HoldThenCommit(`INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) VALUES (900, 'g', 'ghost1', 0, 5, 2)`)
	s := g.Service()
	r := g.Begin(s)
	g.Eventually("main", waitsSQL, "true")
	commit()
	r = g.Settled(s, servicetest.Ended(g.T, s, r.ID))
	servicetest.WantCounts(g.T, r, "migrated_users=2 moved_rows=1 deleted_rows=8")
	g.Want("main", `SELECT author_id FROM issues`, "900")
	g.Want("main", `SELECT count(*) FROM users WHERE user_type = 5 AND organization_id = 2`, "1")
}

func doesNotStandInTheWayOfThoseWhoLockTheUserAndThenTheQueue(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Held(`SELECT FROM users WHERE id = 10 FOR UPDATE`, 1, `UPDATE ghost_user_migrations SET updated_at = now() WHERE user_id = 10`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
}

func aNamespaceThatComesBeforeTheLastStepGoesWithItsUser(g *servicetest.Ghosts) {
	g.Doomed(10)
	// No foreign key ties a namespace to its owner.
	g.Held(`SELECT FROM users WHERE id = 10 FOR UPDATE`, 1,
		`INSERT INTO namespaces (id, name, path, type, owner_id, organization_id, created_at, updated_at) VALUES (900, 'n', 'n', 'User', 10, 1, now(), now())`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=6")
	g.WantGone(10)
	g.Want("main", `SELECT count(*) FROM namespaces WHERE owner_id = 10`, "0")
}

func aRunHeldToAPlanDeletesNobodyElse(g *servicetest.Ghosts) {
	g.User(10, 0)
	g.User(11, 0)
	g.Queue(10)
	s := g.Service()
	dry := g.Runs(s, true)
	// While the run checks 10 another one is queued, due long ago.
	g.Held(`LOCK TABLE issues IN ACCESS EXCLUSIVE MODE`, 1,
		`INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (11, now() - interval '2 hours', now(), now())`)
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers, ExpectedDigest: dry.CandidatesDigest}))(g.T)
	servicetest.WantCounts(g.T, r, "migrated_users=1 deleted_rows=4")
	g.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (10, 11)`, "11")
	g.Want("main", `SELECT string_agg(user_id::text, ' ') FROM ghost_user_migrations`, "11")
	servicetest.WantCounts(g.T, g.Runs(s, false), "migrated_users=1 deleted_rows=4")
}

// waitsSQL reports whether a statement on main waits for another session's lock.
const waitsSQL = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

func aLockedTableDefersTheUser(table string) func(g *servicetest.Ghosts) {
	return func(g *servicetest.Ghosts) {
		g.Doomed(10)
		g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01')`)
		release := g.Hold(`LOCK TABLE ` + table)
		s := g.Service()
		r := g.Run(s, "")
		assert.That(g.T, r.Counts["deferred_users"] == 1 && r.Counts["failed_users"] == 0, "counts %v", r.Counts)
		g.WantLater(10, 30*time.Second)
		release()
		g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
		g.Run(s, "")
		g.WantGone(10)
	}
}
