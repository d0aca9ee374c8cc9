// Package fencing holds the conditions of a write: lease or attempt, limits of its statements, and
// the source that its receipts name.
package fencing

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// First returns the statements that follow the settings of a transaction.
func (l Limits) First() (all []stmt.Statement) {
	for _, sql := range []string{l.Targets.Record, l.Before} {
		if sql != "" {
			all = append(all, stmt.Statement{SQL: sql})
		}
	}
	return all
}

// Source is the run or job that changes rows, as receipts name it.
type Source struct {
	// RunID is the run, JobID the job. One of them is empty.
	RunID string
	JobID int64
	// Worker is the worker, or the kind of the job.
	Worker string
	// RequestedBy is the user who requested the run, or the run that queued the job.
	RequestedBy string
}

// IDs returns the ids of the run and the job. The id that the source does not have is nil.
func (s Source) IDs() (run *string, job *int64) {
	if s.RunID != "" {
		run = &s.RunID
	}
	if s.JobID != 0 {
		job = &s.JobID
	}
	return run, job
}

// Targets are the statements of the post-condition. They name tables with their schemas, because
// search_path may change.
type Targets struct {
	// Record follows the settings of a transaction and records which targets are already missing.
	// Check follows the statements that change rows. Both are "" if nothing was ever protected.
	Record, Check string
	// Incomplete: the table users or namespaces was not found.
	Incomplete bool
}

// Permit holds the conditions of a step's writes, and their time limits.
type Permit struct {
	Guard
	Limits
	// Source goes into the receipts of the changes.
	Source
	// DryRun rolls a transaction back instead of committing it, and needs no guard. Single
	// statements ignore it.
	DryRun bool
}

// Limits bound one statement, and a transaction of several. Zero means the server's own setting.
type Limits struct {
	// Statement is the statement_timeout, Lock the lock_timeout.
	Statement, Lock time.Duration
	// Transaction is the total time of a transaction of several statements. Zero means five
	// seconds.
	Transaction time.Duration
	// ReadOnly makes the server refuse every write, including those of triggers and functions.
	ReadOnly bool
	// Targets are the statements that check that no protected row was deleted.
	Targets Targets
	// Before is a statement that is sent first in the same transaction. "" means none.
	Before string
}

// Guard is the condition of a write: the fence of a run, or an attempt of a job, which may need
// advisory locks too. The zero value never holds.
//
// The guard is checked in the statement that writes, or first in its transaction. The checked rows
// stay locked until the commit.
type Guard struct {
	Fence   *Fence
	Attempt *AttemptOf
	lock    *int64
	// part is the key of a second lock, for a part of the subject of the first lock.
	part *int64
	// free: the guard always holds.
	free bool
}

// Unguarded returns the guard for requests that change records of caretaker, which belong to no run
// or job.
func Unguarded() Guard { return Guard{free: true} }

// Guard returns a guard that lets only the holder of the lease write. Otherwise the error is
// [dberr.ErrLeaseLost].
func (f Fence) Guard() Guard { return Guard{Fence: &f} }

// Guard returns a guard that holds while the attempt still owns the job. Otherwise the error is
// [dberr.ErrJobLost].
func (a AttemptOf) Guard() Guard { return Guard{Attempt: &a} }

// WithLock lets one attempt at a time write under this key. If another transaction holds the lock,
// the error is [dberr.ErrBusy]. The commit releases the lock. WithLock has no effect on a fence.
func (g Guard) WithLock(key int64) Guard {
	g.lock = &key
	return g
}

// WithPart adds a second advisory lock to that of WithLock, without which WithPart has no effect.
// No attempt waits for either lock, so no deadlock is possible.
func (g Guard) WithPart(key int64) Guard {
	g.part = &key
	return g
}

