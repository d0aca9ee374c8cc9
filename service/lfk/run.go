package lfk

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// cleanup is one run of the worker.
type cleanup struct {
	*worker
	x *run.Execution
	// keys are the definitions at the start of the run.
	keys  []lfk.Definition
	queue lfk.DeletedRecords
	// budget is shared by all batches, and so are loader and outcome.
	budget  *budget
	loader  *loader
	outcome *outcome
	// traced: the run is traced, and so are the deletions of parents that it may meet.
	traced bool

	downMu sync.Mutex
	// downs are the databases that have stopped answering, or whose fence is held, and why.
	downs map[string]error
}

// work does one run, or a dry run.
func (k *worker) work(ctx context.Context, x *run.Execution) error {
	if x.Snapshot().Trigger == control.TriggerRequest {
		k.inspections.forget(x.Database)
	}
	// 1. Open the queue.
	queue, err := k.openQueue(ctx, x)
	if err != nil {
		return err
	}
	c := &cleanup{
		worker: k, x: x, keys: k.LooseForeignKeys(), queue: queue, outcome: newOutcome(),
		downs: map[string]error{},
	}
	_, turbo := k.maxRuntime(x.Database.Name, x.Flags)
	c.budget = newBudget(k.maxRows(turbo))
	// 2. Read which parents have due records. Without any, only the first run of this process
	// continues.
	limits := run.ReadLimits()
	limits.ReadOnly = x.DryRun
	due, err := x.Database.Queue.DueParents(ctx, queue, limits)
	if err != nil || len(due) == 0 && k.hasSearched() {
		return err
	}
	if x.Span.IsRecording() && !x.DryRun {
		traced, err := x.Database.Queue.HasRecordTraces(ctx)
		c.traced = traced && err == nil
	}
	// 3. Prepare the tasks of each parent.
	missing, err := c.missingDefinitions(ctx)
	if err != nil {
		return err
	}
	parents, err := c.tasks(ctx, missing)
	if err != nil {
		return err
	}
	c.reportMissingDefinitions(missing, lfk.ParentNames(due))
	// 4. Load the records and clean up.
	c.loader = newLoader(c, parents)
	c.loader.begin(due)
	defer c.reportHeld()
	defer c.reportLiving(ctx)
	if x.DryRun {
		return c.dryRun(ctx)
	}
	return c.run(ctx)
}

// inFlight is the number of parallel batches.
const inFlight = 2

// run drains the queue with inFlight parallel loops, until it is empty or a limit is reached. A
// failure in one loop stops the others, and run returns the error that caused the stop.
func (c *cleanup) run(ctx context.Context) error {
	var wait sync.WaitGroup
	errs := make([]error, inFlight)
	// 1. Drain the queue.
	for i := range inFlight {
		wait.Go(func() {
			errs[i] = fault.RecoverPanic(func() error { return c.drain(ctx, i > 0) })
			if errs[i] != nil {
				c.x.RequestStop(fault.ErrOtherBatch)
			}
		})
	}
	wait.Wait()
	// 2. Report locks, and failures that are over.
	c.reportLocked(ctx)
	c.reportRecovered(ctx)
	// 3. Return the first error that is not only the stop of another loop.
	if i := slices.IndexFunc(errs, func(err error) bool {
		return err != nil && !errors.Is(err, fault.ErrOtherBatch)
	}); i >= 0 {
		return c.outcome.with(errs[i])
	}
	// 4. Report a limit only if due records remain.
	if limit := c.outcome.reached(); limit != "" {
		left, err := c.leftOver(ctx)
		if err != nil {
			return c.outcome.with(err)
		}
		if left {
			c.x.Limit(limit, limit)
		}
	}
	return c.outcome.err()
}

