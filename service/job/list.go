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

// Job is a deferred job in the queue.
type Job = jobqueue.QueuedJob

// DuplicateJobError means that another job for the same target is already waiting or running.
type DuplicateJobError = jobqueue.DuplicateJobError

// Filter selects jobs.
type Filter struct {
	// Kind and State are names. "" means all.
	Kind, State string
	// Since and Until bound the time of queueing. Zero means no bound.
	Since, Until time.Time
	// After is the id of the last job of the previous page. 0 means the first page.
	After int64
	// Limit is the maximum number of jobs to return.
	Limit int
}

// States returns the states of a job. River has one more, pending, which caretaker does not use.
func States() []string {
	return []string{
		jobqueue.JobAvailable, jobqueue.JobScheduled, jobqueue.JobRetryable, jobqueue.JobRunning, jobqueue.JobCompleted, jobqueue.JobCancelled,
		jobqueue.JobDiscarded,
	}
}

// Jobs lists deferred jobs, newest first. Errors: [*fault.InvalidArgumentError],
// [fault.ErrUnreachable].
func (p *Pool) Jobs(ctx context.Context, f Filter) ([]Job, error) {
	if err := oneOf("kind", f.Kind, p.JobKinds()); err != nil {
		return nil, err
	}
	if err := oneOf("state", f.State, States()); err != nil && f.State != jobqueue.JobPending {
		return nil, err
	}
	return p.Main.Jobs.ListJobs(ctx, jobqueue.List(f))
}

// oneOf returns an InvalidArgumentError unless value is empty or allowed.
func oneOf(field, value string, allowed []string) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return &fault.InvalidArgumentError{Field: field, Description: fmt.Sprintf("%q is not one of "+
		"%s: omit the filter to list all jobs", value, strings.Join(allowed, ", "))}
}

// RetryJob makes a job run now, with one more attempt if it has used up its own. The job checks
// everything again. A running or due job does not change.
//
// Errors: [fault.ErrUnknownJob], [*fault.InvalidArgumentError], [*DuplicateJobError],
// [fault.ErrUnreachable].
func (p *Pool) RetryJob(ctx context.Context, id int64) (Job, error) {
	if id <= 0 {
		return Job{}, errNoJobID()
	}
	job, err := p.Main.Jobs.RetryJob(ctx, id)
	return job, unknownJob(id, err)
}

// CancelJob stops a job permanently. A waiting job never starts, and a running one stops after its
// current statement. An ended one does not change. RetryJob undoes it. Errors: those of RetryJob
// except [*DuplicateJobError].
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

// errNoJobID returns the error of a request without a valid job id.
func errNoJobID() error {
	return &fault.InvalidArgumentError{
		Field: "id", Description: "must be a positive number: find the job ID in the list of jobs",
	}
}

// unknownJob returns [fault.ErrUnknownJob] if the job was not found.
func unknownJob(id int64, err error) error {
	if errors.Is(err, dberr.ErrNotFound) {
		name := strconv.FormatInt(id, 10)
		return fault.Unknown(fault.ErrUnknownJob, "job_id", name, "job "+name+" not found: find its ID in the list of jobs")
	}
	return err
}
