package lfk

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// dryRunRows is the number of rows of a definition up to which a dry run counts exactly.
const dryRunRows = 100_000

// dryRun walks all due records, read-only, and counts per definition what a run without limits
// would change.
type dryRun struct {
	*cleanup
	// counts has an entry per queried definition. A child in several databases is one.
	counts []*control.DefinitionCount
	byKey  map[string]*control.DefinitionCount
	// capped and unfinished name the definitions whose count is a lower bound: because of the rows,
	// or of the time.
	capped, unfinished []string
	// kept are the keys whose rows cannot be deleted without a protected user or group.
	kept keptKeys
}

// dryRun counts the changes of a run, by definition, and writes nothing. Parents that max_runtime
// cuts off are reported as unfinished.
func (c *cleanup) dryRun(ctx context.Context) error {
	d := &dryRun{cleanup: c, byKey: map[string]*control.DefinitionCount{}}
	var tasks []*childTask
	for _, p := range c.loader.parents {
		tasks = append(tasks, p.tasks...)
	}
	var err error
	// 1. Find the keys whose rows cannot be deleted without a protected user or group.
	if d.kept, err = readKept(ctx, tasks); err != nil {
		return err
	}
	// 2. Walk through the parents, one after the other.
	for _, p := range c.loader.parents {
		finished, err := d.walk(ctx, p)
		if err != nil {
			return err
		}
		if !finished {
			d.interrupt(p)
		}
	}
	// 3. Report the counts.
	d.report(ctx)
	c.reportLocked(ctx)
	return c.outcome.err()
}

// walk counts for all due records of a parent. It returns false at the time limit.
func (d *dryRun) walk(ctx context.Context, p *parentTasks) (finished bool, err error) {
	seen := map[lfk.Key]struct{}{}
	for {
		if err := d.x.Stopped(); err != nil {
			return false, err
		}
		if d.x.Left() <= 0 {
			return false, nil
		}
		left := true
		err := d.x.Batch(ctx, func(ctx context.Context) (err error) {
			left, finished, err = d.page(ctx, p, seen)
			return err
		}, attribute.String("maintenance.database", d.x.Database.Name),
			attribute.String("maintenance.parent", p.recorded))
		if err != nil || !left {
			return finished, err
		}
	}
}

// page counts for the next records of a parent. left: more records remain. finished is false at the
// time limit.
func (d *dryRun) page(
	ctx context.Context, p *parentTasks, seen map[lfk.Key]struct{},
) (left, finished bool, err error) {
	limits := run.ReadLimits()
	limits.ReadOnly = true
	loaded, err := d.x.Database.Queue.LoadRecords(ctx, d.queue, lfk.RecordPage{
		Parent: p.recorded, After: p.position, Limit: d.config.BatchSize, Queues: p.queues,
	}, limits)
	if err != nil || len(loaded.Records) == 0 {
		return false, true, err
	}
	p.position = loaded.After
	b := newBatch(p, loaded.Records)
	if err := d.checkParents(ctx, b); err != nil {
		return false, false, err
	}
	for at, task := range p.tasks {
		if d.x.Left() <= 0 || !d.count(ctx, b, task, b.keysAt(at), seen) {
			return false, false, nil
		}
	}
	for _, k := range b.keys {
		seen[k.key] = struct{}{}
	}
	if err := d.removeComplete(ctx, b); err != nil {
		return false, false, err
	}
	return true, false, d.postpone(ctx, b)
}

// interrupt marks the definitions of a parent whose records were not all read.
func (d *dryRun) interrupt(p *parentTasks) {
	for _, task := range p.tasks {
		if e := d.entry(task); !e.AtLeast {
			e.AtLeast = true
			d.unfinished = append(d.unfinished, task.key.String())
		}
	}
}

// count counts the rows of a task for keys that no earlier page had. It moves all keys past the
// task as a run would. Reads do not show locked rows. It returns false at the time limit.
func (d *dryRun) count(
	ctx context.Context, b *batch, task *childTask, keys []*openKey, seen map[lfk.Key]struct{},
) bool {
	entry := d.entry(task)
	if err := d.down(task); err != nil {
		d.failKeys(ctx, task, keys, err, false)
		return true
	}
	// 1. Separate the keys that a run would hold or fail.
	t := &taskRun{cleanup: d.cleanup, batch: b, task: task}
	var open []*openKey
	var fresh []lfk.Key
	for _, k := range d.failMismatched(ctx, task, keys) {
		if kept := d.kept.of(task, k.key); kept != nil {
			t.hold([]*openKey{k}, kept)
			continue
		}
		open = append(open, k)
		if _, before := seen[k.key]; !before {
			fresh = append(fresh, k.key)
		}
	}
	if len(open) == 0 {
		return true
	}
	// 2. Count the rows, up to one more than dryRunRows. A capped definition is not counted again.
	n, err := int64(0), error(nil)
	if !entry.AtLeast {
		n, err = task.child.Count(ctx, fresh, dryRunRows-entry.Rows+1, fencing.Limits{
			Statement: max(bulk.StatementTime, min(bulk.SingleRowTime, d.x.Left())),
			Lock:      bulk.LongLockTime,
			ReadOnly:  true,
		})
	}
	// 3. Treat an error as a run would.
	switch class := classOf(err); {
	case err != nil && class == dberr.ClassTimeout && d.x.Left() <= 0:
		return false
	case err != nil && class == dberr.ClassLock:
		lockKeys(task, open)
		return true
	case err != nil:
		d.markDown(task, err)
		d.failKeys(ctx, task, open, err, false)
		return true
	}
	// 4. Add the rows to the definition.
	for _, k := range open {
		k.advance()
	}
	entry.Rows += n
	if entry.Rows > dryRunRows {
		entry.Rows, entry.AtLeast = dryRunRows, true
		d.capped = append(d.capped, task.key.String())
	}
	return true
}

// entry returns the count of a definition, which it creates at the first call. Two tasks with
// equal definitions share one count.
func (d *dryRun) entry(task *childTask) *control.DefinitionCount {
	id := fmt.Sprintf("%+v", task.key)
	e := d.byKey[id]
	if e == nil {
		e = &control.DefinitionCount{
			Table:  task.key.Table,
			Column: lfk.ColumnList(task.key.Columns),
			Parent: task.key.Parent,
			Action: task.key.OnDelete,
		}
		d.byKey[id] = e
		d.counts = append(d.counts, e)
	}
	return e
}

// report adds the counts of all definitions to the run. Counts capped at dryRunRows and unfinished
// parents become the run's limit.
func (d *dryRun) report(ctx context.Context) {
	for _, e := range d.counts {
		if e.Action == lfk.AsyncDelete {
			d.x.Count(ctx, "deleted_rows", e.Rows)
			d.x.Changed(e.Table, e.Rows, 0)
		} else {
			d.x.Count(ctx, "updated_rows", e.Rows)
			d.x.Changed(e.Table, 0, e.Rows)
		}
	}
	d.x.Report(func(r *run.Run) {
		for _, e := range d.counts {
			r.Definitions = append(r.Definitions, *e)
		}
	})
	var why []string
	if len(d.capped) > 0 {
		why = append(why,
			fmt.Sprintf("counted only the first %d rows of %s", dryRunRows, strings.Join(d.capped, ", ")))
	}
	if len(d.unfinished) > 0 {
		why = append(why,
			"max_runtime reached before all records were checked: "+strings.Join(d.unfinished, ", "))
	}
	if reason := strings.Join(why, "; "); reason != "" {
		d.x.Limit(reason, reason)
	}
}
