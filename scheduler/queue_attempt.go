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
	"github.com/caretaker-go/caretaker/service"
)

// arguments stand for those of any kind: package service decodes them.
type arguments struct{ kind string }

// Kind of the job.
func (a arguments) Kind() string { return a.kind }

// worker hands River's jobs to package service.
type worker struct {
	river.WorkerDefaults[arguments]
	service  JobWorker
	database *repo.Database
	stopping <-chan struct{}
}

// jobMetadata is what an attempt reads of its job's metadata.
type jobMetadata struct {
	RunID       string `json:"run_id"`
	TraceParent string `json:"traceparent"`
	// Snoozes and Rescues are counted by River, Reported are the rescues that an attempt has reported.
	Snoozes  int `json:"snoozes"`
	Rescues  int `json:"river:rescue_count"`
	Reported int `json:"rescues_reported"`
}

// Work does one attempt.
func (w *worker) Work(ctx context.Context, job *river.Job[arguments]) error {
	ctx = context.WithValue(ctx, attempt{}, job.JobRow)
	var m jobMetadata
	_ = json.Unmarshal(job.Metadata, &m) // what is missing is empty
	request := service.JobRequest{
		ID: job.ID, Kind: job.Kind, Args: job.EncodedArgs, QueuedAt: job.CreatedAt,
		Name: attemptName(job.JobRow, m, 0), Attempt: job.Attempt, MaxAttempts: job.MaxAttempts,
		AttemptedAt: *job.AttemptedAt, RunID: m.RunID, TraceParent: m.TraceParent, Stopping: w.stopping,
	}
	if m.Rescues > m.Reported {
		request.Lost = lostAttempt(job.JobRow, m)
	}
	result, err := w.service.WorkJob(ctx, request)
	if w.lost(ctx, job.JobRow) {
		// What another attempt says of the job stays.
		return service.PublicJobError(repo.ErrJobLost)
	}
	if request.Lost != nil {
		err = errors.Join(err, recordLost(ctx, m.Rescues))
	}
	if kept := recordTrace(ctx, result.TraceID); err == nil {
		err = kept
	}
	return w.end(ctx, job, result, err)
}

// lost says that the job has meanwhile been given to another attempt: River would write the end of this one into the job
// all the same.
func (w *worker) lost(ctx context.Context, row *rivertype.JobRow) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkPatience)
	defer cancel()
	err := w.database.CheckAttempt(ctx, repo.AttemptOf{ID: row.ID, AttemptedAt: *row.AttemptedAt})
	return errors.Is(err, repo.ErrJobLost)
}

// end is what River is told of an attempt that has ended.
func (w *worker) end(
	ctx context.Context, job *river.Job[arguments], result service.JobResult, err error,
) error {
	switch {
	case err != nil && interrupted(ctx):
		// River puts it back without using up the attempt.
		return context.Cause(ctx)
	case err != nil && job.Attempt >= job.MaxAttempts:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobDiscarded, result.Reason))
	case err != nil:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobFailed, result.Reason))
	case result.Snooze > 0 && result.Snooze <= sliceSnooze && w.isStopping():
		// Somebody else can go on at once.
		return river.JobSnooze(0)
	case result.Snooze > 0:
		return river.JobSnooze(result.Snooze)
	}
	err = errors.Join(record(ctx, result.Outcome, result.Reason), recordSpan(ctx, result.TraceParent))
	if err == nil && result.Outcome == service.JobRefused {
		return &refusedError{strings.TrimSuffix(result.Reason+": "+result.Words, ": ")}
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

// interrupted says that an attempt ends because it was told to, not because it took too long.
func interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// reportedKey of a job's metadata is how many of its rescues have been reported.
const reportedKey = "rescues_reported"

// recordLost keeps with the job, until the attempt says otherwise, how the one before has ended, and that it has been
// reported.
func recordLost(ctx context.Context, rescues int) error {
	return errors.Join(
		record(ctx, service.JobFailed, repo.ReasonProcessGone), river.MetadataSet(ctx, reportedKey, rescues))
}

// attemptName names an attempt, or the one so many fetches before: by the process that worked it, which works a job
// again only when its number or its count of snoozes has grown.
func attemptName(row *rivertype.JobRow, m jobMetadata, before int) string {
	client := ""
	if n := len(row.AttemptedBy) - before; n > 0 {
		client = row.AttemptedBy[n-1]
	}
	return fmt.Sprintf("%d %d %d %s", row.ID, row.Attempt-before, m.Snoozes, client)
}

// lostAttempt is the one before, which River has taken for dead.
func lostAttempt(row *rivertype.JobRow, m jobMetadata) *service.LostAttempt {
	lost := &service.LostAttempt{Name: attemptName(row, m, 1)}
	if n := len(row.Errors); n > 0 {
		lost.RescuedAt = row.Errors[n-1].At
		lost.Began = lost.RescuedAt.Add(-rescueAfter)
	}
	return lost
}

// record keeps the outcome and its reason with the job.
func record(ctx context.Context, outcome, reason string) error {
	return errors.Join(river.MetadataSet(ctx, outcomeKey, outcome), river.MetadataSet(ctx, reasonKey, reason))
}

// refusedError cancels a job: nothing is tried again.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// Unwrap tells River.
func (e *refusedError) Unwrap() error { return river.JobCancel(nil) }

// retries is when a failed job is tried again: n⁴ seconds ± 10 % after attempt n began. That is at once for one whose
// attempt lasted longer, or was taken for dead only then.
type retries struct{}

// NextRetry is asked by River.
func (retries) NextRetry(job *rivertype.JobRow) time.Time {
	n := float64(job.Attempt)
	wait := time.Duration(n * n * n * n * (0.9 + 0.2*rand.Float64()) * float64(time.Second))
	due, now := job.AttemptedAt.Add(wait), time.Now()
	if due.Before(now) {
		return now
	}
	return due
}