// The CTE "guard" has one row with held = 1, or none. It comes first in every statement that
// writes, as {guard}.
const (
	// fenceSQL locks FOR SHARE: the batches of one run do not wait for each other, and a take-over
	// waits for their commit.
	fenceSQL = `guard AS MATERIALIZED (
  SELECT 1 AS held FROM maintenance.leases
  WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()
  FOR SHARE
)`

	// attemptSQL locks the row of a running attempt, which its time identifies. River's rescue of a
	// job updates the row, so it waits for the commit. An insert of the same unique job would wait
	// too, so [jobqueue.RunningJobs] is queried before it.
	attemptSQL = `attempt AS MATERIALIZED (
  SELECT 1 AS held FROM maintenance.river_job
  WHERE id = {job} AND state = 'running' AND attempted_at = {attempted}
    AND NOT EXISTS (SELECT FROM maintenance.job_cancellations c WHERE c.job_id = {job})
  FOR SHARE
)`
	attemptGuardSQL = attemptSQL + `,
guard AS MATERIALIZED (SELECT held FROM attempt)`
	attemptLockSQL = attemptSQL + `,
guard AS MATERIALIZED (
  SELECT held FROM attempt
  WHERE pg_try_advisory_xact_lock({lock}) AND pg_try_advisory_xact_lock({part})
)`

	// freeGuardSQL is the guard of [Unguarded].
	freeGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held)`

	// noGuardSQL is the guard of the zero value.
	noGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held WHERE false)`
)

// Fill puts the guard into a statement with these arguments. The guard's arguments come after them.
func (g Guard) Fill(s stmt.Statement) stmt.Statement {
	p := append(stmt.Parameters(nil), s.Args...)
	s.SQL = stmt.Fill(s.SQL, "{guard}", g.sql(&p))
	s.Args = p
	return s
}

func (g Guard) sql(p *stmt.Parameters) string {
	switch {
	case g.Fence != nil:
		return stmt.Fill(fenceSQL, "{name}", p.Add(g.Fence.Name), "{holder}", p.Add(g.Fence.Holder),
			"{epoch}", p.Add(g.Fence.Epoch))
	case g.Attempt != nil:
		job, attempted := p.Add(g.Attempt.ID), p.Add(g.Attempt.AttemptedAt)
		if g.lock == nil {
			return stmt.Fill(attemptGuardSQL, "{job}", job, "{attempted}", attempted)
		}
		return stmt.Fill(attemptLockSQL, "{job}", job, "{attempted}", attempted,
			"{lock}", p.Add(*g.lock), "{part}", p.Add(*cmp.Or(g.part, g.lock)))
	case g.free:
		return freeGuardSQL
	}
	return noGuardSQL
}

// queryer is a pool or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const attemptHeldSQL = `
SELECT EXISTS (
    SELECT FROM maintenance.river_job WHERE id = $1 AND state = 'running' AND attempted_at = $2),
  EXISTS (SELECT FROM maintenance.job_cancellations WHERE job_id = $1)`

// Finishing returns ctx without its cancellation for a write by a run: a sent statement may commit,
// and the run must count it. The fence and the limits end the write soon enough. An attempt of a
// job that has timed out still ends its statement.
func (g Guard) Finishing(ctx context.Context) context.Context {
	if g.Fence == nil || ctx.Err() != nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// Refused returns the error of a statement whose guard did not hold. For an attempt that needs a
// lock it queries whether the attempt or the lock was missing.
func (g Guard) Refused(ctx context.Context, q queryer) error {
	switch {
	case g == Guard{}:
		return dberr.ErrUnguarded
	case g.Fence != nil:
		return dberr.ErrLeaseLost
	}
	var held, cancelled bool
	err := q.QueryRow(ctx, attemptHeldSQL, g.Attempt.ID, g.Attempt.AttemptedAt).Scan(&held, &cancelled)
	switch {
	case err != nil:
		return err
	case held && cancelled:
		return dberr.ErrJobCancelled
	case held && g.lock != nil:
		return dberr.ErrBusy
	}
	return dberr.ErrJobLost
}

// AckLimits bounds the wait for other transactions that mark the same paths.
func AckLimits() Limits {
	return Limits{Statement: stmt.StatementTimeout, Lock: time.Second, Transaction: 10 * time.Second}
}

// Fence names the lease under which a transaction writes.
type Fence struct {
	Name, Holder string
	Epoch        int64
}

// AttemptOf names an attempt of a job: its row, and its start time, which no two attempts share.
// Two attempts may share a number, because an attempt that snoozes returns its number.
type AttemptOf struct {
	ID          int64
	AttemptedAt time.Time
}
