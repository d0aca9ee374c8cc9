package repo

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// ErrBusy means that somebody else holds the advisory lock of a [Guard]; the transaction changed nothing.
var ErrBusy = errors.New("somebody else is at work on it")

// Guard is what must hold for a write transaction to change anything: the fence of a run; an attempt of a job, an
// advisory lock, or both; or, as the zero value, nothing.
type Guard struct {
	fence   *Fence
	attempt *AttemptOf
	lock    *int64
	// part is the key of a second lock, that of a part of what lock stands for.
	part *int64
}

// Guard lets only the holder of the lease write; else the error is [ErrLeaseLost].
func (f Fence) Guard() Guard { return Guard{fence: &f} }

// AdvisoryLock lets one transaction at a time write that uses this key; where another one is at work the error is
// [ErrBusy]. The lock goes with the transaction.
func AdvisoryLock(key int64) Guard { return Guard{lock: &key} }

// Guard lets an attempt write only while the job is still its own; else the error is [ErrJobLost].
func (a AttemptOf) Guard() Guard { return Guard{attempt: &a} }

// WithLock asks for the advisory lock too, as [AdvisoryLock] does.
func (g Guard) WithLock(key int64) Guard {
	g.lock = &key
	return g
}

// WithPart asks for a second advisory lock besides that of WithLock or [AdvisoryLock], without which it is nothing. That
// two wait for each other cannot be: nobody waits.
func (g Guard) WithPart(key int64) Guard {
	g.part = &key
	return g
}

const (
	tryLockSQL = `guard AS MATERIALIZED (SELECT 1 AS held WHERE pg_try_advisory_xact_lock($1) AND pg_try_advisory_xact_lock($2))`
	openSQL    = `guard AS MATERIALIZED (SELECT 1 AS held)`
	fencedSQL  = fenceSQL + `,
guard AS MATERIALIZED (SELECT held FROM fence)`

	// attemptSQL keeps the row of a running attempt, which its time identifies. River's rescue of a job is an UPDATE of the
	// row: it waits for the commit. So does whoever inserts the same unique job.
	attemptSQL = `attempt AS MATERIALIZED (
  SELECT 1 AS held FROM maintenance.river_job WHERE id = $1 AND state = 'running' AND attempted_at = $2 FOR SHARE
)`
	attemptedSQL = attemptSQL + `,
guard AS MATERIALIZED (SELECT held FROM attempt)`
	attemptedLockSQL = attemptSQL + `,
guard AS MATERIALIZED (SELECT held FROM attempt WHERE pg_try_advisory_xact_lock($3) AND pg_try_advisory_xact_lock($4))`
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
		if same, is := known.([]string); is && len(same) == len(values) && len(values) > 0 && &same[0] == &values[0] {
			return "$" + strconv.Itoa(i+1)
		}
	}
	return p.add(values)
}

// sql is the CTE "guard", of one row with held = 1 or of none. It must be the first part of a statement.
func (g Guard) sql(p *parameters) string {
	switch {
	case g.fence != nil:
		*p = append(*p, g.fence.Name, g.fence.Holder, g.fence.Epoch)
		return fencedSQL
	case g.attempt != nil && g.lock != nil:
		*p = append(*p, g.attempt.ID, g.attempt.AttemptedAt, *g.lock, *cmp.Or(g.part, g.lock))
		return attemptedLockSQL
	case g.attempt != nil:
		*p = append(*p, g.attempt.ID, g.attempt.AttemptedAt)
		return attemptedSQL
	case g.lock != nil:
		*p = append(*p, *g.lock, *cmp.Or(g.part, g.lock))
		return tryLockSQL
	}
	return openSQL
}

// queryer is a pool or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const attemptHeldSQL = `SELECT EXISTS (SELECT FROM maintenance.river_job WHERE id = $1 AND state = 'running' AND attempted_at = $2)`

// refused is the error of a statement whose guard did not hold. Of an attempt that needs a lock it looks which of them
// was missing.
func (g Guard) refused(ctx context.Context, q queryer) error {
	switch {
	case g.fence != nil:
		return ErrLeaseLost
	case g.attempt == nil:
		return ErrBusy
	case g.lock == nil:
		return ErrJobLost
	}
	var held bool
	err := q.QueryRow(ctx, attemptHeldSQL, g.attempt.ID, g.attempt.AttemptedAt).Scan(&held)
	switch {
	case err != nil:
		return err
	case held:
		return ErrBusy
	}
	return ErrJobLost
}

// check is the statement that holds a guard until the end of its transaction: a row that says whether it could.
func (g Guard) check() statement {
	var p parameters
	sql := "WITH " + g.sql(&p) + " SELECT EXISTS (SELECT FROM guard)"
	return statement{sql, p}
}

// guarded runs one statement under a guard; its row begins with whether the guard held.
func (d *Database) guarded(ctx context.Context, operation string, g Guard, l Limits, into []any, sql string, p parameters) error {
	var held bool
	err := d.bounded(ctx, operation, l, append([]any{&held}, into...), sql, p...)
	if err == nil && !held {
		return d.wrap(ctx, operation, g.refused(ctx, d.pool))
	}
	return err
}
