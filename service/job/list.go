package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Job is a deferred job as it stands in the queue.
type Job = jobqueue.QueuedJob

// DuplicateJobError says that another job for the same waits or runs already.
type DuplicateJobError = jobqueue.DuplicateJobError

// Filter selects jobs.
type Filter struct {
	// Kind and State are names; "": all.
	Kind, State string
	// Since and Until bound when they were queued; zero: no bound.
	Since, Until time.Time
	// After is the id of the last job of the page before; 0: the first page.
	After int64
	// Limit is the most jobs to return.
	Limit int
}

// States are the states that a job can be in. River has one more, pending, which nothing here uses.
func States() []string {
	return []string{
		jobqueue.JobAvailable, jobqueue.JobScheduled, jobqueue.JobRetryable, jobqueue.JobRunning, jobqueue.JobCompleted, jobqueue.JobCancelled,
		jobqueue.JobDiscarded,
	}
}

// Jobs lists deferred jobs, the newest first. Errors: [*fault.InvalidArgumentError],
// [fault.ErrUnreachable].
func (p *Pool) Jobs(ctx context.Context, f Filter) ([]Job, error) {
	if err := oneOf("kind", f.Kind, p.JobKinds()); err != nil {
		return nil, err
	}
	if err := oneOf("state", f.State, States()); err != nil && f.State != jobqueue.JobPending {
		return nil, err
	}
	return p.Main.Jobs.ListJobs(ctx, jobqueue.JobList(f))
}

func oneOf(field, value string, allowed []string) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return &fault.InvalidArgumentError{Field: field, Description: fmt.Sprintf("%q is none of %s: leave it empty for all", value, strings.Join(allowed, ", "))}
}

// RetryJob lets a job be worked now, with one more attempt if it has used up its own; whatever it did before, it checks
// everything again. A job at work, or due, stays as it is.
//
// Errors: [fault.ErrUnknownJob], [*fault.InvalidArgumentError], [*DuplicateJobError], [fault.ErrUnreachable].
func (p *Pool) RetryJob(ctx context.Context, id int64) (Job, error) {
	if id <= 0 {
		return Job{}, errNoJobID()
	}
	job, err := p.Main.Jobs.RetryJob(ctx, id)
	return job, unknownJob(id, err)
}

// CancelJob stops a job for good: one that waits never starts, one at work stops after the statement in flight. One that
// has ended stays as it is, and RetryJob undoes it. Errors: those of RetryJob but for [*DuplicateJobError].
func (p *Pool) CancelJob(ctx context.Context, id int64, reason, by string) (Job, error) {
	reason, by = strings.TrimSpace(reason), run.TruncateActor(strings.TrimSpace(by))
	if err := run.CheckReason(reason); err != nil {
		return Job{}, err
	}
	if id <= 0 {
		return Job{}, errNoJobID()
	}
	job, err := p.Main.Jobs.CancelJob(ctx, id, reason, by)
	if err == nil && job.Cancellation != nil {
		p.Logger.InfoContext(ctx, "job cancelled", "kind", job.Kind, "job_id", id, "by", by, "reason", reason)
	}
	return job, unknownJob(id, err)
}

func errNoJobID() error {
	return &fault.InvalidArgumentError{
		Field: "id", Description: "is required, a positive number: ListJobs lists the ids",
	}
}

// unknownJob is [fault.ErrUnknownJob] if the job has not been found.
func unknownJob(id int64, err error) error {
	if errors.Is(err, dberr.ErrNotFound) {
		name := strconv.FormatInt(id, 10)
		return fault.Unknown(fault.ErrUnknownJob, "job_id", name, "job "+name+" not found: ListJobs lists the jobs")
	}
	return err
}
