package service_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// group makes a group below another one, 0 for none.
func (e *estate) group(id, parent int) {
	e.t.Helper()
	e.exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id, traversal_ids)
		VALUES ($1, 'g' || $1::bigint, 'g' || $1::bigint, 'Group', nullif($2::bigint, 0), 1,
		coalesce((SELECT traversal_ids FROM namespaces WHERE id = $2), '{}') || $1::bigint)`, id, parent)
}

// member makes a direct member of group 50.
func (e *estate) member(user, level int) {
	e.t.Helper()
	e.exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		VALUES ($1, 50, 'Namespace', 'GroupMember', $2, 50)`, user, level)
}

// deletion works one job delete_user and returns how it ended: state, outcome and reason.
func (e *estate) deletion(s *service.Service, args repo.DeleteUser) string {
	e.t.Helper()
	if n := e.insert(repo.Job{Args: args}); n != 1 {
		e.t.Fatalf("%d jobs inserted, want 1", n)
	}
	return e.deletionAgain(s)
}

const newestDeletion = `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) FROM maintenance.river_job WHERE kind = 'delete_user' ORDER BY id DESC LIMIT 1`

func (e *estate) deletionAgain(s *service.Service) string {
	e.t.Helper()
	if n := e.work(s, "delete_user"); n != 1 {
		e.t.Fatalf("%d jobs worked, want 1", n)
	}
	return e.value("main", newestDeletion)
}

// authorized deletes a user without asking who wants it.
func authorized(user int64) repo.DeleteUser {
	return repo.DeleteUser{UserID: user, SkipAuthorization: true, Reason: "Group was deleted"}
}

// inactiveBot deletes bot 7 as inactive_token_deletion does.
func inactiveBot() repo.DeleteUser {
	return repo.DeleteUser{UserID: 7, DeletedByID: new(int64(101)), SkipAuthorization: true, Reason: repo.TokenDeletionReason}
}

const (
	done    = "completed succeeded"
	skipped = "completed skipped "
	refused = "cancelled refused "
	// The first retry comes soon.
	failed = "available failed"
)

func wantDeletion(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("job is %q, want %q", got, want)
	}
}

// userRows are a user's rows: state, memberships, authorizations, and the row of the ghost queue.
func (e *estate) userRows(user int) string {
	e.t.Helper()
	return e.value("main", `SELECT concat_ws(' ', (SELECT coalesce(state, 'NULL') FROM users WHERE id = $1),
		(SELECT count(*) FROM members WHERE user_id = $1), (SELECT count(*) FROM project_authorizations WHERE user_id = $1),
		(SELECT concat_ws(',', initiator_user_id, hard_delete, user_type) FROM ghost_user_migrations WHERE user_id = $1))`, user)
}
