package service

import (
	"context"
	"strings"

	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// What there is none of with loose foreign keys only: see [NotInUseError].
const (
	jobs         = "jobs"
	plans        = "plans of deletions"
	protections  = "protections"
	outsidePaths = "paths outside the database"
)

// What callers need of deferred jobs, under the name of the package that they know.
type (
	// Job is a deferred job.
	Job = job.Job
	// JobRequest is an attempt that the queue wants worked.
	JobRequest = job.Request
	// JobResult is how an attempt ended.
	JobResult = job.Result
	// JobFilter selects jobs.
	JobFilter = job.Filter
	// JobCount is how many jobs of a kind are in a state.
	JobCount = job.Count
	// LostAttempt is one whose process died.
	LostAttempt = job.LostAttempt
	// DuplicateJobError says that another job waits that does the same.
	DuplicateJobError = job.DuplicateJobError
)

// Outcomes of jobs.
const (
	JobSucceeded = job.Succeeded
	JobSkipped   = job.Skipped
	JobRefused   = job.Refused
	JobRestored  = job.Restored
	JobCancelled = job.Cancelled
	JobFailed    = job.Failed
	JobDiscarded = job.Discarded
)

// SliceSnooze is how long an attempt that could go on at once is postponed.
const SliceSnooze = job.SliceSnooze

// PublicJobError is a job's error in words fit for clients and for the queue's table.
func PublicJobError(err error) error { return job.PublicError(err) }

// WorkJob does one attempt of a job. An error is to be retried by the queue.
func (s *Service) WorkJob(ctx context.Context, r JobRequest) (JobResult, error) {
	return s.pool.WorkJob(ctx, r)
}

// JobKinds are the kinds of job that this process can work.
func (s *Service) JobKinds() []string { return s.pool.JobKinds() }

// JobStates are the states that jobs are chosen by.
func (s *Service) JobStates() []string { return job.States() }

// JobCounts are how many jobs there are, by kind and state.
func (s *Service) JobCounts(ctx context.Context) ([]JobCount, error) {
	if err := s.inUse(jobs); err != nil {
		return nil, err
	}
	return s.pool.JobCounts(ctx)
}

// Jobs lists jobs, the newest first.
func (s *Service) Jobs(ctx context.Context, f JobFilter) ([]Job, error) {
	if err := s.inUse(jobs); err != nil {
		return nil, err
	}
	return s.pool.Jobs(ctx, f)
}

// Job is a job by its id. Errors: [ErrUnknownJob], [*InvalidArgumentError].
func (s *Service) Job(ctx context.Context, id int64) (Job, error) {
	if err := s.inUse(jobs); err != nil {
		return Job{}, err
	}
	return s.pool.Job(ctx, id)
}

// JobWorker is the worker that a job is of, "" for one of no worker, or [ErrUnknownJob].
func (s *Service) JobWorker(ctx context.Context, id int64) (string, error) {
	if err := s.inUse(jobs); err != nil {
		return "", err
	}
	return s.pool.JobWorker(ctx, id)
}

// JobsOfRun are up to limit jobs that a run queued, the oldest first.
func (s *Service) JobsOfRun(ctx context.Context, id string, limit int) ([]Job, error) {
	if s.looseForeignKeysOnly {
		return nil, nil
	}
	return s.pool.JobsOfRun(ctx, id, limit)
}

// CancelJob stops a job for good, and returns it as it is now; RetryJob takes that back. by is who asks.
func (s *Service) CancelJob(ctx context.Context, id int64, reason, by string) (Job, error) {
	if err := s.inUse(jobs); err != nil {
		return Job{}, err
	}
	reason, by = strings.TrimSpace(reason), run.TruncateActor(strings.TrimSpace(by))
	if err := checkReason(reason); err != nil {
		return Job{}, err
	}
	cancelled, err := s.pool.CancelJob(ctx, id, reason, by)
	if err == nil && cancelled.Cancellation != nil {
		s.engine.Logger.InfoContext(ctx, "job cancelled", "kind", cancelled.Kind, "job_id", id, "by", by, "reason", reason)
	}
	return cancelled, err
}

// RetryJob lets a job that failed or was given up be worked again at once.
func (s *Service) RetryJob(ctx context.Context, id int64) (Job, error) {
	if err := s.inUse(jobs); err != nil {
		return Job{}, err
	}
	return s.pool.RetryJob(ctx, id)
}
