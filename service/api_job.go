package service

import "github.com/caretaker-go/caretaker/service/job"

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
	JobFailed    = job.Failed
	JobDiscarded = job.Discarded
)

// PublicJobError is a job's error in words fit for clients and for the queue's table.
func PublicJobError(err error) error { return job.PublicError(err) }
