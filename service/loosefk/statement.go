package loosefk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// One definition on one home for some keys of a batch (step 2): a statement, and what to do when it
// does not complete them all.

// attempt is the work of one definition on one home on the keys of one batch, over all passes.
type attempt struct {
	*cleanup
	batch *batch
	step  *step
	// failing and timeouts count the statements spent on isolating a fault.
	failing, timeouts int
}

// apply brings every key past the step, or leaves it there because it has more rows than its share
// or a limit is reached. Its error ends the run.
func (c *cleanup) apply(ctx context.Context, b *batch, s *step, keys []*openKey) error {
	if err := c.down(s); err != nil {
		c.failKeys(ctx, s, keys, err, false)
		return nil
	}
	a := b.attempts[s]
	if a == nil {
		a = &attempt{cleanup: c, batch: b, step: s}
		b.attempts[s] = a
	}
	return a.try(ctx, keys)
}

// try runs the statement for the keys; what it cannot do for all at once it does for halves.
func (a *attempt) try(ctx context.Context, keys []*openKey) error {
	for !a.checkLimits() {
		m := everything
		if slices.ContainsFunc(keys, func(k *openKey) bool { return k.large }) {
			m = shares
		}
		r, err := a.purge(ctx, keys, m)
		switch class := classOf(err); {
		case err == nil && m == everything && r.Found > r.cap:
			for _, k := range keys {
				k.large = true
			}
		case err == nil && r.Found == r.Changed && r.cutOff(len(keys)):
			return a.takeTurns(ctx, keys, r)
		case err == nil && r.Found == r.Changed:
			a.pass(keys, r)
			return nil
		case err == nil || class == repo.ClassLock:
			return a.awaitLocks(ctx, keys, r, err)
		case class == repo.ClassTimeout && r.cap == 1 && len(keys) == 1:
			a.failKeys(ctx, a.step, keys, err, true)
			return nil
		case class == repo.ClassTimeout:
			if again, err := a.shrink(ctx, keys, r.cap, err); !again {
				return err
			}
		default:
			return a.isolate(ctx, keys, err)
		}
	}
	return nil
}

// mode is which rows a statement takes, and how it behaves towards those that somebody else has
// locked.
type mode int

const (
	// everything: all rows of all keys if they fit under the cap.
	everything mode = iota
	// shares: as many rows of each key as the cap divided by the keys.
	shares
	// waiting and skipping are shares for keys whose rows are locked.
	waiting
	skipping
)

// purged is the result of a statement and what it was allowed.
type purged struct {
	repo.PurgeResult
	// cap of the statement's rows, perKey that of a key's (0: none).
	cap, perKey int64
	// removal: the records of the keys went with the statement if it was complete.
	removal bool
}

// full says whether a key got its share, and may have more rows.
func (r purged) full(k *openKey) bool { return r.perKey > 0 && r.Shares[k.key] >= r.perKey }

// served says whether a key got anything.
func (r purged) served(k *openKey) bool { return r.Shares[k.key] > 0 }

// cutOff says that the cap was reached before all keys had got their share: the last ones got none.
func (r purged) cutOff(keys int) bool {
	return r.perKey > 0 && r.Found >= r.cap && r.perKey*int64(keys) > r.cap
}

// errNoBudget means that a row limit is reached; checkLimits has seen it, or will.
var errNoBudget = errors.New("row limit reached")

// purge sends one statement within what is left of the limits and accounts for it.
func (a *attempt) purge(ctx context.Context, keys []*openKey, m mode) (r purged, err error) {
	want := a.sizes.Get(a.step)
	if limit := int64(a.step.key.DeleteLimit); limit > 0 {
		want = min(want, limit)
	}
	r.cap = a.budget.reserve(a.step, want)
	if r.cap == 0 {
		return r, errNoBudget
	}
	defer func() { a.budget.spend(a.step, r.cap, r.Changed) }()
	if m != everything {
		r.perKey = max(1, r.cap/int64(len(keys)))
	}
	took, err := a.send(ctx, keys, m, &r)
	if err != nil {
		r.PurgeResult = repo.PurgeResult{}
		return r, err
	}
	a.account(ctx, r, m, took)
	return r, nil
}

