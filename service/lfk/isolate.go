package lfk

import (
	"context"
	"errors"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// If the database has refused or cut off a statement, the fault is isolated. So the other keys
// continue and only the faulty keys fail. Keys with rows locked by other transactions get one more
// try.

const (
	// maxFailing and maxTimeouts limit the statements spent on isolating a fault, per definition
	// and batch. Keys not isolated by then fail without being counted.
	maxFailing  = 64
	maxTimeouts = 16
)

// failKeys marks the keys as failed and moves them to the other definitions. The first failure of a
// key counts, but a failure of its own counts more.
func (c *cleanup) failKeys(
	ctx context.Context, task *childTask, keys []*openKey, err error, isolated bool,
) {
	f := newFailure(task, err, isolated)
	records := 0
	for _, k := range keys {
		records += len(k.records)
		if k.failure == nil || (isolated && !k.failure.isolated) {
			k.failure = f
		}
		k.advance()
	}
	c.addFailure(ctx, f, records, err)
}

// classOf returns the class that decides how to handle an error. isolate returns an error that must
// end the run.
func classOf(err error) dberr.Class {
	var refused *dberr.Error
	switch {
	case errors.As(err, &refused):
		return refused.Class()
	case errors.Is(err, dberr.ErrUnreachable):
		return dberr.ClassUnreachable
	}
	return dberr.ClassData
}

// afterError handles errors other than locks, of a change or of the query for remaining rows.
func (t *taskRun) afterError(
	ctx context.Context, keys []*openKey, r purged, err error,
) ([]group, error) {
	if classOf(err) == dberr.ClassTimeout {
		r.cap, r.took = t.sizes.Get(t.task), max(r.took, t.sizes.Time(t.task))
		return t.shrink(ctx, keys, r, err), nil
	}
	return t.isolate(ctx, keys, err)
}

// shrink makes the statement smaller after a timeout: fewer rows and, once rows do not exceed keys,
// fewer keys. It returns the keys to retry.
func (t *taskRun) shrink(ctx context.Context, keys []*openKey, r purged, err error) []group {
	t.timeouts++
	moreTime := t.sizes.Learn(t.task, bulk.Statement{
		Took: r.took, TimedOut: true, Limit: r.cap, Empty: t.empty(ctx, keys, r),
	})
	switch {
	case t.spent():
		t.failKeys(ctx, t.task, keys, err, false)
		return nil
	case moreTime || r.cap > int64(len(keys)) || len(keys) == 1:
		return again(keys)
	}
	return halves(keys, err)
}

// spent reports whether the statements for finding faulty keys are used up.
func (t *taskRun) spent() bool { return t.failing >= maxFailing || t.timeouts >= maxTimeouts }

// isolate handles a statement that the database refused. A possible fault of the rows is isolated
// key by key, everything else fails for all keys that have rows. Only a certain fault of a row
// counts towards giving up its record. Errors that are not the statement's own end the run.
func (t *taskRun) isolate(ctx context.Context, keys []*openKey, err error) ([]group, error) {
	class := classOf(err)
	var refused *dberr.Error
	switch {
	case errors.Is(err, errNoBudget):
		return nil, nil
	case errors.Is(err, dberr.ErrChildChanged):
		t.failKeys(ctx, t.task, keys, err, false)
		return nil, nil
	case errors.Is(err, dberr.ErrLivingParent) && len(keys) > 1 && !t.spent():
		t.failing++
		return halves(keys, nil), nil
	case errors.Is(err, dberr.ErrLivingParent):
		for _, k := range keys {
			t.holdReused(t.batch, k, lfk.ClaimReused)
		}
		return nil, nil
	case isProtected(err):
		return t.isolateProtected(ctx, keys, err)
	case errors.As(err, &refused) && refused.SQLState != "":
		// It answers: other definitions may work without whatever it is missing.
	case class == dberr.ClassUnreachable && t.task.child.Database != t.x.Database.Database:
		t.markDown(t.task, err)
		t.failKeys(ctx, t.task, keys, err, false)
		return nil, nil
	default:
		return nil, err
	}
	t.failing++
	all := len(keys)
	if left, probeErr := t.advance(ctx, t.task, keys); probeErr == nil {
		keys = left
	}
	switch {
	case len(keys) == 0:
		return nil, nil
	case dberr.Unencodable(err) && len(keys) < all:
		return again(keys), nil // no row of the child can have the keys of which it was refused
	}
	child := t.task.child
	if rules := rowset.NewSweeps(child.Database).RefusedBy(ctx, err, child.Table(), t.task.deletes()); len(rules) > 0 {
		t.failKeys(ctx, t.task, keys, &rowset.KeptError{By: rules}, true)
		return nil, nil
	}
	if mayBeRows := class == dberr.ClassData || refused.OutOfRange(); mayBeRows && len(keys) > 1 &&
		!t.spent() {
		return halves(keys, err), nil
	}
	t.failKeys(ctx, t.task, keys, err, class == dberr.ClassData && len(keys) == 1)
	return nil, nil
}

func isProtected(err error) bool {
	_, ok := errors.AsType[*repo.ProtectedError](err)
	return ok
}

// isolateProtected holds the keys whose rows cannot be deleted without a protected user or group.
// That is no failure: the records stay until the protection ends.
func (t *taskRun) isolateProtected(ctx context.Context, keys []*openKey, err error) ([]group, error) {
	t.failing++
	if left, probeErr := t.advance(ctx, t.task, keys); probeErr == nil {
		keys = left
	}
	if t.kept == nil {
		var readErr error
		if t.kept, readErr = readKept(ctx, []*childTask{t.task}); readErr != nil {
			return nil, readErr
		}
	}
	var others []*openKey
	for _, k := range keys {
		if kept := t.kept.of(t.task, k.key); kept != nil {
			t.hold([]*openKey{k}, kept)
		} else {
			others = append(others, k)
		}
	}
	switch {
	case len(others) == 0:
		return nil, nil
	case len(others) < len(keys):
		return again(others), nil
	case len(keys) > 1 && !t.spent():
		return halves(keys, nil), nil
	}
	t.hold(keys, err)
	return nil, nil
}

// hold holds keys for a protected row.
func (t *taskRun) hold(keys []*openKey, err error) {
	f := newFailure(t.task, err, false)
	f.held, f.sqlstate = true, reasons.Protected
	records := 0
	for _, k := range keys {
		if k.failure == nil {
			k.failure = f
		}
		records += len(k.records)
		k.advance()
	}
	t.outcome.addProtected(err.Error(), records)
}

// keptKeys are the keys of tasks whose rows cannot be deleted without a protected user or group.
type keptKeys map[*childTask]map[lfk.Key]*repo.Protection

// readKept reads them, as far as queries without triggers find the rows.
func readKept(ctx context.Context, all []*childTask) (keptKeys, error) {
	kept := keptKeys{}
	var tasks []*childTask
	var children []*lfk.Child
	for _, t := range all {
		if t.child != nil && t.database == "main" && t.deletes() {
			tasks, children = append(tasks, t), append(children, t.child)
		}
	}
	if len(tasks) == 0 {
		return kept, nil
	}
	found, err := protection.NewProtections(children[0].Database).KeptKeys(ctx, children, run.ReadLimits())
	if err != nil {
		return nil, err
	}
	for i, t := range tasks {
		kept[t] = found[i]
	}
	return kept, nil
}

// of returns why a key is kept, or nil.
func (k keptKeys) of(t *childTask, key lfk.Key) *repo.ProtectedError {
	if p := k[t][key]; p != nil {
		return &repo.ProtectedError{Protection: *p, By: []string{t.key.Table}}
	}
	return nil
}

// failKept fails the keys with rows that a statement could lock but did not change. A trigger that
// returns NULL skips a row without an error. It returns the others, and whether the child has such
// triggers. (With a rule, PostgreSQL refuses these statements.)
func (t *taskRun) failKept(
	ctx context.Context, keys []*openKey, r purged,
) (others []*openKey, kept bool, err error) {
	child := t.task.child
	by, err := catalog.NewSchema(child.Database).KeepingTriggers(ctx, child.Table(), t.task.deletes())
	if err != nil || len(by) == 0 {
		return keys, false, err
	}
	var own []*openKey
	for _, k := range keys {
		if slices.Contains(r.Kept, k.key) {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	t.failKeys(ctx, t.task, own, &rowset.KeptError{By: by}, true)
	return others, true, nil
}

// awaitLocks handles keys with rows that another transaction holds, or has changed meanwhile. It
// takes the free rows, then waits for the others, then takes those that became free. Keys with
// remaining rows are locked, unless only the cap was reached. r and err are those of the statement
// that met the locks.
func (t *taskRun) awaitLocks(
	ctx context.Context, keys []*openKey, r purged, err error,
) ([]group, error) {
	var asked int
	long := max(bulk.LockTime+1, min(bulk.LongLockTime, t.x.Left()))
	for i, s := range []purged{
		{mode: skipping, lock: bulk.LockTime}, {mode: shares, lock: long}, {mode: skipping, lock: bulk.LockTime},
	} {
		asked = len(keys)
		if i > 0 || err != nil {
			r, err = t.purge(ctx, keys, s)
			if keys = unsettled(keys); len(keys) == 0 || isQueueError(err) {
				return nil, err
			}
			if err != nil && classOf(err) != dberr.ClassLock {
				return t.afterError(ctx, keys, r, err)
			}
		}
		switch left, err := t.advance(ctx, t.task, keys); {
		case err == nil:
			keys = left
		case classOf(err) != dberr.ClassLock:
			return t.afterError(ctx, keys, r, err)
		}
		if s.mode == skipping && r.Changed > 0 {
			if r.capReached(asked) {
				t.batch.moveToEnd(r.gotRows)
				return nil, nil
			}
			// A key that had its full share is large, not locked: its turn comes in the next pass.
			keys = slices.DeleteFunc(slices.Clone(keys), r.gotShare)
		}
		if len(keys) == 0 || t.checkLimits() {
			return nil, nil
		}
	}
	if len(r.Kept) > 0 {
		others, kept, err := t.failKept(ctx, keys, r)
		if err != nil {
			return t.afterError(ctx, keys, r, err)
		}
		if keys = others; kept && r.capReached(asked) {
			return nil, nil
		}
	}
	lockKeys(t.task, keys)
	return nil, nil
}

// lockKeys moves keys to the other definitions, and keeps their records because of locks.
func lockKeys(task *childTask, keys []*openKey) {
	for _, k := range keys {
		k.locked = task
		k.advance()
	}
}
