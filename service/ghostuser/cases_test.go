package ghostuser_test

import (
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_AssigneesAndReviewersGoAndWhatTheyWorkedOnStays(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issue_assignees (user_id, issue_id, namespace_id) VALUES (10, 1, 101), (7, 1, 101);
		INSERT INTO merge_request_assignees (user_id, merge_request_id, project_id) VALUES (10, 1, 1), (7, 1, 1);
		INSERT INTO merge_request_reviewers (user_id, merge_request_id, project_id, created_at) VALUES (10, 1, 1, now())`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=7")
	g.Want("main", `SELECT (SELECT string_agg(user_id::text, ',') FROM issue_assignees) || ' ' || (SELECT string_agg(user_id::text, ',') FROM merge_request_assignees)
		|| ' ' || (SELECT count(*) FROM merge_request_reviewers) || ' ' || (SELECT count(*) FROM issues) || ' ' || (SELECT count(*) FROM merge_requests)`, "7 7 0 1 1")
}

func TestGhostUserMigration_HardDeleteTakesWhatTheUserWroteAndLeavesWhatOthersDid(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = true; UPDATE issues SET last_edited_by_id = 10; UPDATE merge_requests SET merge_user_id = 10;
		INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2);
		INSERT INTO merge_requests (id, target_branch, source_branch, source_project_id, target_project_id, author_id, iid) VALUES (2, 'a', 'c', 1, 1, 10, 2);
		INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES (1, 'Issue', 1, 10, 1), (2, 'Issue', 2, 7, 1), (3, 'Issue', 1, 7, 1);
		INSERT INTO award_emoji (id, name, user_id, awardable_id, awardable_type) VALUES (1, 'x', 10, 1, 'Issue'), (2, 'x', 7, 1, 'Note'), (3, 'x', 7, 3, 'Note')`)
	g.Run(g.Service(), "migrated_users=1 nullified_rows=2 deleted_rows=10")
	for table, want := range map[string]string{"issues": "1", "merge_requests": "1", "notes": "3", "award_emoji": "3"} {
		g.Want("main", `SELECT string_agg(id::text, ',') FROM `+table, want)
	}
	g.Want("main", `SELECT coalesce(i.last_edited_by_id, m.merge_user_id) FROM issues i, merge_requests m`, "NULL")
}

func TestGhostUserMigration_WhatTheUserHasMadeOfItselfGoesWithIt(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `UPDATE users SET created_by_id = 10 WHERE id = 10; INSERT INTO members (source_type, source_id, type, user_id, access_level, created_by_id, member_namespace_id)
		VALUES ('Namespace', 10, 'GroupMember', 10, 50, 10, 10), ('Namespace', 10, 'GroupMember', 7, 50, 10, 10);
		INSERT INTO namespace_details (namespace_id, creator_id) VALUES (10, 10) ON CONFLICT (namespace_id) DO UPDATE SET creator_id = 10`)
	g.Run(g.Service(), "")
	g.WantGone(10)
	g.Want("main", `SELECT (SELECT count(*) FROM members) + (SELECT count(*) FROM namespace_details WHERE namespace_id = 10)`, "0")
}

func TestGhostUserMigration_ADryRunCreatesNoGhostAndChangesNothing(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10, closed_by_id = 10; INSERT INTO emails (user_id, email) VALUES (10, 'x')`)
	tables := []string{"users", "namespaces", "routes", "issues", "emails", "ghost_user_migrations", "maintenance.leases"}
	before := g.State("main", tables...)
	s := g.Service()
	dry := g.Runs(s, true)
	servicetest.WantState(t, dry, repo.RunSucceeded)
	servicetest.WantCounts(t, dry, "migrated_users=1 moved_rows=1 nullified_rows=1 deleted_rows=5")
	g.WantSame("main", before, tables...)
	g.Run(s, "migrated_users=1 moved_rows=1 nullified_rows=1 deleted_rows=5")
}

func TestGhostUserMigration_ATenthOfTheUsersMayFailWithoutAWarning(t *testing.T) {
	t.Parallel()
	for humans, warnings := range map[int]int{9: 0, 8: 1} {
		t.Run(fmt.Sprint(humans), func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.User(9, 1)
			g.Queue(9)
			for i := range humans {
				g.Doomed(10 + i)
			}
			g.Run(g.Service(), fmt.Sprintf("failed_users=1 migrated_users=%d deleted_rows=%d", humans, 4*humans))
			g.WantLog(warnings, `"level":"WARN"`, "many users failed")
		})
	}
}
