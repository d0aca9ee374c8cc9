package deletion

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// deleteUserLimits bound each statement of the job: it may wait for a user's row, and no statement
// deletes more than 1,000 rows.
func deleteUserLimits() fencing.Limits {
	return fencing.Limits{
		Statement: 10 * time.Second, Lock: 5 * time.Second, Transaction: job.TransactionTime,
	}
}

// userDeletion is the job delete_user: it blocks a user, deletes the memberships and queues the
// user for the ghost migration. The users row stays.
//
// One attempt:
//
//  1. One transaction checks the user again. It refuses a user whom the rules forbid to delete,
//     with a warning, without a change and without a retry. Else the user is blocked, loses all
//     memberships, is queued, and the job is done.
//  2. A user with personal projects is only blocked, and the start of the removal is recorded. The
//     projects are removed in bounded steps, in any number of attempts. Then the transaction of 1
//     runs again, without checks.
//
// Invariants: all decisions come before any deletion. A started removal is only finished, by this
// job or any other one for the same user. While that is impossible, it fails and is retried. A
// second execution finds everything done.
type userDeletion struct {
	run.Deps
	schema  *UserSchema
	removal *Projects
}

// work deletes the user of a job. If the user still has personal projects, it removes them and
// tries again. An error that only delays the removal of a project postpones the job.
func (u *userDeletion) work(ctx context.Context, j *job.Attempt) (job.Result, error) {
	args, err := job.Decode[jobqueue.DeleteUser](j)
	if err != nil {
		return job.Result{}, err
	}
	features, err := u.features(ctx, args)
	if err != nil {
		return job.Result{}, err
	}
	permit := fencing.Permit{Guard: j.Guard(), Limits: deleteUserLimits(), Source: j.Source()}
	attempt := gitlab.UserDeletionAttempt{JobID: j.ID, Args: args, Features: features, Queue: u.Queue}
	for {
		deletion, err := u.Main.Users.DeleteUser(ctx, permit, attempt)
		if err != nil {
			return job.Result{}, err
		}
		if len(deletion.Projects) == 0 {
			return deletionResult(args, deletion)
		}
		if err := u.removePersonalProjects(ctx, j, args, deletion.Projects); err != nil {
			return j.Postpone(job.Result{Attributes: []any{"user_id", args.UserID}}, err)
		}
	}
}

// features checks the tables, and fails if one that this job needs is missing.
func (u *userDeletion) features(
	ctx context.Context, args jobqueue.DeleteUser,
) (gitlab.UserFeatures, error) {
	features, err := u.schema.Read(ctx)
	if err != nil {
		return features, err
	}
	missing := features.Missing
	if args.Reason == jobqueue.TokenDeletionReason {
		missing = cmp.Or(missing, features.MissingTokens)
	}
	if missing != "" {
		return features, &fault.FailedError{Text: missing}
	}
	return features, nil
}

// removePersonalProjects removes projects, as many as the time of the attempt allows.
func (u *userDeletion) removePersonalProjects(
	ctx context.Context, j *job.Attempt, args jobqueue.DeleteUser, projects []int64,
) error {
	for _, id := range projects {
		// Negative, because the ids of groups are keys of the same locks.
		p := projectRemoval{id: id, actor: args.DeletedByID, lock: -args.UserID}
		if err := u.removal.removeProject(ctx, j, p); err != nil {
			return err
		}
	}
	return nil
}

// deletionResult returns the end of the job.
func deletionResult(args jobqueue.DeleteUser, d gitlab.UserDeletion) (job.Result, error) {
	r := job.Result{Outcome: job.Succeeded}
	r.Attributes = []any{"user_id", args.UserID, "deletion_reason", args.Reason}
	switch {
	case d.Setting.Invalid != "":
		return job.Result{}, InvalidSetting(d.Setting)
	case d.Skipped != "":
		r.Outcome, r.Reason, r.LogAtDebug = job.Skipped, d.Skipped, d.Skipped == reasons.TargetGone
	case d.Refused != "":
		r.Outcome, r.Reason, r.Message = job.Refused, d.Refused, refusalText(d)
	default:
		r.Attributes = append(r.Attributes, "memberships", d.Memberships,
			"authorizations", d.Authorizations, "ghost_migration_queued", d.Queued)
	}
	if len(d.Groups) > 0 {
		r.Attributes = append(r.Attributes, "groups", d.Groups)
	}
	if len(d.Organizations) > 0 {
		r.Attributes = append(r.Attributes, "organizations", d.Organizations)
	}
	return r, nil
}

// idList returns ids separated by commas.
func idList(ids []int64) string {
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(ids), "[]")), ", ")
}

// refusalText returns why the job refuses: the protection of a user, or the first ten groups or
// organizations that only the user owns.
func refusalText(d gitlab.UserDeletion) string {
	switch {
	case d.Protection != nil:
		return d.Protection.String()
	case d.Refused == reasons.InternalUser:
		return "users of this type are system accounts and are not deleted"
	case d.Refused == reasons.NotAuthorized:
		return "the requester is neither the user nor an active administrator"
	case len(d.Groups) > 0:
		return fmt.Sprintf("groups %s have no other owner: add another owner", idList(d.Groups))
	case len(d.Organizations) > 0:
		return fmt.Sprintf("organizations %s have no other owner: add another "+
			"owner", idList(d.Organizations))
	}
	return ""
}

// ownerAmong returns a function that finds the worker that caused a deletion. The reason of the job
// names it, whichever job has queued it.
func ownerAmong(workers []*run.Worker) func(json.RawMessage) string {
	return func(raw json.RawMessage) string {
		var args jobqueue.DeleteUser
		if json.Unmarshal(raw, &args) != nil || args.Reason == "" {
			return ""
		}
		i := slices.IndexFunc(workers, func(w *run.Worker) bool { return w.JobReason == args.Reason })
		if i < 0 {
			return ""
		}
		return workers[i].Name
	}
}

// GroupDeletedReason is the reason of the jobs that remove the bots of removed groups and projects.
const GroupDeletedReason = "Group was deleted"

// InvalidSetting returns the failure of a run or job with an invalid setting of the application.
func InvalidSetting(s gitlab.TokenSetting) error {
	return &fault.FailedError{Text: s.Invalid, Reason: fault.ReasonSettingInvalid, Redacted: s.Redacted}
}

// New returns the job delete_user, which several of these workers queue.
func New(d run.Deps, workers []*run.Worker) job.Kind {
	u := &userDeletion{d, NewUserSchema(d), NewProjectRemovals(d)}
	return job.Kind{
		Name: jobqueue.DeleteUser{}.Kind(), Work: u.work, Plan: u.plan, Owner: ownerAmong(workers),
		Uses: run.InMain(slices.Concat(gitlab.UserUses(), RemovalUses())),
		Traced: []string{
			"memberships", "authorizations", "groups", "organizations", "ghost_migration_queued",
		},
	}
}
