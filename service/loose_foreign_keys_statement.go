package service

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// One definition on one home for some keys of a batch: a statement, and what to do when it does not complete them all
// (loose_foreign_keys_cleanup.md 3.4, 3.5, 3.7).

const (
	statementTime = time.Second
	singleRowTime = 10 * time.Second
	lockTime      = 10 * time.Millisecond
	longLockTime  = time.Second
	// maxFailing and maxTimeouts bound the statements spent on isolating a fault, a definition and batch.
	maxFailing  = 64
	maxTimeouts = 16
)

// attempt is the work of one definition on the keys of one batch.
type attempt struct {
	*cleanup
	batch             *batch
	step              *step
	failing, timeouts int
}

// apply brings every key past the step, or leaves it there because it has more rows than its share or a limit is
// reached. Its error ends the run.
func (c *cleanup) apply(ctx context.Context, b *batch, s *step, keys []*openKey) error {
	if err := c.down(s); err != nil {
		c.failKeys(s, keys, err, false)
		return nil
	}
	a := &attempt{cleanup: c, batch: b, step: s}
	return a.try(ctx, keys)
}

// try runs the statement for the keys; what it cannot do for all at once it does for halves.
func (a *attempt) try(ctx context.Context, keys []*openKey) error {
	for !a.checkLimits() {
		result, share, err := a.purge(ctx, keys, waitShortly)
		switch class := a.classify(err); {
		case err == nil && result.Complete:
			a.pass(keys, result, share)
			return nil
		case err == nil && result.all():
			return nil
		case err == nil || class == repo.ClassLock:
			return a.contend(ctx, keys, result, share, err)
		case class == repo.ClassTimeout && share.rows == 1 && len(keys) == 1:
			a.failKeys(a.step, keys, err, true)
			return nil
		case class == repo.ClassTimeout:
			if again, err := a.shrink(ctx, keys, share, err); !again {
				return err
			}
		default:
			return a.refuse(ctx, keys, err, class)
		}
	}
	return nil
}

// share is how the rows of a statement were divided.
type share struct {
	// rows is the cap of the statement, perKey that of a key.
	rows, perKey int64
}

// lockMode is how a statement behaves towards rows that somebody else has locked.
type lockMode int

const (
	waitShortly lockMode = iota
	waitLong
	skipLocked
)

// purgeResult adds to repo's how many rows were found.
type purgeResult struct {
	repo.PurgeResult
	total int64
}

// all rows that were found have been changed: whatever is left did not fit under the cap.
func (r purgeResult) all() bool { return r.total == r.Changed }

// purge sends one statement within what is left of the limits and accounts for it.
func (a *attempt) purge(ctx context.Context, keys []*openKey, mode lockMode) (result purgeResult, sh share, err error) {
	want := a.sizes.get(a.step)
	if limit := int64(a.step.key.DeleteLimit); limit > 0 {
		want = min(want, limit)
	}
	kind := actionOf(a.step.key)
	granted := a.budget.reserve(kind, want)
	if granted == 0 {
		return result, sh, errNoBudget
	}
	defer func() { a.budget.settle(kind, granted, result.Changed) }()
	sh = share{rows: granted, perKey: max(1, granted/int64(len(keys)))}
	p := repo.Purge{Keys: numbers(keys), PerKey: sh.perKey, Cap: granted, SkipLocked: mode == skipLocked, Queue: a.queue}
	if all := sh.perKey * int64(len(keys)); all <= granted {
		// The share of each key already keeps the cap; a statement that reaches it has still looked at every key.
		p.Cap = all + 1
	}
	if mode == waitShortly {
		p.Records = a.removable(keys)
	}
	began := time.Now()
	err = a.x.Write(ctx, a.step.child.Database, a.limits(mode, sh, len(keys)), func(f repo.Fence, l repo.Limits) error {
		p.Fence, p.Limits = f, l
		result.PurgeResult, err = a.step.child.Purge(ctx, p)
		return err
	})
	if err != nil {
		return result, sh, err
	}
	a.account(ctx, &result, sh, time.Since(began))
	return result, sh, nil
}

// errNoBudget means that a row limit is reached; checkLimits has seen it, or will.
var errNoBudget = errors.New("row limit reached")

func (a *attempt) limits(mode lockMode, sh share, keys int) repo.Limits {
	l := repo.Limits{Statement: statementTime, Lock: lockTime}
	if sh.rows == 1 && keys == 1 {
		l.Statement = singleRowTime
	}
	if mode == waitLong {
		l.Lock = max(lockTime, min(longLockTime, a.x.Left()))
		l.Statement += l.Lock
	}
	return l
}

