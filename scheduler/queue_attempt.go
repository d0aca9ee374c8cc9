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

// arguments stand for those of any kind: package service decodes them.
type arguments struct{ kind string }

// Kind of the job.
func (a arguments) Kind() string { return a.kind }

// worker is River's: it lets package service work the jobs.
type worker struct {
	river.WorkerDefaults[arguments]
	service  jobWorker
	database *repo.Database
	stopping <-chan struct{}
	// postponed gets word when a job is to be worked again.
	postponed chan<- struct{}
}

// jobMetadata is what an attempt reads of its job's metadata.
type jobMetadata struct {
	RunID       string `json:"run_id"`
	TraceParent string `json:"traceparent"`
	RequestedBy string `json:"requested_by"`
	// Worked is how long attempts took together.
	Worked int64 `json:"worked_ms"`
}

// Work does one attempt.
func (w *worker) Work(ctx context.Context, j *river.Job[arguments]) error {
	ctx = context.WithValue(ctx, attempt{}, j.JobRow)
	var m jobMetadata
	_ = json.Unmarshal(j.Metadata, &m) // what is missing is empty
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
	// Also of an attempt that failed: that is when somebody looks for its trace.
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

// lost returns how an attempt ends that must not end its job, as another attempt has that by now:
// River would store the end all the same. It returns nil for an end that does no harm: success, as
// the work is done then, and those after which the job is tried again.
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

// end returns what tells River how an attempt has ended.
func (w *worker) end(
	ctx context.Context, j *river.Job[arguments], result job.Result, err error,
) error {
	switch {
	case err != nil && interrupted(ctx):
		// River puts it back without using up the attempt.
		return context.Cause(ctx)
	case err != nil && j.Attempt >= j.MaxAttempts:
		return errors.Join(job.PublicError(err), record(ctx, job.Discarded, result.Reason))
	case err != nil:
		return errors.Join(job.PublicError(err), record(ctx, job.Failed, result.Reason))
	case result.Snooze > 0 && result.Snooze <= job.SliceSnooze && w.isStopping():
		// Another server can go on at once.
		return river.JobSnooze(0)
	case result.Snooze > 0:
		return river.JobSnooze(result.Snooze)
	}
	// River completes the job. It changes nothing where CompleteJob has done so.
	err = errors.Join(record(ctx, result.Outcome, result.Reason),
		setMetadata(ctx, processedByKey, result.TraceParent))
	if err == nil && (result.Outcome == job.Refused || result.Outcome == job.Cancelled) {
		return &refusedError{strings.TrimSuffix(result.Reason+": "+result.Message, ": ")}
	}
	return err
}

func (w *worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// interrupted reports whether an attempt was cancelled for another reason than its timeout.
func interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// workedKey is the key, in a job's metadata, of how many milliseconds its attempts took together.
const workedKey = "worked_ms"

// record stores the outcome and its reason with the job.
func record(ctx context.Context, outcome, reason string) error {
	return errors.Join(
		river.MetadataSet(ctx, outcomeKey, outcome), river.MetadataSet(ctx, reasonKey, reason))
}

// setMetadata stores a value with the job, unless it is empty.
func setMetadata(ctx context.Context, key, value string) error {
	if value == "" {
		return nil
	}
	if err := river.MetadataSet(ctx, key, value); err != nil {
		return fmt.Errorf("store %s of a job: %w", key, err)
	}
	return nil
}

// refusedError cancels a job: it is not tried again.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// Unwrap returns the error by which River cancels the job.
func (e *refusedError) Unwrap() error { return river.JobCancel(nil) }

// retries is when a failed job is tried again: n⁴ seconds ± 10 % after attempt n began, or at once
// if that time has passed.
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
