package jobqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// States of a job, as River names them.
const (
	JobAvailable = "available"
	JobPending   = "pending"
	JobScheduled = "scheduled"
	JobRetryable = "retryable"
	JobRunning   = "running"
	JobCompleted = "completed"
	JobCancelled = "cancelled"
	JobDiscarded = "discarded"
)

// QueuedJob is a job in the queue, or as it was at its end. Unset times are zero.
type QueuedJob struct {
	ID          int64
	Kind, State string
	// Args is a JSON object.
	Args                   json.RawMessage
	Attempt, MaxAttempts   int
	CreatedAt, ScheduledAt time.Time
	// AttemptedAt is when the last attempt started, FinalizedAt when the job ended.
	AttemptedAt, FinalizedAt time.Time
	// Errors are the errors of failed attempts.
	Errors []AttemptError
	// Outcome and Reason belong to the last attempt that did not snooze. RunID is the run that queued
	// it.
	Outcome, Reason, RunID string
	// TraceID is the trace of the last attempt that has ended, whatever its outcome.
	TraceID string
	// Worked is the total duration of its ended attempts, without those whose process died.
	Worked time.Duration

	// The fields below are set for a job that was read by its id.

	JobChanges
	// Cancellation is the operator's cancellation, nil if it has none.
	Cancellation *Cancellation
}

// Cancellation is a request to end a job.
type Cancellation struct {
	Reason, By string
	At         time.Time
}

// AttemptError is the error of a failed attempt, in a text fit for clients.
type AttemptError struct {
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
	Error   string    `json:"error"`
}

// jobColumns are in the order of scanJob.
const jobColumns = `id, kind, state::text, args, attempt, max_attempts,
  created_at, scheduled_at, attempted_at, finalized_at, coalesce(to_jsonb(errors), '[]'),
  coalesce(metadata ->> 'outcome', ''), coalesce(metadata ->> 'reason', ''),
  coalesce(metadata ->> 'run_id', ''), coalesce(metadata ->> 'trace_id', ''),
  coalesce((metadata ->> 'worked_ms')::bigint, 0)`

// rescuedText is the error that River stores for an attempt that it presumes dead.
const rescuedText = "Stuck job rescued by JobRescuer"

// scanJob reads a job. If River presumed the last attempt dead, outcome and reason show that its
// process ended.
func scanJob(row pgx.CollectableRow) (j QueuedJob, err error) {
	var worked int64
	err = row.Scan(&j.ID, &j.Kind, &j.State, &j.Args, &j.Attempt, &j.MaxAttempts,
		&j.CreatedAt, &j.ScheduledAt, &j.AttemptedAt, &j.FinalizedAt,
		&j.Errors, &j.Outcome, &j.Reason, &j.RunID, &j.TraceID, &worked)
	j.Worked = time.Duration(worked) * time.Millisecond
	rescued := false // the last attempt that has ended
	for i := range j.Errors {
		if rescued = j.Errors[i].Error == rescuedText; rescued {
			j.Errors[i].Error = reasons.ProcessGoneText
		}
	}
	if rescued && j.State != JobCompleted && j.State != JobCancelled {
		j.Outcome, j.Reason = "failed", reasons.ProcessGone
		if j.State == JobDiscarded {
			j.Outcome = JobDiscarded
		}
	}
	return j, err
}

// jobsOfTimeSQL selects the jobs queued from $3 until before $4. It finds their ids by the
// index of times. A transaction may insert a job up to a minute after its begin, which is the job's time.
const jobsOfTimeSQL = `j.created_at >= $3::timestamptz AND (j.created_at < $4::timestamptz OR $4 = 'infinity')
      AND j.id > coalesce((SELECT t.id FROM maintenance.river_job t
        WHERE t.created_at < $3 - interval '1 minute' ORDER BY t.created_at DESC LIMIT 1), 0)
      AND j.id < coalesce((SELECT t.id FROM maintenance.river_job t
        WHERE t.created_at >= $4 + interval '1 minute' AND $4 <> 'infinity' ORDER BY t.created_at LIMIT 1), 9223372036854775807)`

// listJobsSQL lists jobs of all kinds and states whose id is below $1.
const listJobsSQL = `
SELECT ` + jobColumns + `
FROM maintenance.river_job j
WHERE j.id < $1 AND ` + jobsOfTimeSQL + `
ORDER BY j.id DESC LIMIT $2`

