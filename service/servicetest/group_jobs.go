package servicetest

import (
	"fmt"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// QueueJob queues the removal of a group by U, or by no user (0).
func (g *Groups) QueueJob(group, user int) {
	g.T.Helper()
	args := jobqueue.DestroyGroup{GroupID: int64(group)}
	if user != 0 {
		args.UserID = new(int64(user))
	}
	if n := g.Insert(jobqueue.Job{Args: args}); n != 1 {
		g.T.Fatalf("%d jobs inserted, want 1", n)
	}
}

// Attempt does one attempt of every waiting removal of a group, and fails the test unless the last job stands so:
// "state outcome reason". A job that is due again in a moment counts as retryable.
func (g *Groups) Attempt(want string) {
	g.T.Helper()
	if g.Work(g.Service, "destroy_group") == 0 {
		g.T.Fatal("no job is queued")
	}
	g.WantJob(want)
}

// Attempts is attempt for a job that may snooze, on a slow machine, before it ends.
func (g *Groups) Attempts(want string) {
	g.T.Helper()
	for worked := 1; worked > 0; {
		worked = g.Work(g.Service, "destroy_group")
	}
	g.WantJob(want)
}

// WantJob fails the test unless the last removal of a group stands so: "state outcome reason".
func (g *Groups) WantJob(want string) {
	g.T.Helper()
	g.Want("main", `SELECT concat_ws(' ', CASE state WHEN 'available' THEN 'retryable' ELSE state::text END, metadata ->> 'outcome', nullif(metadata ->> 'reason', ''))
		FROM maintenance.river_job WHERE kind = 'destroy_group' ORDER BY id DESC LIMIT 1`, want)
}

// Content fills a project with an issue, a merge request, their notes and emoji, and what else hangs on them, all by U.
func (g *Groups) Content(project int) {
	g.T.Helper()
	n := int64(project)
	for _, sql := range []string{
		`INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES ($1, 'i', 1, $1, 10000 + $1::bigint, 1)`,
		`INSERT INTO merge_requests (id, title, target_branch, source_branch, target_project_id, source_project_id, author_id, iid) VALUES ($1, 'm', 'a', 'b', $1, $1, 1, 1)`,
		`INSERT INTO notes (id, note, noteable_type, noteable_id, author_id, project_id) VALUES (1000 + 2 * $1::bigint, 'n', 'Issue', $1, 1, $1), (1001 + 2 * $1::bigint, 'n', 'MergeRequest', $1, 1, $1)`,
		`INSERT INTO award_emoji (name, user_id, awardable_type, awardable_id) VALUES ('x', 1, 'Note', 1000 + 2 * $1::bigint), ('x', 1, 'Issue', $1), ('x', 1, 'MergeRequest', $1)`,
		`INSERT INTO subscriptions (user_id, subscribable_type, subscribable_id, project_id) VALUES (1, 'Issue', $1, NULL), (1, 'MergeRequest', $1, $1)`,
		`INSERT INTO todos (user_id, author_id, project_id, target_type, target_id, note_id, action, state) VALUES (1, 1, $1, 'Issue', $1, 1000 + 2 * $1::bigint, 1, 'pending')`,
		`INSERT INTO events (author_id, action, target_type, target_id, project_id, created_at, updated_at) VALUES (1, 1, 'Issue', $1, $1, now(), now())`,
		`INSERT INTO issue_assignees (user_id, issue_id, namespace_id) VALUES (1, $1, 10000 + $1::bigint)`,
		`INSERT INTO merge_request_metrics (merge_request_id, target_project_id, created_at, updated_at) VALUES ($1, $1, now(), now())`,
		`INSERT INTO approvals (merge_request_id, user_id, project_id) VALUES ($1, 1, $1)`,
		`INSERT INTO reviews (id, merge_request_id, project_id, created_at) VALUES ($1, $1, $1, now())`,
		`INSERT INTO snippets (id, author_id, project_id, type) VALUES ($1, 1, $1, 'ProjectSnippet')`,
		`INSERT INTO snippet_repositories (snippet_id, disk_path) VALUES ($1::bigint, '@snippets/' || $1::bigint)`,
		`INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id) VALUES ('n', 'Snippet', $1, 1, $1)`,
		`INSERT INTO releases (project_id, released_at, created_at, updated_at) VALUES ($1, now(), now(), now())`,
		`INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (1, $1, 50)`,
		`INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id) VALUES ('Project', $1, 'ProjectMember', 1, 50, 10000 + $1::bigint)`,
		`INSERT INTO redirect_routes (source_type, source_id, path, namespace_id, created_at, updated_at) VALUES ('Project', $1::bigint, 'old/' || $1::bigint, 10000 + $1::bigint, now(), now())`,
	} {
		g.Exec("main", sql, n)
	}
}

// GroupContent fills a group with what hangs on groups.
func (g *Groups) GroupContent(group int) {
	g.T.Helper()
	n := int64(group)
	for _, sql := range []string{
		`INSERT INTO epics (group_id, iid, title, author_id) VALUES ($1, 1, 'e', 1)`,
		`INSERT INTO issues (id, title, author_id, namespace_id, iid) VALUES (1000 + $1::bigint, 'work item', 1, $1, 1)`,
		`INSERT INTO boards (group_id, created_at, updated_at) VALUES ($1, now(), now())`,
		`INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id) VALUES ('Namespace', $1, 'GroupMember', 1, 30, $1)`,
		`INSERT INTO events (author_id, action, group_id, created_at, updated_at) VALUES (1, 1, $1, now(), now())`,
		`INSERT INTO todos (user_id, author_id, group_id, target_type, action, state) VALUES (1, 1, $1, 'Commit', 1, 'pending')`,
		`INSERT INTO achievements (namespace_id, name, created_at, updated_at) VALUES ($1, 'a', now(), now())`,
	} {
		g.Exec("main", sql, n)
	}
}

// WantRows fails the test unless tables have so many rows: "issues=1 notes=2".
func (g *Groups) WantRows(counts map[string]int) {
	g.T.Helper()
	for table, n := range counts {
		g.Want("main", `SELECT count(*) FROM `+table, fmt.Sprint(n))
	}
}

// WantBots fails the test unless jobs for these bots wait, "bot by actor".
func (g *Groups) WantBots(want string) {
	g.T.Helper()
	g.Want("main", `SELECT coalesce(string_agg(format('%s by %s', args ->> 'user_id', args ->> 'deleted_by_id'), ', ' ORDER BY (args ->> 'user_id')::bigint), '')
		FROM maintenance.river_job WHERE kind = 'delete_user' AND args @> '{"skip_authorization": true, "reason": "Group was deleted"}'`, want)
}
