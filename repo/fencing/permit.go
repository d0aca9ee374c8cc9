// Package fencing says what must hold for a write: the lease of a run or the attempt of a job, the limits of its
// statements, and who is named in its receipts.
package fencing

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// First are the statements that follow the settings of a transaction.
func (l Limits) First() (all []stmt.Statement) {
	for _, sql := range []string{l.Targets.Note, l.Before} {
		if sql != "" {
			all = append(all, stmt.Statement{SQL: sql})
		}
	}
	return all
}

// Source is who changes rows, as receipts have it.
type Source struct {
	// RunID is the run's, JobID the job's: one of them is empty.
	RunID string
	JobID int64
	// Worker is the worker, or the kind of the job.
	Worker string
	// RequestedBy is who asked for the run, or for the one that queued the job.
	RequestedBy string
}

// IDs are those of the run and the job, nil for the one that there is not.
func (s Source) IDs() (run *string, job *int64) {
	if s.RunID != "" {
		run = &s.RunID
	}
	if s.JobID != 0 {
		job = &s.JobID
	}
	return run, job
}

// Targets are the statements of the post-condition. They name tables with their schemas: search_path may change.
type Targets struct {
	// note follows the settings of a transaction, and keeps which targets are missing already. check follows
	// what changes rows. Both are "" where nothing was ever protected.
	Note, Check string
	// incomplete: users or namespaces was not found.
	Incomplete bool
}

// Permit is what a step may write by: what must hold for it, and how long it may take.
type Permit struct {
	Guard
	Limits
	// Source is for the receipts of what is changed.
	Source
	// DryRun does everything in a transaction and rolls it back instead of committing. It needs no
	// guard. Single statements do not know it.
	DryRun bool
}

// Limits bound one statement, and a transaction of several. Zero is the server's own setting.
type Limits struct {
	// Statement is the statement_timeout, Lock the lock_timeout.
	Statement, Lock time.Duration
	// Transaction is what one of several statements may take in all; zero is five seconds.
	Transaction time.Duration
	// ReadOnly makes the server refuse whatever would write, triggers and functions included.
	ReadOnly bool
	// targets are the statements that check that no protected row was deleted.
	Targets Targets
	// before is a statement that is sent first in the same transaction; "": none.
	Before string
}

// Guard is what must hold for a write to change anything: the fence of a run, or an attempt of a
// job, which may need advisory locks too. The zero value never holds.
//
// It is checked in the statement that writes, or first in its transaction, and what it checks stays
// locked until the commit.
type Guard struct {
	Fence   *Fence
	Attempt *AttemptOf
	lock    *int64
	// part is the key of a second lock, that of a part of what lock stands for.
	part *int64
	// free asks for nothing.
	free bool
}

// Unguarded is for what a request changes in records of ours, which no run or job has to hold.
func Unguarded() Guard { return Guard{free: true} }

// Guard lets only the holder of the lease write; else the error is [dberr.ErrLeaseLost].
func (f Fence) Guard() Guard { return Guard{Fence: &f} }

// Guard lets an attempt write only while the job is still its own; else the error is [dberr.ErrJobLost].
func (a AttemptOf) Guard() Guard { return Guard{Attempt: &a} }

// WithLock lets one attempt at a time write that uses this key. If another transaction holds the
// lock, the error is [dberr.ErrBusy]. The commit releases the lock. WithLock has no effect on a fence.
func (g Guard) WithLock(key int64) Guard {
	g.lock = &key
	return g
}

// WithPart asks for a second advisory lock besides that of WithLock, without which it has no
// effect. No attempt waits for either, so there are no deadlocks.
func (g Guard) WithPart(key int64) Guard {
	g.part = &key
	return g
}

// The CTE "guard" has one row with held = 1, or none. It stands first in every statement that
// writes, as {guard}.
const (
	// fenceSQL: FOR SHARE lets the batches of one run work side by side, and makes a take-over wait
	// for their commit.
	fenceSQL = `guard AS MATERIALIZED (
  SELECT 1 AS held FROM maintenance.leases
  WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()
  FOR SHARE
)`

	// attemptSQL keeps the row of a running attempt, which its time identifies. River's rescue of a
	// job is an UPDATE of the row: it waits for the commit. So would an insert of the same unique
	// job, which is why [jobqueue.RunningJobs] is asked before.
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

	// freeGuardSQL is that of [Unguarded].
	freeGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held)`

	// noGuardSQL is for the zero value.
	noGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held WHERE false)`
)

// Fill puts the guard into a statement of these arguments, behind which its own come.
func (g Guard) Fill(s stmt.Statement) stmt.Statement {
	p := append(stmt.Parameters(nil), s.Args...)
	return stmt.Statement{SQL: stmt.Fill(s.SQL, "{guard}", g.sql(&p)), Args: p}
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

// Finishing is ctx without its cancellation for a write by a run: what was sent may commit, and the
// run must hear of that to count it. The fence and the limits end the write soon enough. An attempt of
// a job that is out of time still ends its statement.
func (g Guard) Finishing(ctx context.Context) context.Context {
	if g.Fence == nil || ctx.Err() != nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// Refused is the error of a statement whose guard did not hold. Of an attempt that needs a lock it
// asks which of the two was missing.
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

// AckLimits bound the wait for others who mark the same paths.
func AckLimits() Limits {
	return Limits{Statement: stmt.StatementTimeout, Lock: time.Second, Transaction: 10 * time.Second}
}

// Fence names the lease under which a transaction writes.
type Fence struct {
	Name, Holder string
	Epoch        int64
}

// AttemptOf names an attempt of a job: its row, and when it began, which no two attempts share.
// (Their numbers may be the same: an attempt that snoozes gives its number back.)
type AttemptOf struct {
	ID          int64
	AttemptedAt time.Time
}