// listJobsOfSQL reads the newest jobs of each requested kind and state, by the index of
// [Jobs.IndexJobs]: kinds and states come in blocks, so a walk through all jobs by their ids may
// find nothing for long. A state is a range of one, because for equality PostgreSQL may still
// choose that walk. The few existing kinds are found by searching for the next one.
const listJobsOfSQL = `
WITH RECURSIVE kinds (kind) AS (
  SELECT CASE $5 WHEN '' THEN (SELECT min(kind) FROM maintenance.river_job) ELSE $5 END
  UNION ALL
  SELECT (SELECT j.kind FROM maintenance.river_job j WHERE j.kind > k.kind ORDER BY j.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL AND $5 = ''
),
page (id) AS MATERIALIZED (
  SELECT newest.id FROM kinds k
  CROSS JOIN unnest(CASE $6 WHEN '' THEN enum_range(NULL::maintenance.river_job_state)
    ELSE ARRAY[nullif($6, '')::maintenance.river_job_state] END) AS s (state)
  CROSS JOIN LATERAL (
    SELECT j.id FROM maintenance.river_job j
    WHERE j.kind = k.kind AND j.state >= s.state AND j.state <= s.state AND j.id < $1
      AND ` + jobsOfTimeSQL + `
    ORDER BY j.state DESC, j.id DESC LIMIT $2
  ) newest
  ORDER BY newest.id DESC LIMIT $2
)
SELECT ` + jobColumns + `
FROM maintenance.river_job WHERE id = ANY (ARRAY(SELECT id FROM page)) ORDER BY id DESC`

// List selects jobs for a list.
type List struct {
	// Kind and State are names, "" for all. An unknown state is a bug of ours.
	Kind, State string
	// Since and Until bound the time of queueing: Since inclusive, Until exclusive. Zero means no
	// bound.
	Since, Until time.Time
	// After is the id after which the page begins, 0 for the first page. Limit is the maximum of jobs.
	After int64
	Limit int
}

// ListJobs reads a page of jobs, the newest first.
func (d Jobs) ListJobs(ctx context.Context, l List) ([]QueuedJob, error) {
	after := cmp.Or(l.After, math.MaxInt64)
	since, until := stmt.Bound(l.Since, pgtype.NegativeInfinity), stmt.Bound(l.Until, pgtype.Infinity)
	q := pg.NewQuery("list jobs", listJobsSQL, after, l.Limit, since, until)
	if l.Kind != "" || l.State != "" {
		q = pg.NewQuery("list jobs", listJobsOfSQL, after, l.Limit, since, until, l.Kind, l.State)
	}
	return pg.ReadRows(ctx, d.db, fencing.Limits{Statement: stmt.StatementTimeout}, q, scanJob)
}

// ReadJob reads a job by its id, or returns [dberr.ErrNotFound]. It also reads the job's changes
// and its cancellation.
func (d Jobs) ReadJob(ctx context.Context, id int64) (QueuedJob, error) {
	found, err := pg.Collect(ctx, d.db, pg.NewQuery("read a job", readJobSQL, id), scanJob)
	if err == nil && len(found) == 0 {
		err = dberr.ErrNotFound
	}
	if err != nil {
		return QueuedJob{}, err
	}
	job := found[0]
	if job.JobChanges, err = d.JobChanges(ctx, id); err != nil {
		return QueuedJob{}, err
	}
	job.Cancellation, err = cancellation(ctx, d.db, id)
	return job, err
}

// jobTablesSQL sums the receipts of a job by table: deleted rows, and rows of other actions.
const jobTablesSQL = `
SELECT "table", coalesce(sum(rows) FILTER (WHERE action = 'deleted'), 0)::bigint,
  coalesce(sum(rows) FILTER (WHERE action <> 'deleted'), 0)::bigint
FROM maintenance.receipts WHERE job_id = $1 GROUP BY "table" ORDER BY "table"`

// readJobSQL reads one job with the columns of a list.
const readJobSQL = `SELECT ` + jobColumns + ` FROM maintenance.river_job WHERE id = $1`

// lockEndedSQL neither locks a running job nor waits for it: it keeps its cancellation, and stops.
const lockEndedSQL = `
SELECT id FROM maintenance.river_job WHERE id = $1 AND state <> 'running' FOR NO KEY UPDATE`

