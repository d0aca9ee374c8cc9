package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/service/job"
)

// arguments represents the arguments of any kind, which package service decodes.
type arguments struct{ kind string }

// Kind returns the kind of the job.
func (a arguments) Kind() string { return a.kind }

// worker is River's worker. It passes the jobs to package service.
type worker struct {
	river.WorkerDefaults[arguments]
	service  jobWorker
	database *repo.Database
	stopping <-chan struct{}
	// postponed receives a value when an attempt postpones its job.
	postponed chan<- struct{}
}

// jobMetadata is the part of a job's metadata that an attempt reads.
type jobMetadata struct {
	RunID       string `json:"run_id"`
	TraceParent string `json:"traceparent"`
	RequestedBy string `json:"requested_by"`
	// Worked is the duration of all attempts in milliseconds.
	Worked int64 `json:"worked_ms"`
}

// Work makes one attempt.
func (w *worker) Work(ctx context.Context, j *river.Job[arguments]) error {
	ctx = context.WithValue(ctx, attempt{}, j.JobRow)
	var m jobMetadata
	_ = json.Unmarshal(j.Metadata, &m) // missing values stay empty
	request := job.Request{
		ID: j.ID, Kind: j.Kind, Args: j.EncodedArgs, QueuedAt: j.CreatedAt,
		Attempt: j.Attempt, MaxAttempts: j.MaxAttempts,
		AttemptedAt: *j.AttemptedAt, RunID: m.RunID, TraceParent: m.TraceParent,
		RequestedBy: m.RequestedBy, Stopping: w.stopping,
		Worked: time.Duration(m.Worked) * time.Millisecond,
	}
	result, err := w.service.WorkJob(ctx, request)
	if lost := w.lost(ctx, j, result, err); lost != nil {
		return lost
	}
	// Failed attempts also store the trace ID, because users need it most after a failure.
	stored := errors.Join(setMetadata(ctx, traceIDKey, result.TraceID),
		river.MetadataSet(ctx, workedKey, m.Worked+result.Took.Milliseconds()))
	if err == nil {
		err = stored
	}
	if err != nil || result.Snooze > 0 {
		select {
		case w.postponed <- struct{}{}:
		default:
		}
	}
	return w.end(ctx, j, result, err)
}

// lost returns the result of an attempt that must not end its job, because another attempt now has
// the job. River would store the end nevertheless. lost returns nil for a harmless end: success,
// because the job is done, and ends that retry the job.
func (w *worker) lost(
	ctx context.Context, j *river.Job[arguments], result job.Result, err error,
) error {
	if interrupted(ctx) || err == nil && (result.Snooze > 0 || result.Outcome == job.Succeeded) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	last := j.Attempt >= j.MaxAttempts
	checked := w.database.Jobs.CheckAttempt(ctx, fencing.AttemptOf{ID: j.ID, AttemptedAt: *j.AttemptedAt})
	switch {
	case checked == nil, err != nil && !last && !errors.Is(checked, dberr.ErrJobLost):
		return nil
	case last:
		// An error would discard the job.
		return river.JobSnooze(0)
	}
	return job.PublicError(checked)
}

// end returns the result with which River records the end of an attempt.
func (w *worker) end(
	ctx context.Context, j *river.Job[arguments], result job.Result, err error,
) error {
	switch {
	case err != nil && interrupted(ctx):
		// River returns the job to the queue without using up the attempt.
		return context.Cause(ctx)
	case err != nil && j.Attempt >= j.MaxAttempts:
		return errors.Join(job.PublicError(err), record(ctx, job.Discarded, result.Reason))
	case err != nil:
		return errors.Join(job.PublicError(err), record(ctx, job.Failed, result.Reason))
	case result.Snooze > 0 && result.Snooze <= job.SliceSnooze && w.isStopping():
		// Another server can resume at once.
		return river.JobSnooze(0)
	case result.Snooze > 0:
		return river.JobSnooze(result.Snooze)
	}
	// River completes the job. This changes nothing if CompleteJob has already completed it.
	err = errors.Join(record(ctx, result.Outcome, result.Reason),
		setMetadata(ctx, processedByKey, result.TraceParent))
	if err == nil && (result.Outcome == job.Refused || result.Outcome == job.Cancelled) {
		return &refusedError{strings.TrimSuffix(result.Reason+": "+result.Message, ": ")}
	}
	return err
}

// isStopping reports whether attempts should snooze because the queue stops. It never blocks.
func (w *worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// interrupted reports whether an attempt was canceled for another reason than its timeout.
func interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// workedKey is the metadata key of the duration of all attempts in milliseconds.
const workedKey = "worked_ms"

// record stores the outcome and its reason with the job.
func record(ctx context.Context, outcome, reason string) error {
	return errors.Join(
		river.MetadataSet(ctx, outcomeKey, outcome), river.MetadataSet(ctx, reasonKey, reason))
}

// setMetadata stores a value with the job unless the value is empty.
func setMetadata(ctx context.Context, key, value string) error {
	if value == "" {
		return nil
	}
	if err := river.MetadataSet(ctx, key, value); err != nil {
		return fmt.Errorf("cannot store %s of a job: %w", key, err)
	}
	return nil
}

// refusedError cancels a job, so that it is not retried.
type refusedError struct{ reason string }

// Error returns the reason and the message of the refusal.
func (e *refusedError) Error() string { return "refused: " + e.reason }

// Unwrap returns the error with which River cancels the job.
func (e *refusedError) Unwrap() error { return river.JobCancel(nil) }

// retries schedules the retry of a failed job n⁴ seconds ± 10 % after the start of attempt n. The
// retry is at once if that time has passed.
type retries struct{}

// NextRetry implements River's retry policy.
func (retries) NextRetry(job *rivertype.JobRow) time.Time {
	n := float64(job.Attempt)
	wait := time.Duration(n * n * n * n * (0.9 + 0.2*rand.Float64()) * float64(time.Second))
	due, now := job.AttemptedAt.Add(wait), time.Now()
	if due.Before(now) {
		return now
	}
	return due
}
