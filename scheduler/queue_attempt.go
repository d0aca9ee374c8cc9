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
	// River counts Snoozes and Rescues; Reported is how many rescues attempts have reported.
	Snoozes  int `json:"snoozes"`
	Rescues  int `json:"river:rescue_count"`
	Reported int `json:"rescues_reported"`
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
		Name: attemptName(j.JobRow, m, 0), Attempt: j.Attempt, MaxAttempts: j.MaxAttempts,
		AttemptedAt: *j.AttemptedAt, RunID: m.RunID, TraceParent: m.TraceParent,
		RequestedBy: m.RequestedBy, Stopping: w.stopping,
		Worked: time.Duration(m.Worked) * time.Millisecond,
	}
	if m.Rescues > m.Reported {
		request.Lost = lostAttempt(j.JobRow, m)
	}
	result, err := w.service.WorkJob(ctx, request)
	if w.lost(ctx, j.JobRow) {
		// What the other attempt has stored stays.
		w.awaitEnd(ctx, j.ID)
		return job.PublicError(repo.ErrJobLost)
	}
	if request.Lost != nil {
		err = errors.Join(err, recordLost(ctx, m.Rescues))
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

// lost reports whether another attempt has the job by now: River would store the end of this one
// all the same, and this one's outcome with a job that is finished. While main does not answer it asks
// again, as long as an attempt may take: nothing can be stored meanwhile. A queue that stops does not
// wait.
func (w *worker) lost(ctx context.Context, row *rivertype.JobRow) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	for {
		err := w.checkAttempt(ctx, row)
		if err == nil || errors.Is(err, repo.ErrJobLost) {
			return err != nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.stopping:
			return false
		case <-time.After(awaitInterval):
		}
	}
}

func (w *worker) checkAttempt(ctx context.Context, row *rivertype.JobRow) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return w.database.CheckAttempt(ctx, repo.AttemptOf{ID: row.ID, AttemptedAt: *row.AttemptedAt})
}

// awaitEnd waits until a job does not run: River stores the end of a lost attempt with a job that
// runs, whoever works it. An attempt runs no longer than attemptTimeout. A queue that stops does not
// wait.
func (w *worker) awaitEnd(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	for {
		if runs, err := w.database.JobRuns(ctx, id); err == nil && !runs {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.stopping:
			return
		case <-time.After(awaitInterval):
		}
	}
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

// reportedKey is the key, in a job's metadata, of the number of rescues that have been reported.
const reportedKey = "rescues_reported"

// workedKey is the key, in a job's metadata, of how many milliseconds its attempts took together.
const workedKey = "worked_ms"

// recordLost stores how the previous attempt has ended, until this one stores its own end, and that
// this has been reported.
func recordLost(ctx context.Context, rescues int) error {
	return errors.Join(
		record(ctx, job.Failed, repo.ReasonProcessGone),
		river.MetadataSet(ctx, reportedKey, rescues))
}

// attemptName identifies an attempt, or the one so many fetches before, by its number, the job's
// snoozes, and the process: a process works a job again only when one of the two has grown.
func attemptName(row *rivertype.JobRow, m jobMetadata, before int) string {
	client := ""
	if n := len(row.AttemptedBy) - before; n > 0 {
		client = row.AttemptedBy[n-1]
	}
	return fmt.Sprintf("%d %d %d %s", row.ID, row.Attempt-before, m.Snoozes, client)
}

// lostAttempt is the previous attempt, which River has taken for dead.
func lostAttempt(row *rivertype.JobRow, m jobMetadata) *job.LostAttempt {
	lost := &job.LostAttempt{Name: attemptName(row, m, 1)}
	if n := len(row.Errors); n > 0 {
		lost.RescuedAt = row.Errors[n-1].At
		lost.Began = lost.RescuedAt.Add(-rescueAfter)
	}
	return lost
}

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
