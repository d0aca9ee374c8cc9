package placeholder

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// placeholderDeletion is the job delete_placeholder_user. See the package comment.
type placeholderDeletion struct {
	databases []*repo.Database
	queue     jobqueue.Queue
}

// placeholderLimits bound each statement of the job.
func placeholderLimits() fencing.Limits {
	return fencing.Limits{
		Statement: 5 * time.Second, Lock: time.Second, Transaction: job.TransactionTime,
	}
}

// work queues the deletion of a placeholder user and completes the job, in one transaction on
// main. A protected or referenced user is refused. A user that no longer exists, or is no
// placeholder, is skipped.
func (p *placeholderDeletion) work(ctx context.Context, j *job.Attempt) (job.Result, error) {
	args, err := job.Decode[jobqueue.DeletePlaceholderUser](j)
	if err != nil {
		return job.Result{}, err
	}
	permit := fencing.Permit{Guard: j.Guard(), Limits: placeholderLimits()}
	verdict, err := p.databases[0].Placeholders.DeletePlaceholder(ctx, permit, gitlab.PlaceholderAttempt{
		JobID: j.ID, UserID: args.PlaceholderUserID, Others: repo.Kernels(p.databases[1:]),
		Queue: p.queue, Origin: j.Origin(ctx),
	})
	if err != nil {
		return job.Result{}, err
	}
	result := job.Result{
		Outcome: job.Succeeded, Attributes: []any{"placeholder_user_id", args.PlaceholderUserID},
	}
	switch {
	case verdict.Missing != "":
		return job.Result{}, &fault.FailedError{Text: verdict.Missing}
	case verdict.NotFound:
		result.Outcome, result.Reason, result.LogAtDebug = job.Skipped, reasons.TargetGone, true
	case verdict.NotPlaceholder:
		result.Outcome, result.Reason = job.Skipped, reasonNotAPlaceholder
	case verdict.Protection != nil:
		result.Outcome, result.Reason = job.Refused, reasons.Protected
		result.Message = verdict.Protection.String()
	case verdict.Reference != nil:
		by := verdict.Reference
		result.Outcome, result.Reason = job.Refused, fault.ReasonStillReferenced
		result.Message = by.Table + "." + by.Column + " still refers to the user"
		result.Attributes = append(result.Attributes, "table", by.Table, "column", by.Column)
		j.Log.WarnContext(ctx, "Placeholder user is still referenced in other tables",
			result.Attributes...)
	}
	return result, nil
}

// reasonNotAPlaceholder belongs to jobs and plans whose user is of another type.
const reasonNotAPlaceholder = "NOT_A_PLACEHOLDER"
