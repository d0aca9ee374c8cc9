package service_test

import (
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
	r := g.run(s, "migrated_users=1 deferred_users=1 moved_rows=2500 deleted_rows=3")
	if !r.OverLimit || !strings.Contains(r.Reason, "1 users deferred") {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.want("main", `SELECT string_agg(note, ',') FROM notes WHERE author_id = 10`, "n1234")
	g.want("main", `SELECT user_id FROM timelogs`, "5")
	g.wantGone(11)
	g.wantLater(10, 30*time.Second)
	release()
	g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	g.run(s, "migrated_users=1 moved_rows=1 deleted_rows=2")
	g.wantGone(10)
}

func TestGhostUserMigration_ALockReleasedSoonIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	release := g.hold(`SELECT FROM issues FOR UPDATE`)
	s := g.service()
	r := g.begin(s)
	g.eventually("main", `SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		OR NOT granted AND locktype = 'transactionid'`, "1")
	release()
	r = ended(t, s, r.ID)
	if r.Counts["deferred_users"]+r.Counts["migrated_users"] != 1 {
		t.Errorf("counts %v", r.Counts)
	}
}

func TestGhostUserMigration_RowsThatAreReferredToCanBeMoved(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	g.hold(`SELECT FROM issues FOR KEY SHARE`)
	g.run(g.service(), "migrated_users=1 moved_rows=1 deleted_rows=2")
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
	g.run(g.service(), "migrated_users=1 deferred_users=1 moved_rows=1 deleted_rows=4")
	g.wantLater(10, 30*time.Second)
}