// retryJobSQL skips a running job, and a job that is already due.
const retryJobSQL = `
UPDATE maintenance.river_job
SET state = 'available', scheduled_at = now(), finalized_at = NULL,
    max_attempts = greatest(max_attempts, attempt + 1),
    metadata = metadata - '{outcome,reason,cancel_attempted_at}'::text[]
WHERE id = $1 AND state <> 'running' AND NOT (state = 'available' AND scheduled_at <= now())
RETURNING ` + jobColumns

// RetryJob makes a job due now, whatever its state, with at least one attempt. A job that is
// running or due does not change. The error is [dberr.ErrNotFound], or a [*DuplicateJobError] if an
// equal job waits or runs.
func (d Jobs) RetryJob(ctx context.Context, id int64) (QueuedJob, error) {
	var retried []QueuedJob
	// The retry deletes the cancellation: a concurrent cancellation waits for both.
	do := func(ctx context.Context, tx *pg.Changing) error {
		retried = nil
		locked, err := tx.Exec(ctx, lockEndedSQL, id)
		if err != nil || locked.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, uncancelSQL, id); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, retryJobSQL, id)
		retried, err = pgx.CollectRows(rows, scanJob)
		return err
	}
	err := pg.Transaction(ctx, d.db, "retry a job", fencing.Permit{Guard: fencing.Unguarded(), Limits: fencing.AckLimits()}, do)
	// A unique violation means that an equal job waits or runs.
	var refused *dberr.Error
	if errors.As(err, &refused) && refused.SQLState == "23505" {
		return QueuedJob{}, duplicateOf(ctx, d.db, id)
	}
	// An unchanged job is running or due: return it as it is.
	if err == nil && len(retried) == 0 {
		retried, err = pg.Collect(ctx, d.db, pg.NewQuery("read a job", readJobSQL, id), scanJob)
	}
	if err == nil && len(retried) == 0 {
		err = dberr.ErrNotFound
	}
	if err != nil {
		return QueuedJob{}, err
	}
	return retried[0], nil
}

// DuplicateJobError names the job that waits or runs instead of an equal job that was to be
// retried.
type DuplicateJobError struct{ ID int64 }

// Error explains what to do.
func (e *DuplicateJobError) Error() string {
	if e.ID == 0 {
		return "another job for the same target has just ended: try again"
	}
	return fmt.Sprintf("job %[1]d for the same target is already waiting or running: retry job %[1]d instead", e.ID)
}

// Details returns the reason and the metadata for clients.
func (e *DuplicateJobError) Details() (string, map[string]string) {
	return "DUPLICATE_JOB", map[string]string{"job_id": strconv.FormatInt(e.ID, 10)}
}

// duplicateJobSQL finds the job that has the unique key of the job $1, in a state that keeps it.
const duplicateJobSQL = `
SELECT other.id FROM maintenance.river_job j JOIN maintenance.river_job other USING (unique_key)
WHERE j.id = $1 AND other.id <> j.id AND other.unique_states IS NOT NULL
  AND maintenance.river_job_state_in_bitmask(other.unique_states, other.state)`

// duplicateOf returns a [*DuplicateJobError] with the id of that job, 0 if it has just ended.
func duplicateOf(ctx context.Context, d *pg.Database, id int64) error {
	found := &DuplicateJobError{}
	err := pg.QueryRow(ctx, d, "find the queued job", []any{&found.ID}, duplicateJobSQL, id)
	if err != nil && !errors.Is(err, dberr.ErrNotFound) {
		return err
	}
	return found
}

// countDiscardedJobsSQL counts the jobs of kind $1 that used up their attempts and have arguments
// $2.
const countDiscardedJobsSQL = `
SELECT count(*) FROM maintenance.river_job
WHERE state = 'discarded' AND finalized_at IS NOT NULL AND kind = $1 AND args @> $2::jsonb`

// CountDiscardedJobs counts the jobs of a kind that used up their attempts and whose arguments
// contain these (JSON, "{}" for any). They are kept for 30 days.
func (d Jobs) CountDiscardedJobs(ctx context.Context, kind, args string) (n int64, err error) {
	q := pg.NewQuery("count discarded jobs", countDiscardedJobsSQL, kind, args)
	_, err = pg.ReplicaRow(ctx, d.db, fencing.Limits{Statement: stmt.StatementTimeout}, q, &n)
	return n, err
}
