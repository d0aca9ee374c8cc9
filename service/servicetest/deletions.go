package servicetest

import (
	"testing"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
)

// Authorized deletes a user without asking who requests it.
func Authorized(user int64) jobqueue.DeleteUser {
	return jobqueue.DeleteUser{UserID: user, SkipAuthorization: true, Reason: "Group was deleted"}
}

// InactiveBot deletes bot 7 as inactive_token_deletion does.
func InactiveBot() jobqueue.DeleteUser {
	return jobqueue.DeleteUser{UserID: 7, DeletedByID: new(int64(101)), SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason}
}

// NewestDeletion is how the newest job delete_user stands: state, outcome and reason.
const NewestDeletion = `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) FROM maintenance.river_job WHERE kind = 'delete_user' ORDER BY id DESC LIMIT 1`

// Deletion works one job delete_user and returns how it ended: state, outcome and reason.
func (e *Estate) Deletion(s *service.Service, args jobqueue.DeleteUser) string {
	e.T.Helper()
	if n := e.Insert(jobqueue.Job{Args: args}); n != 1 {
		e.T.Fatalf("%d jobs inserted, want 1", n)
	}
	return e.DeletionAgain(s)
}

// DeletionAgain works the one job delete_user that waits, as [Estate.Deletion] does.
func (e *Estate) DeletionAgain(s *service.Service) string {
	e.T.Helper()
	if n := e.Work(s, "delete_user"); n != 1 {
		e.T.Fatalf("%d jobs processed, want 1", n)
	}
	return e.Value("main", NewestDeletion)
}

// WantDeletion fails the test unless a job delete_user stands so.
func WantDeletion(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("job is %q, want %q", got, want)
	}
}

// DeletionDone is a job that did what it was to do.
const DeletionDone = "completed succeeded"

// DeletionSkipped is what a job that had nothing to do reports before the reason.
const DeletionSkipped = "completed skipped "

// DeletionRefused is what a job that cannot do it reports before the reason.
const DeletionRefused = "cancelled refused "

// DeletionFailed is what a job reports that will be retried: the first retry comes soon.
const DeletionFailed = "available failed"
