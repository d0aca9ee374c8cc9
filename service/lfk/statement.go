package lfk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// One task for some keys of a batch (step 2): a statement, and the handling of keys that it does
// not complete.

// taskRun is one task on the keys of one batch, over all passes.
type taskRun struct {
	*cleanup
	batch *batch
	task  *childTask
	// changed counts the rows that the statements have changed.
	changed int64
	// kept are the keys to hold, set by the first statement that meets a protected row.
	kept keptKeys
	// failing and timeouts count the statements spent on isolating a fault.
	failing, timeouts int
}

// apply moves every key past the task, or leaves it there if it has more rows than its share or a
// limit is reached. Its error ends the run.
func (c *cleanup) apply(ctx context.Context, b *batch, task *childTask, keys []*openKey) error {
	if err := c.down(task); err != nil {
		c.failKeys(ctx, task, keys, err, false)
		return nil
	}
	if keys = c.failMismatched(ctx, task, keys); len(keys) == 0 {
		return nil
	}
	t := b.taskRuns[task]
	if t == nil {
		t = &taskRun{cleanup: c, batch: b, task: task}
		b.taskRuns[task] = t
	}
	return t.try(ctx, keys)
}

// failMismatched fails the keys whose number of values differs from the definition's columns, and
// returns the others.
func (c *cleanup) failMismatched(ctx context.Context, task *childTask, keys []*openKey) []*openKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k *openKey) bool {
		err := task.child.CheckKey(k.key)
		if err != nil {
			c.failKeys(ctx, task, []*openKey{k}, err, false)
		}
		return err != nil
	})
}

// group is a set of keys with a statement of their own. cause is the fault that separated them from
// others, or nil.
type group struct {
	keys  []*openKey
	cause error
}

// again retries keys.
func again(keys []*openKey) []group { return []group{{keys: keys}} }

// halves splits keys because of a fault. The first half comes first.
func halves(keys []*openKey, cause error) []group {
	middle := len(keys) / 2
	return []group{{keys[middle:], cause}, {keys[:middle], cause}}
}

// try sends the statement for the keys, and for fewer of them if it cannot do all at once.
func (t *taskRun) try(ctx context.Context, keys []*openKey) error {
	for groups := again(keys); len(groups) > 0 && !t.checkLimits(); {
		g := groups[len(groups)-1]
		groups = groups[:len(groups)-1]
		if t.spent() && g.cause != nil {
			t.failKeys(ctx, t.task, g.keys, g.cause, false)
			continue
		}
		more, err := t.step(ctx, g.keys)
		if err != nil {
			return err
		}
		groups = append(groups, more...)
	}
	return nil
}

// step sends one statement for the keys, and returns which to retry.
func (t *taskRun) step(ctx context.Context, keys []*openKey) ([]group, error) {
	if n := t.fitting(keys); n < len(keys) {
		return []group{{keys: keys[n:]}, {keys: keys[:n]}}, nil
	}
	m, guess := t.mode(keys)
	r, err := t.purge(ctx, keys, purged{mode: m, uncounted: guess, lock: bulk.LockTime})
	if keys = unsettled(keys); len(keys) == 0 || isQueueError(err) {
		return nil, err
	}
	switch class := classOf(err); {
	case guess && err != nil && class != dberr.ClassLock && !errors.Is(err, errNoBudget):
		t.task.guessFailed()
		return again(keys), nil
	case err == nil && m == everything && r.Found > r.cap:
		t.share(keys)
		return again(keys), nil
	case err == nil && r.Found == r.Changed && r.capReached(len(keys)):
		return t.rotateKeys(ctx, keys, r)
	case err == nil && r.Found == r.Changed:
		t.advanceDone(keys, r)
		return nil, nil
	case err == nil || class == dberr.ClassLock:
		return t.awaitLocks(ctx, keys, r, err)
	case class == dberr.ClassTimeout && r.cap == 1 && len(keys) == 1:
		t.failKeys(ctx, t.task, keys, err, true)
		return nil, nil
	case class == dberr.ClassTimeout:
		return t.shrink(ctx, keys, r, err), nil
	}
	return t.isolate(ctx, keys, err)
}

// maxParts is the maximum number of statements that the keys of a batch are split into. More rows
// than that take shares, so that all keys progress.
const maxParts = 8

// fitting returns how many of the keys are likely to fit into one statement. All of them count as
// fitting if their number of rows is unknown, or if their rows are shared.
func (t *taskRun) fitting(keys []*openKey) int {
	rows, expected := float64(t.rows()), t.task.expected(len(keys))
	if expected <= rows || expected > maxParts*rows || anyLarge(keys) {
		return len(keys)
	}
	return max(1, int(float64(len(keys))*rows*3/4/expected))
}

