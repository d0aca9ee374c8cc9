package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestGhostUserMigration_ALockedRowHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10, 11)
	g.fill("main", "notes", "note, noteable_type, noteable_id, author_id, project_id", "'n' || i, 'Issue', 1, 10, 1", 2500)
	g.exec("main", `INSERT INTO timelogs (time_spent, user_id, created_at, updated_at) VALUES (1, 10, now(), now()); INSERT INTO emails (user_id, email) VALUES (10, 'x')`)
	release := g.hold(`SELECT FROM notes WHERE note = 'n1234' FOR UPDATE`)
	s := g.service()
	r := g.run(s, "migrated_users=1 deferred_users=1 moved_rows=2500 deleted_rows=5")
	if !r.OverLimit || !strings.Contains(r.Reason, "1 users deferred") {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.want("main", `SELECT string_agg(note, ',') FROM notes WHERE author_id = 10`, "n1234")
	g.want("main", `SELECT user_id FROM timelogs`, "5")
	g.wantGone(11)
	g.wantLater(10, 30*time.Second)
	release()
	g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.wantGone(10)
}

func TestGhostUserMigration_ALockedRowIsLookedAtAgainAfterTheOthers(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2), (3, 10, 1, 101, 3)`)
	holder := g.connect("main")
	if _, err := holder.Exec(context.Background(), `BEGIN; SELECT FROM issues WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	// Moving the other issue ends the transaction that holds the first one.
	g.exec("main", fmt.Sprintf(`CREATE FUNCTION let_go() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(%d, 10000); RETURN NEW; END $$;
		CREATE TRIGGER let_go BEFORE UPDATE ON issues FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION let_go()`, holder.PgConn().PID()))
	g.run(g.service(), "migrated_users=1 moved_rows=2 deleted_rows=4")
}

func TestGhostUserMigration_RowsThatAreReferredToCanBeMoved(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	g.hold(`SELECT FROM issues FOR KEY SHARE`)
	g.run(g.service(), "migrated_users=1 moved_rows=1 deleted_rows=4")
}

func TestGhostUserMigration_LockedDependantsKeepTheirRowAndNoOther(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `UPDATE ghost_user_migrations SET hard_delete = true`)
	g.fill("main", "issues", "id, author_id, namespace_id", "1000 + i, 10, 101", 30)
	g.fill("main", "notes", "note, noteable_type, noteable_id, author_id, project_id", "'n' || i, 'Issue', 1001 + i % 30, 7, 1", 300)
	g.exec("main", `INSERT INTO issue_assignees (user_id, issue_id, namespace_id) SELECT 7, id, 101 FROM issues WHERE id > 1000`)
	release := g.hold(`SELECT FROM notes WHERE note = 'n17' FOR UPDATE; SELECT FROM issue_assignees WHERE issue_id = 1005 FOR UPDATE; SELECT FROM issues WHERE id = 1007 FOR UPDATE`)
	s := g.service()
	// 27 issues, 28 assignees, 289 notes: what is locked stays, an issue that is locked keeps all that depends on it.
	g.run(s, "deferred_users=1 deleted_rows=344")
	g.want("main", `SELECT string_agg(id::text, ',' ORDER BY id) FROM issues WHERE author_id = 10`, "1005,1007,1018")
	g.want("main", `SELECT string_agg(note, ',') FROM notes WHERE note = 'n17'`, "n17")
	g.wantLater(10, 30*time.Second)
	release()
	g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.run(s, "")
	g.wantGone(10)
	g.want("main", `SELECT (SELECT count(*) FROM issues WHERE id > 1000) + (SELECT count(*) FROM notes) + (SELECT count(*) FROM issue_assignees)`, "0")
}

func TestGhostUserMigration_ALockedUserIsDeferred(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10, 11)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	g.hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE`)
	g.run(g.service(), "migrated_users=1 deferred_users=1 moved_rows=1 deleted_rows=7")
	g.wantLater(10, 30*time.Second)
}

func TestGhostUserMigration_AGhostThatSomebodyElseIsMakingIsWaitedForOrLeftForLater(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10, 11)
	g.exec("main", `UPDATE users SET organization_id = 2 WHERE id = 10; UPDATE issues SET author_id = 10`)
	commit := g.holdThenCommit(`SELECT pg_advisory_xact_lock(hashtextextended('caretaker/ghost_user/2', 0));
		INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) VALUES (900, 'g', 'g', 0, 5, 2)`)
	s := g.service()
	g.run(s, "migrated_users=1 deferred_users=1 deleted_rows=4")
	g.wantLater(10, 30*time.Second)
	commit()
	g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.want("main", `SELECT author_id FROM issues`, "900")
	g.want("main", `SELECT count(*) FROM users WHERE user_type = 5 AND organization_id = 2`, "1")
}

func TestGhostUserMigration_ALockedTableDefersTheUser(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"issues", "projects", "namespaces", "group_deletion_schedules"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			g := newGhosts(t)
			g.doomed(10)
			g.exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01')`)
			release := g.hold(`LOCK TABLE ` + table)
			s := g.service()
			if r := g.run(s, ""); r.Counts["deferred_users"] != 1 || r.Counts["failed_users"] != 0 {
				t.Errorf("counts %v", r.Counts)
			}
			g.wantLater(10, 30*time.Second)
			release()
			g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
			g.run(s, "")
			g.wantGone(10)
		})
	}
}
