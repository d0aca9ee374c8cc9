package loosefk

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// cleanup is one run of the worker.
type cleanup struct {
	*looseForeignKeys
	x *run.Execution
	// keys are the definitions with which the run started.
	keys    []repo.LooseForeignKey
	queue   repo.DeletedRecords
	budget  *budget
	loader  *loader
	outcome *outcome
	// traced: the run is traced, and so are deletions of parents that it may meet.
	traced bool

	downMu sync.Mutex
	// downs are the databases that have stopped answering, or whose fence is held, and why.
	downs map[string]error
}

// work is one run, or a dry run.
func (k *looseForeignKeys) work(ctx context.Context, x *run.Execution) error {
	if x.Snapshot().Trigger == repo.TriggerRequest {
		k.looks.forget(x.Database)
	}
	queue, err := k.openQueue(ctx, x)
	if err != nil {
		return err
	}
	c := &cleanup{
		looseForeignKeys: k, x: x, keys: k.LooseForeignKeys(), queue: queue, outcome: newOutcome(),
		downs: map[string]error{},
	}
	_, turbo := k.maxRuntime(x.Database.Name, x.Flags)
	c.budget = newBudget(k.maxRows(turbo))
	limits := run.ReadLimits()
	limits.ReadOnly = x.DryRun
	due, err := x.Database.DueParents(ctx, queue, limits)
	if err != nil || len(due) == 0 && k.hasLooked() {
		return err
	}
	if x.Span.IsRecording() && !x.DryRun {
		traced, err := x.Database.HasRecordTraces(ctx)
		c.traced = traced && err == nil
	}
	lacking, err := c.lacking(ctx)
	if err != nil {
		return err
	}
	parents, err := c.tasks(ctx, lacking)
	if err != nil {
		return err
	}
	c.reportLacking(lacking, repo.ParentNames(due))
	c.loader = newLoader(c, parents)
	c.loader.begin(due)
	defer c.reportHeld()
	defer c.reportLiving(ctx)
	if x.DryRun {
		return c.dryRun(ctx)
	}
	return c.run(ctx)
}

// inFlight is how many batches are worked side by side.
const inFlight = 2

func (c *cleanup) run(ctx context.Context) error {
	var wait sync.WaitGroup
	errs := make([]error, inFlight)
	for i := range inFlight {
		wait.Go(func() {
			errs[i] = run.Guarded(func() error { return c.drain(ctx, i > 0) })
			if errs[i] != nil {
				c.x.RequestStop(run.ErrOtherBatch)
			}
		})
	}
	wait.Wait()
	c.reportLocked(ctx)
	c.reportRecovered(ctx)
	if i := slices.IndexFunc(errs, func(err error) bool {
		return err != nil && !errors.Is(err, run.ErrOtherBatch)
	}); i >= 0 {
		return c.outcome.with(errs[i])
	}
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

// drain works batch after batch until nothing is left or a limit is reached. A second loop joins in
// only while so much is left of the limits that it cannot take rows that the batch in hand needs.
func (c *cleanup) drain(ctx context.Context, joining bool) error {
	stop := func() bool {
		return c.limited() || c.x.Stopped() != nil || joining && !c.budget.room(bulk.MaxStatementRows)
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

// checkLimits is asked after every statement.
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

// down says why nothing can be done for a task in this run, nil if it can.
func (c *cleanup) down(task *childTask) error {
	c.downMu.Lock()
	defer c.downMu.Unlock()
	if task.down != nil {
		return task.down
	}
	return c.downs[task.database]
}

// markDown saves the run from waiting again for a database that does not answer, not even with an
// SQLSTATE.
func (c *cleanup) markDown(task *childTask, err error) {
	refused, ok := errors.AsType[*repo.Error](err)
	if !errors.Is(err, repo.ErrUnreachable) || ok && refused.SQLState != "" {
		return
	}
	c.downMu.Lock()
	defer c.downMu.Unlock()
	c.downs[task.database] = err
}

// budget is what is left of the run's row limits. Statements reserve their cap before and give back
// what they did not change after, so that the limits hold over all batches in flight.
type budget struct {
	mu               sync.Mutex
	returned         *sync.Cond
	deletes, updates rowLimit
}

// rowLimit is what is left of max_deletes or of max_updates.
type rowLimit struct{ limit, used, reserved int64 }

func (a *rowLimit) left() int64 { return a.limit - a.used - a.reserved }

func newBudget(maxDeletes, maxUpdates int64) *budget {
	b := &budget{deletes: rowLimit{limit: maxDeletes}, updates: rowLimit{limit: maxUpdates}}
	b.returned = sync.NewCond(&b.mu)
	return b
}

// of is the limit on the rows that a task changes.
func (b *budget) of(task *childTask) *rowLimit {
	if task.deletes() {
		return &b.deletes
	}
	return &b.updates
}

// reserve grants up to want rows; 0: the limit is reached. While others hold all that is left it
// waits for them.
func (b *budget) reserve(task *childTask, want int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.of(task)
	for a.left() <= 0 {
		if a.reserved == 0 {
			return 0
		}
		b.returned.Wait()
	}
	granted := min(want, a.left())
	a.reserved += granted
	return granted
}

// spend gives back what was granted, but for the rows that were changed.
func (b *budget) spend(task *childTask, granted, changed int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.of(task)
	a.reserved -= granted
	a.used += changed
	b.returned.Broadcast()
}

// exhausted names the limit that is reached, "" for none.
func (b *budget) exhausted() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.deletes.used >= b.deletes.limit:
		return "max_deletes"
	case b.updates.used >= b.updates.limit:
		return "max_updates"
	}
	return ""
}

// room reports whether so many rows fit beside the statements in flight.
func (b *budget) room(rows int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(b.deletes.left(), b.updates.left()) >= rows
}