// mode returns the mode of the next statement for the keys, by their likely number of rows. guess:
// they are likely to fit, so that counting them first is not required.
func (t *taskRun) mode(keys []*openKey) (m mode, guess bool) {
	expected := t.task.expected(len(keys))
	if expected > float64(t.rows()) {
		t.share(keys)
	}
	if anyLarge(keys) {
		return shares, false
	}
	guess = expected > 0 && expected <= float64(t.budget.left(t.task)) && !t.task.child.MayKeep() && t.task.mayGuess()
	return everything, guess
}

// anyLarge reports whether any of the keys gets a share.
func anyLarge(keys []*openKey) bool {
	return slices.ContainsFunc(keys, func(k *openKey) bool { return k.large })
}

// share gives each of the keys a share of the statements, since their rows do not fit into one.
func (t *taskRun) share(keys []*openKey) {
	for _, k := range keys {
		k.large = true
	}
}

// mode selects the rows of a statement.
type mode int

const (
	// everything: all rows of all keys, if they fit under the cap.
	everything mode = iota
	// shares: for each key up to the cap divided by the number of keys.
	shares
	// skipping: shares, without the rows locked by other transactions.
	skipping
)

// purged is a statement and its result.
type purged struct {
	lfk.PurgeResult
	mode mode
	// uncounted: the rows are not counted first. If they exceed the cap nothing is changed.
	uncounted bool
	// lock is the lock timeout.
	lock time.Duration
	// cap is the maximum number of the statement's rows, perKey of a key's (0: none).
	cap, perKey int64
	// removal: a complete statement also removes the records of the keys.
	removal bool
	// took is the duration of the statement.
	took time.Duration
}

// gotShare reports whether a key got its share, and may have more rows.
func (r purged) gotShare(k *openKey) bool { return r.perKey > 0 && r.Shares[k.key] >= r.perKey }

// gotRows reports whether a key got any rows.
func (r purged) gotRows(k *openKey) bool { return r.Shares[k.key] > 0 }

// capReached reports whether the cap was reached before all keys got a share: the last got none.
func (r purged) capReached(keys int) bool {
	return r.perKey > 0 && r.Found >= r.cap && r.perKey*int64(keys) > r.cap
}

// errNoBudget means that a row limit is reached. checkLimits detects it.
var errNoBudget = errors.New("row limit reached")

// rows returns the maximum number of rows of a statement. The limits of the run may allow fewer.
func (t *taskRun) rows() int64 {
	if limit := int64(t.task.key.DeleteLimit); limit > 0 {
		return min(t.sizes.Get(t.task), limit)
	}
	return t.sizes.Get(t.task)
}

// livingAttempts is the maximum number of tries of a statement that finds a parent alive. A trigger
// of the child may insert the parent again each time: then the key is isolated and held.
const livingAttempts = 3

// purge sends one statement within the remaining limits and accounts for it.
func (t *taskRun) purge(ctx context.Context, keys []*openKey, r purged) (_ purged, err error) {
	var release func(int64)
	r.cap, release = t.budget.reserve(t.task, t.rows())
	changed := int64(0)
	defer func() { release(changed) }()
	if r.cap <= 0 {
		return r, errNoBudget
	}
	for attempt := 1; ; attempt++ {
		if r.mode != everything {
			r.perKey = max(1, r.cap/int64(len(keys)))
		}
		switch err = t.send(ctx, keys, &r); {
		case errors.Is(err, dberr.ErrLivingParent) && attempt < livingAttempts:
			// Nothing was changed. The statement is sent again without the keys of living parents.
			// Other batches check their parents before they change anything.
			t.batch.living.Store(true)
			err = t.settle(ctx, t.batch, keys)
		case err == nil:
			changed = r.Changed
			t.account(ctx, keys, r)
			return r, nil
		}
		r.PurgeResult = lfk.PurgeResult{}
		if keys = unsettled(keys); err != nil || len(keys) == 0 {
			return r, err
		}
		if t.checkLimits() {
			return r, errNoBudget
		}
	}
}

