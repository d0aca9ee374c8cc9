package repo

import (
	"context"
	"errors"
	"strconv"
)

// ErrBusy means that somebody else holds the advisory lock of a [Guard]; the transaction changed nothing.
var ErrBusy = errors.New("somebody else is at work on it")

// Guard is what must hold for a write transaction to change anything: the fence of a run, an advisory lock, or, as the
// zero value, nothing.
type Guard struct {
	fence *Fence
	lock  *int64
}

// Guard lets only the holder of the lease write; else the error is [ErrLeaseLost].
func (f Fence) Guard() Guard { return Guard{fence: &f} }

// AdvisoryLock lets one transaction at a time write that uses this key; where another one is at work the error is
// [ErrBusy]. The lock goes with the transaction.
func AdvisoryLock(key int64) Guard { return Guard{lock: &key} }

const (
	tryLockSQL = `guard AS MATERIALIZED (SELECT 1 AS held WHERE pg_try_advisory_xact_lock($1))`
	openSQL    = `guard AS MATERIALIZED (SELECT 1 AS held)`
	fencedSQL  = fenceSQL + `,
guard AS MATERIALIZED (SELECT held FROM fence)`
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
	case g.lock != nil:
		*p = append(*p, *g.lock)
		return tryLockSQL
	}
	return openSQL
}

// refused is the error of a statement whose guard did not hold.
func (g Guard) refused() error {
	if g.lock != nil {
		return ErrBusy
	}
	return ErrLeaseLost
}

// guarded runs one statement under a guard; its row begins with whether the guard held.
func (d *Database) guarded(ctx context.Context, operation string, g Guard, l Limits, into []any, sql string, p parameters) error {
	var held bool
	err := d.bounded(ctx, operation, l, append([]any{&held}, into...), sql, p...)
	if err == nil && !held {
		return g.refused()
	}
	return err
}