// drain works batches until none is left or a limit is reached. A second loop joins in only while
// more than half of the limits is free.
func (c *cleanup) drain(ctx context.Context, joining bool) error {
	stop := func() bool {
		return c.limited() || c.x.Stopped() != nil || joining && !c.budget.free()
	}
	for !stop() {
		b, err := c.loader.next(ctx, stop)
		if err != nil || b == nil {
			return err
		}
		if err := c.workBatch(ctx, b); err != nil {
			return err
		}
	}
	if c.limited() {
		return nil
	}
	return c.x.Stopped()
}

// limited reports whether a limit has ended the run.
func (c *cleanup) limited() bool { return c.outcome.reached() != "" }

// checkLimits is called after every statement.
func (c *cleanup) checkLimits() bool {
	if limit := c.budget.exhausted(); limit != "" {
		c.outcome.reach(limit)
	}
	if c.x.Left() <= 0 {
		c.outcome.reach("max_runtime")
	}
	return c.limited()
}

// leftOver reports whether a limit left records incomplete, or some that were never tried.
func (c *cleanup) leftOver(ctx context.Context) (bool, error) {
	if c.outcome.incomplete {
		return true, nil
	}
	b, err := c.loader.next(ctx, c.limited)
	return b != nil, err
}

// down returns why this run cannot do a task. nil means it can.
func (c *cleanup) down(task *childTask) error {
	c.downMu.Lock()
	defer c.downMu.Unlock()
	if task.down != nil {
		return task.down
	}
	return c.downs[task.database]
}

// markDown keeps the run from waiting again for a database that does not answer, not even with an
// SQLSTATE.
func (c *cleanup) markDown(task *childTask, err error) {
	refused, ok := errors.AsType[*dberr.Error](err)
	if !errors.Is(err, dberr.ErrUnreachable) || ok && refused.SQLState != "" {
		return
	}
	c.downMu.Lock()
	defer c.downMu.Unlock()
	c.downs[task.database] = err
}

// budget is the remainder of the run's row limits. Statements reserve their rows, so the limits
// hold over all parallel batches.
type budget struct {
	mu               sync.Mutex
	released         *sync.Cond
	deletes, updates rowLimit
}

// rowLimit is the remainder of max_deletes or max_updates. left includes the reserved rows.
type rowLimit struct{ limit, left, reserved int64 }

// newBudget returns the number of rows that a run may delete and update.
func newBudget(maxDeletes, maxUpdates int64) *budget {
	b := &budget{
		deletes: rowLimit{limit: maxDeletes, left: maxDeletes},
		updates: rowLimit{limit: maxUpdates, left: maxUpdates},
	}
	b.released = sync.NewCond(&b.mu)
	return b
}

// of returns the limit on the rows that a task changes.
func (b *budget) of(task *childTask) *rowLimit {
	if task.deletes() {
		return &b.deletes
	}
	return &b.updates
}

// reserve reserves rows for a statement of a task, or the rows that are left. It waits while
// another statement has reserved them. release ends the reservation, less the changed rows.
func (b *budget) reserve(task *childTask, rows int64) (reserved int64, release func(changed int64)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of(task)
	for l.reserved > 0 && l.left-l.reserved < rows {
		b.released.Wait()
	}
	reserved = min(rows, l.left)
	l.reserved += reserved
	return reserved, func(changed int64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		l.reserved -= reserved
		l.left -= changed
		b.released.Broadcast()
	}
}

// left returns how many rows a task may still change.
func (b *budget) left(task *childTask) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(task).left
}

// exhausted returns the limit that is reached, or "".
func (b *budget) exhausted() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.deletes.left <= 0:
		return "max_deletes"
	case b.updates.left <= 0:
		return "max_updates"
	}
	return ""
}

// sharedRows is the number of remaining rows that parallel batches need.
const sharedRows = 40_000

// free reports whether a second batch cannot take rows that the current one needs.
func (b *budget) free() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := func(a rowLimit) bool { return a.left >= max(a.limit/2, sharedRows) }
	return free(b.deletes) && free(b.updates)
}