// send sends a statement with a limit of rows.
func (t *taskRun) send(ctx context.Context, keys []*openKey, r *purged) (err error) {
	child := t.task.child
	permit, err := t.x.Permit(ctx, repo.Of(child.Database), child.Table(), t.limits(*r, len(keys)))
	if err != nil {
		return err
	}
	defer permit.End(&err)
	p := lfk.Purge{
		Permit: permit.Permit, Keys: recordedKeys(keys), Cap: r.cap, Uncounted: r.uncounted,
		Approved: approvedKeys(keys),
	}
	began := time.Now()
	if r.mode == everything {
		var records []lfk.Record
		if r.cap > 0 {
			records = t.removable(keys)
		}
		r.removal = len(records) > 0
		r.PurgeResult, err = child.PurgeAll(ctx, p, t.queue, records)
	} else {
		r.PurgeResult, err = child.PurgeShares(ctx, p, r.perKey, r.mode == skipping)
	}
	r.took = time.Since(began)
	return err
}

// empty sends the statement of a result for no row, and returns the duration. Such a statement ends
// with the first row. So if the keys have few rows in many partitions, the time of the search is
// added. A statement that counts the rows before it changes them searches twice.
func (t *taskRun) empty(
	ctx context.Context, keys []*openKey, r purged,
) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		none := purged{mode: r.mode, lock: r.lock, perKey: r.perKey}
		err := t.send(ctx, keys, &none)
		if err != nil || r.Found > int64(len(keys)) {
			return none.took, err
		}
		began := time.Now()
		_, err = t.task.child.Count(ctx, recordedKeys(keys), int64(len(keys))+1, bulk.ProbeLimits())
		search := time.Since(began)
		if r.mode == everything && !r.uncounted {
			search *= 2
		}
		return none.took + search, err
	}
}

// limits returns the limits of a statement for a number of keys.
func (t *taskRun) limits(r purged, keys int) fencing.Limits {
	l := fencing.Limits{Statement: t.sizes.Time(t.task), Lock: r.lock}
	if r.cap == 0 || r.cap == 1 && keys == 1 {
		l.Statement = bulk.SingleRowTime
	}
	if r.waits() {
		l.Statement += l.Lock
	}
	return l
}

// waits reports whether it waits for locked rows.
func (r purged) waits() bool { return r.lock > bulk.LockTime }

// removable returns the records that this statement also removes if it completes their keys. It
// must be their last statement and run in the queue's own database. All records must be of one
// table, and no absent child may hold them.
func (t *taskRun) removable(keys []*openKey) (records []lfk.Record) {
	last := t.task == t.batch.tasks[len(t.batch.tasks)-1]
	if !last || t.task.child.Database != t.x.Database.Database || len(t.batch.absent) > 0 {
		return nil
	}
	for _, k := range keys {
		if !k.keepsRecords() {
			records = append(records, k.records...)
		}
	}
	if slices.ContainsFunc(records, func(r lfk.Record) bool { return r.Queue != records[0].Queue }) {
		return nil // those of several queues end together, in a statement of their own
	}
	return records
}

// account counts the rows of a statement, and learns from its duration.
func (t *taskRun) account(ctx context.Context, keys []*openKey, r purged) {
	t.addWorked(t.task)
	capped := false
	for _, n := range r.Shares {
		capped = capped || n >= r.perKey
	}
	if r.mode == everything {
		capped = r.Found <= r.cap && 2*r.Found > r.cap
	}
	t.changed += r.Changed
	t.x.Count(ctx, "processed_records", r.Removed)
	if t.task.deletes() {
		t.x.Count(ctx, "deleted_rows", r.Changed)
		t.x.Changed(t.task.key.Table, r.Changed, 0)
	} else {
		t.x.Count(ctx, "updated_rows", r.Changed)
		t.x.Changed(t.task.key.Table, 0, r.Changed)
	}
	if !r.waits() {
		t.sizes.Learn(t.task, bulk.Statement{
			Took: r.took, Limit: r.cap, Found: r.Found, Capped: capped, Empty: t.empty(ctx, keys, r),
		})
	}
}

// advanceDone moves the keys on that have no more rows, after a statement that changed all rows
// that it found. The others stay for the next pass.
func (t *taskRun) advanceDone(keys []*openKey, r purged) {
	for _, k := range keys {
		if !r.gotShare(k) {
			k.removed = r.removal && !k.keepsRecords()
			k.advance()
		}
	}
}

// rotateKeys moves keys without more rows on. Those that got none are first in the next pass.
func (t *taskRun) rotateKeys(ctx context.Context, keys []*openKey, r purged) ([]group, error) {
	t.batch.moveToEnd(r.gotRows)
	_, err := t.advance(ctx, t.task, keys)
	if err != nil && classOf(err) != dberr.ClassLock {
		return t.afterError(ctx, keys, r, err)
	}
	return nil, nil
}
