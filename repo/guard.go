package repo

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrBusy means that another transaction holds the advisory lock of a [Guard]. The transaction
// changed nothing.
var ErrBusy = errors.New("somebody else is at work on it")

// errUnguarded is a fault of ours: a write whose permit has no guard.
var errUnguarded = errors.New("a write without a guard, nothing was changed")

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
	targets targets
	// before is a statement that is sent first in the same transaction; "": none.
	before string
}

// Guard is what must hold for a write to change anything: the fence of a run, or an attempt of a
// job, which may need advisory locks too. The zero value never holds.
//
// It is checked in the statement that writes, or first in its transaction, and what it checks stays
// locked until the commit.
type Guard struct {
	fence   *Fence
	attempt *AttemptOf
	lock    *int64
	// part is the key of a second lock, that of a part of what lock stands for.
	part *int64
	// free asks for nothing.
	free bool
}

// unguarded is for what a request changes in records of ours, which no run or job has to hold.
func unguarded() Guard { return Guard{free: true} }

// Guard lets only the holder of the lease write; else the error is [ErrLeaseLost].
func (f Fence) Guard() Guard { return Guard{fence: &f} }

// Guard lets an attempt write only while the job is still its own; else the error is [ErrJobLost].
func (a AttemptOf) Guard() Guard { return Guard{attempt: &a} }

// WithLock lets one attempt at a time write that uses this key. If another transaction holds the
// lock, the error is [ErrBusy]. The commit releases the lock. WithLock has no effect on a fence.
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
	// job, which is why [RunningJobs] is asked before.
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

	// freeGuardSQL is that of [unguarded].
	freeGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held)`

	// noGuardSQL is for the zero value.
	noGuardSQL = `guard AS MATERIALIZED (SELECT 1 AS held WHERE false)`
)

// parameters are the values of a statement that is put together from parts.
type parameters []any

// add returns the name of the parameter: $1, $2 ...
func (p *parameters) add(value any) string {
	*p = append(*p, value)
	return "$" + strconv.Itoa(len(*p))
}

// list is add for a list that several parts of a statement may share.
func (p *parameters) list(values []string) string {
	for i, known := range *p {
		same, ok := known.([]string)
		if ok && len(same) == len(values) && len(values) > 0 && &same[0] == &values[0] {
			return "$" + strconv.Itoa(i+1)
		}
	}
	return p.add(values)
}

// fill puts the guard into a statement of these arguments, behind which its own come.
func (g Guard) fill(s statement) statement {
	p := append(parameters(nil), s.args...)
	return statement{fill(s.sql, "{guard}", g.sql(&p)), p}
}

func (g Guard) sql(p *parameters) string {
	switch {
	case g.fence != nil:
		return fill(fenceSQL, "{name}", p.add(g.fence.Name), "{holder}", p.add(g.fence.Holder),
			"{epoch}", p.add(g.fence.Epoch))
	case g.attempt != nil:
		job, attempted := p.add(g.attempt.ID), p.add(g.attempt.AttemptedAt)
		if g.lock == nil {
			return fill(attemptGuardSQL, "{job}", job, "{attempted}", attempted)
		}
		return fill(attemptLockSQL, "{job}", job, "{attempted}", attempted,
			"{lock}", p.add(*g.lock), "{part}", p.add(*cmp.Or(g.part, g.lock)))
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

// finishing is ctx without its cancellation for a write by a run: what was sent may commit, and the
// run must hear of that to count it. The fence and the limits end the write soon enough. An attempt of
// a job that is out of time still ends its statement.
func (g Guard) finishing(ctx context.Context) context.Context {
	if g.fence == nil || ctx.Err() != nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// refused is the error of a statement whose guard did not hold. Of an attempt that needs a lock it
// asks which of the two was missing.
func (g Guard) refused(ctx context.Context, q queryer) error {
	switch {
	case g == Guard{}:
		return errUnguarded
	case g.fence != nil:
		return ErrLeaseLost
	}
	var held, cancelled bool
	err := q.QueryRow(ctx, attemptHeldSQL, g.attempt.ID, g.attempt.AttemptedAt).Scan(&held, &cancelled)
	switch {
	case err != nil:
		return err
	case held && cancelled:
		return ErrJobCancelled
	case held && g.lock != nil:
		return ErrBusy
	}
	return ErrJobLost
}
