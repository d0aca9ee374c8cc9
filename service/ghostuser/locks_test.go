package ghostuser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_ALockedRowHoldsUpNothingElse(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Fill("main", "notes", "note, noteable_type, noteable_id, author_id, project_id", "'n' || i, 'Issue', 1, 10, 1", 2500)
	g.Exec("main", `INSERT INTO timelogs (time_spent, user_id, created_at, updated_at) VALUES (1, 10, now(), now()); INSERT INTO emails (user_id, email) VALUES (10, 'x')`)
	release := g.Hold(`SELECT FROM notes WHERE note = 'n1234' FOR UPDATE`)
	s := g.Service()
	r := g.Run(s, "migrated_users=1 deferred_users=1 moved_rows=2500 deleted_rows=5")
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, "1 user deferred"), "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT string_agg(note, ',') FROM notes WHERE author_id = 10`, "n1234")
	g.Want("main", `SELECT user_id FROM timelogs`, "5")
	g.WantGone(11)
	g.WantLater(10, 30*time.Second)
	release()
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.WantGone(10)
}

func TestGhostUserMigration_ALockedRowIsLookedAtAgainAfterTheOthers(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2), (3, 10, 1, 101, 3)`)
	holder := g.Connect("main")
	assert.Must(holder.Exec(context.Background(), `BEGIN; SELECT FROM issues WHERE id = 2 FOR UPDATE`))(t)
	// Moving the other issue ends the transaction that holds the first one.
	g.Exec("main", fmt.Sprintf(`CREATE FUNCTION let_go() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(%d, 10000); RETURN NEW; END $$;
		CREATE TRIGGER let_go BEFORE UPDATE ON issues FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION let_go()`, holder.PgConn().PID()))
	g.Run(g.Service(), "migrated_users=1 moved_rows=2 deleted_rows=4")
}

func TestGhostUserMigration_LockedDependantsKeepTheirRowAndNoOther(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
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

func TestGhostUserMigration_ALockedUserIsDeferred(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	// Rows that are referred to can be moved.
	g.Hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE; SELECT FROM issues FOR KEY SHARE`)
	g.Run(g.Service(), "migrated_users=1 deferred_users=1 moved_rows=1 deleted_rows=7")
	g.WantLater(10, 30*time.Second)
}

func TestGhostUserMigration_AGhostThatSomebodyElseIsMakingIsWaitedForOrLeftForLater(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
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

func TestGhostUserMigration_ALockedTableDefersTheUser(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"projects", "namespaces", "group_deletion_schedules"} {
		t.Run(table, func(t *testing.T) {
			g := newDoomed(servicetest.Parallel(t), 10)
			g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01')`)
			release := g.Hold(`LOCK TABLE ` + table)
			s := g.Service()
			if r := g.Run(s, ""); r.Counts["deferred_users"] != 1 || r.Counts["failed_users"] != 0 {
				t.Errorf("counts %v", r.Counts)
			}
			g.WantLater(10, 30*time.Second)
			release()
			g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
			g.Run(s, "")
			g.WantGone(10)
		})
	}
}

// waitsSQL says whether a statement on main waits for somebody else's lock.
const waitsSQL = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

func TestGhostUserMigration_WhatOthersCommitBeforeTheUserGoesIsMovedToo(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (2, 'child', 7, 1, 101, 2)`)
	commit := g.HoldThenCommit(`INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (3, 10, 1, 101, 3);
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Issue', 1, 10, 1);
		INSERT INTO todos (user_id, author_id, project_id, target_type, action, state) VALUES (7, 10, 1, 'Issue', 1, 'pending');
		INSERT INTO resource_link_events (action, user_id, issue_id, child_work_item_id, created_at) VALUES (1, 10, 1, 2, now())`)
	pipelines := g.Connect("ci")
	if _, err := pipelines.Exec(context.Background(), `BEGIN; INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`); err != nil {
		t.Fatal(err)
	}
	s := g.Service()
	r := g.Begin(s)
	g.Eventually("main", waitsSQL, "true")
	assert.Must(pipelines.Exec(context.Background(), `COMMIT`))(t)
	commit()
	r = g.Settled(s, servicetest.Ended(t, s, r.ID))
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "migrated_users=1 moved_rows=5 deleted_rows=4")
	g.WantGone(10)
	g.Want("main", `SELECT concat_ws(' ', (SELECT author_id FROM issues WHERE id = 3), (SELECT author_id FROM notes), (SELECT author_id FROM todos), (SELECT user_id FROM resource_link_events))`, "5 5 5 5")
	g.Want("ci", `SELECT user_id FROM p_ci_pipelines`, "5")
}

func TestGhostUserMigration_AUserWhoIsStillAtWorkIsDeferredOnceTheTimeIsUsedUp(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	// Each row that is moved is followed by another one.
	g.Exec("main", `CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO issues (author_id, namespace_id) VALUES (OLD.author_id, 101); RETURN NULL; END $$;
		CREATE TRIGGER go_on AFTER UPDATE ON issues FOR EACH ROW WHEN (OLD.author_id = 10) EXECUTE FUNCTION go_on();
		UPDATE issues SET author_id = 10`)
	if r := g.Run(g.Service(servicetest.Lasting(6*time.Second)), ""); r.Counts["deferred_users"] != 1 || !r.OverLimit {
		t.Errorf("%+v", r)
	}
	g.WantLater(10, 30*time.Second)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id IS NULL`, "0")
}

func TestGhostUserMigration_AUserWithNothingIsLookedAtInFewStatements(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	g.Doomed(10, 11)
	g.Exec("main", `DELETE FROM namespaces WHERE id IN (10, 11)`)
	g.Run(g.Service(), "migrated_users=2 deleted_rows=2")
	// Twice at all of the more than 100 columns, and once at the namespace alone.
	g.Want("main", `SELECT sum(calls) / 2 <= 5 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE 'SELECT ARRAY[EXISTS%'`, "true")
}
