// Package jobqueue has the SQL of jobs in River's tables: their arguments, states, attempts and ends.
package jobqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Tx is the transaction type of this package for other packages.
type Tx = pgx.Tx

// JobSystem is the name of the queue in traces: messaging.system of the semantic conventions.
const JobSystem = "river"

// Queue inserts deferred jobs into the queue. Package scheduler implements it with River.
type Queue interface {
	// InsertJobs inserts the jobs in a transaction of ours, so that a state change and its jobs exist
	// both or neither. It returns the number of inserted jobs: it drops jobs that already wait or run.
	InsertJobs(ctx context.Context, tx Tx, jobs []Job) (inserted int, err error)
	// CompleteJob completes the running job with this id in a transaction of ours.
	CompleteJob(ctx context.Context, tx Tx, id int64) error
}

// Job is a deferred job to insert.
type Job struct {
	Args Args
	// ScheduledAt is when it may start. Zero means now.
	ScheduledAt time.Time
	// RunID and TraceParent (W3C) are those of the run or job that queues it. They are stored with it.
	RunID, TraceParent string
	// RequestedBy is the user who requested that run.
	RequestedBy string
}

// Args are the arguments of one kind of job. Fields tagged river:"unique" make a job unique
// while one with the same values is available, pending, scheduled, retryable or running.
type Args interface{ Kind() string }

// DeletePlaceholderUser is the job delete_placeholder_user.
type DeletePlaceholderUser struct {
	PlaceholderUserID int64 `json:"placeholder_user_id" river:"unique"`
}

// Kind of the job.
func (DeletePlaceholderUser) Kind() string { return "delete_placeholder_user" }

// DeleteUser is the job delete_user. A waiting job with another reason does not suppress it.
type DeleteUser struct {
	UserID            int64  `json:"user_id" river:"unique"`
	DeletedByID       *int64 `json:"deleted_by_id"`
	SkipAuthorization bool   `json:"skip_authorization"`
	Reason            string `json:"reason" river:"unique"`
}

// Kind of the job.
func (DeleteUser) Kind() string { return "delete_user" }

// DestroyGroup is the job destroy_group.
type DestroyGroup struct {
	GroupID int64 `json:"group_id" river:"unique"`
	// UserID is the requester. It is null if the removal has started and its user was deleted.
	UserID *int64 `json:"user_id"`
}

// Kind of the job.
func (DestroyGroup) Kind() string { return "destroy_group" }

// ContinueInactiveTokenDeletion is the job continue_inactive_token_deletion. It is unique while it
// waits, not while it runs: the run that it starts can queue the next one.
type ContinueInactiveTokenDeletion struct {
	PassID string `json:"pass_id"`
}

// Kind of the job.
func (ContinueInactiveTokenDeletion) Kind() string { return "continue_inactive_token_deletion" }

// UniqueWhileWaiting marks the job as [UniqueWhileWaiting].
func (ContinueInactiveTokenDeletion) UniqueWhileWaiting() {}

// UniqueWhileWaiting marks kinds of which only one job with the same arguments waits, regardless of
// running ones.
type UniqueWhileWaiting interface{ UniqueWhileWaiting() }

// lockJobSQL: the second of two transactions waits and sees the inserts of the first.
const lockJobSQL = `SELECT pg_advisory_xact_lock(hashtextextended($1::text || $2::jsonb::text, 0))`

const waitingJobSQL = `
SELECT EXISTS (
  SELECT 1 FROM maintenance.river_job
  WHERE kind = $1 AND args @> $2::jsonb
    AND state IN ('available', 'pending', 'scheduled', 'retryable'))`

// Waits reports, in a transaction that is about to insert it, whether a job of this kind with
// these arguments (JSON) already waits. Until the transaction ends, others that request the same
// job wait.
func Waits(ctx context.Context, tx Tx, kind, args string) (waits bool, err error) {
	if _, err = tx.Exec(ctx, lockJobSQL, kind, args); err == nil {
		err = tx.QueryRow(ctx, waitingJobSQL, kind, args).Scan(&waits)
	}
	return waits, err
}

// runningJobsSQL returns the numbers, from 1, of the requested jobs that run. Few jobs run.
const runningJobsSQL = `
WITH running AS MATERIALIZED (
  SELECT kind, args FROM maintenance.river_job WHERE state = 'running' AND unique_key IS NOT NULL
)
SELECT asked.n
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (kind, args, n)
WHERE EXISTS (
  SELECT FROM running WHERE running.kind = asked.kind AND running.args @> asked.args::jsonb)`

// RunningJobs returns the numbers, from 1, of the requested jobs that already run. Each request is
// a kind and arguments (JSON). It matches a running unique job of the kind whose arguments contain
// them. RunningJobs waits for no lock, unlike an insert that meets a running job's row: see
// attemptSQL.
func RunningJobs(ctx context.Context, tx Tx, kinds, args []string) ([]int64, error) {
	rows, err := tx.Query(ctx, runningJobsSQL, kinds, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// holdJobSQL locks the row of a running attempt, which its time identifies.
const holdJobSQL = `
SELECT 1 FROM maintenance.river_job 
WHERE id = $1 AND state = 'running' AND attempt = $2 AND attempted_at = $3 FOR UPDATE`

// HoldJob ensures, until the transaction ends, that an attempt of a job still owns it. Otherwise
// the error is [dberr.ErrJobLost]: the attempt was presumed dead, and another one has or had the
// job.
func HoldJob(ctx context.Context, tx Tx, id int64, attempt int, attemptedAt time.Time) error {
	var held int
	err := tx.QueryRow(ctx, holdJobSQL, id, attempt, attemptedAt).Scan(&held)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("job %d, attempt %d: %w", id, attempt, dberr.ErrJobLost)
	}
	return err
}

const checkAttemptSQL = `
SELECT EXISTS (SELECT FROM maintenance.river_job WHERE id = $1 AND attempted_at = $2)`

// CheckAttempt returns [dberr.ErrJobLost] if another attempt of the job has started since this one.
func (d Jobs) CheckAttempt(ctx context.Context, a fencing.AttemptOf) error {
	var held bool
	err := pg.QueryRow(ctx, d.db, "check the job attempt", []any{&held}, checkAttemptSQL, a.ID, a.AttemptedAt)
	if err == nil && !held {
		err = dberr.ErrJobLost
	}
	return err
}

// Pool is for River alone, which has its own SQL.
func (d Jobs) Pool() *pgxpool.Pool { return pg.PoolOf(d.db) }

// TableCount counts the changes of a run in one table.
type TableCount struct {
	Table   string `json:"table"`
	Deleted int64  `json:"deleted"`
	Updated int64  `json:"updated"`
}

// TokenDeletionReason is the reason of the jobs of inactive_token_deletion, which check the tokens
// again.
const TokenDeletionReason = "No active token assigned"

// PlaceholderDeletionReason is the reason of the job that the placeholder deletion queues.
const PlaceholderDeletionReason = "Placeholder user is no longer referenced"