// send sends a statement of so many rows, and says how long it took.
func (a *attempt) send(
	ctx context.Context, keys []*openKey, m mode, r *purged,
) (took time.Duration, err error) {
	child := a.step.child
	limits := a.limits(m, r.cap, len(keys))
	permit, err := a.x.Permit(ctx, child.Database, child.Table(), limits)
	if err != nil {
		return 0, err
	}
	defer permit.End(&err)
	p, began := repo.Purge{Permit: permit.Permit, Keys: numbers(keys), Cap: r.cap}, time.Now()
	if m == everything {
		records := a.removable(keys)
		r.removal = len(records) > 0
		r.PurgeResult, err = child.PurgeAll(ctx, p, a.queue, records)
	} else {
		r.PurgeResult, err = child.PurgeShares(ctx, p, r.perKey, m == skipping)
	}
	return time.Since(began), err
}

func (a *attempt) limits(m mode, rows int64, keys int) repo.Limits {
	l := repo.Limits{Statement: bulk.StatementTime, Lock: bulk.LockTime}
	if rows == 1 && keys == 1 {
		l.Statement = bulk.SingleRowTime
	}
	if m == waiting {
		l.Lock = max(bulk.LockTime, min(bulk.LongLockTime, a.x.Left()))
		l.Statement += l.Lock
	}
	return l
}

// removable are the records that go with this statement if it completes their keys: it is their
// last, in the queue's own database, and nothing else speaks against it.
func (a *attempt) removable(keys []*openKey) (records []repo.Record) {
	last := a.step == a.batch.steps[len(a.batch.steps)-1]
	if !last || a.step.child.Database != a.x.Database || len(a.batch.absent) > 0 {
		return nil
	}
	for _, k := range keys {
		if !k.flagged() {
			records = append(records, k.records...)
		}
	}
	return records
}

// account counts what a statement has done, and learns from the time it took.
func (a *attempt) account(ctx context.Context, r purged, m mode, took time.Duration) {
	a.addWorked(a.step)
	capped := false
	for _, n := range r.Shares {
		capped = capped || n >= r.perKey
	}
	if m != waiting {
		a.sizes.Observe(a.step, took, r.cap, r.Found, capped)
	}
	a.x.Count(ctx, "processed_records", r.Removed)
	if a.step.deletes() {
		a.x.Count(ctx, "deleted_rows", r.Changed)
		a.x.Changed(a.step.key.Table, r.Changed, 0)
	} else {
		a.x.Count(ctx, "updated_rows", r.Changed)
		a.x.Changed(a.step.key.Table, 0, r.Changed)
	}
}

// pass lets the keys go on that have no more rows, after a statement that changed all rows it
// found. The others stay for the next pass.
func (a *attempt) pass(keys []*openKey, r purged) {
	for _, k := range keys {
		if !r.full(k) {
			k.removed = r.removal && !k.flagged()
			k.next()
		}
	}
}

// takeTurns lets the keys go on that have no more rows, and those that got none be the first of the
// next pass.
func (a *attempt) takeTurns(ctx context.Context, keys []*openKey, r purged) error {
	a.batch.moveBehind(r.served)
	_, err := a.advance(ctx, a.step, keys)
	if err != nil && classOf(err) != repo.ClassLock {
		return a.afterError(ctx, keys, err)
	}
	return nil
}

// awaitLocks is for keys some rows of which somebody else holds, or has changed under us: rows that
// are free now, then waiting for the others, then those that have become free. Keys that still have
// rows are locked, unless that is only because the cap was reached. r and err are those of the
// statement that met the locks.
func (a *attempt) awaitLocks(ctx context.Context, keys []*openKey, r purged, err error) error {
	var asked int
	for i, m := range []mode{skipping, waiting, skipping} {
		asked = len(keys)
		if i > 0 || err != nil {
			r, err = a.purge(ctx, keys, m)
			if err != nil && classOf(err) != repo.ClassLock {
				return a.afterError(ctx, keys, err)
			}
		}
		switch left, err := a.advance(ctx, a.step, keys); {
		case err == nil:
			keys = left
		case classOf(err) != repo.ClassLock:
			return a.afterError(ctx, keys, err)
		}
		if m == skipping && r.Changed > 0 {
			if r.cutOff(asked) {
				a.batch.moveBehind(r.served)
				return nil
			}
			// A key that had its full share is not locked but large: its turn comes in the next pass.
			keys = slices.DeleteFunc(slices.Clone(keys), r.full)
		}
		if len(keys) == 0 || a.checkLimits() {
			return nil
		}
	}
	if len(r.Kept) > 0 {
		others, kept, err := a.failKept(ctx, keys, r)
		if err != nil {
			return a.afterError(ctx, keys, err)
		}
		if keys = others; kept && r.cutOff(asked) {
			return nil
		}
	}
	for _, k := range keys {
		k.locked = a.step
		k.next()
	}
	return nil
}