// removable are the records that go with this statement if it completes their keys: it is their last, in the queue's
// own database, and nothing else speaks against it.
func (a *attempt) removable(keys []*openKey) (records []repo.Record) {
	if a.step != a.batch.steps[len(a.batch.steps)-1] || a.step.child.Database != a.x.Database {
		return nil
	}
	for _, k := range keys {
		if !k.flagged() {
			records = append(records, k.records...)
		}
	}
	return records
}

func (a *attempt) account(ctx context.Context, r *purgeResult, sh share, took time.Duration) {
	capped := false
	for _, n := range r.Found {
		r.total += n
		capped = capped || n >= sh.perKey
	}
	a.sizes.observe(a.step, took, sh.rows, r.total, capped)
	a.x.Count(ctx, "processed_records", r.Removed)
	if actionOf(a.step.key) == deletes {
		a.x.Count(ctx, "deleted_rows", r.Changed)
		a.x.Changed(a.step.key.Table, r.Changed, 0)
	} else {
		a.x.Count(ctx, "updated_rows", r.Changed)
		a.x.Changed(a.step.key.Table, 0, r.Changed)
	}
}

// pass lets the keys go on that a complete statement has no more rows of. If it was their last, their records went
// with it.
func (a *attempt) pass(keys []*openKey, r purgeResult, sh share) {
	fused := len(a.removable(keys)) > 0
	for _, k := range keys {
		if r.Found[k.key] < sh.perKey {
			k.at++
			k.removed = fused && !k.flagged()
		}
	}
}

// contend is for keys some rows of which somebody else holds, or has changed under us: rows that are free now, then
// waiting for the others, then those that have become free. Keys that still have rows are locked.
func (a *attempt) contend(ctx context.Context, keys []*openKey, result purgeResult, sh share, err error) error {
	for i, mode := range []lockMode{skipLocked, waitLong, skipLocked} {
		if i > 0 || err != nil {
			result, sh, err = a.purge(ctx, keys, mode)
			if err = a.tolerate(err); err != nil {
				return a.otherwise(ctx, keys, err)
			}
		}
		remaining, err := a.remaining(ctx, a.step, keys)
		if err = a.tolerate(err); err != nil {
			return a.otherwise(ctx, keys, err)
		}
		if remaining != nil {
			advance(keys, remaining)
			keys = still(keys, remaining)
		}
		if mode == skipLocked {
			// A key that had its full share is not locked but large: its turn comes in the next pass.
			keys = withoutFullShare(keys, result.Found, sh)
		}
		if len(keys) == 0 || a.checkLimits() {
			return nil
		}
	}
	for _, k := range keys {
		k.locked = true
		k.at++
	}
	return nil
}

// tolerate passes over what contend is there for: locks that are not granted in time.
func (a *attempt) tolerate(err error) error {
	if a.classify(err) == repo.ClassLock {
		return nil
	}
	return err
}

// otherwise is for errors of the statements of contend that are no locks.
func (a *attempt) otherwise(ctx context.Context, keys []*openKey, err error) error {
	class := a.classify(err)
	if class == repo.ClassTimeout {
		_, err = a.shrink(ctx, keys, share{rows: a.sizes.get(a.step)}, err)
		return err
	}
	return a.refuse(ctx, keys, err, class)
}

// remaining are the keys that still have rows at a step.
func (c *cleanup) remaining(ctx context.Context, s *step, keys []*openKey) (map[int64]bool, error) {
	left, err := s.child.Remaining(ctx, numbers(keys), repo.Limits{Statement: statementTime, Lock: lockTime})
	if err != nil {
		return nil, err
	}
	remaining := make(map[int64]bool, len(left))
	for _, key := range left {
		remaining[key] = true
	}
	return remaining, nil
}

func still(keys []*openKey, remaining map[int64]bool) (out []*openKey) {
	for _, k := range keys {
		if remaining[k.key] {
			out = append(out, k)
		}
	}
	return out
}

func withoutFullShare(keys []*openKey, found map[int64]int64, sh share) (out []*openKey) {
	for _, k := range keys {
		if found[k.key] < sh.perKey {
			out = append(out, k)
		}
	}
	return out
}

func numbers(keys []*openKey) []int64 {
	out := make([]int64, len(keys))
	for i, k := range keys {
		out[i] = k.key
	}
	return out
}
