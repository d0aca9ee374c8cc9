package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// dryRunRows is up to where a dry run counts the rows of a definition exactly.
const dryRunRows = 100_000

// dryRun walks the whole due backlog, read-only, and counts per definition what a run without
// limits would change.
type dryRun struct {
	*cleanup
	// counts has an entry a definition that was asked; a child in several homes is one.
	counts []*repo.DefinitionCount
	byKey  map[string]*repo.DefinitionCount
	// capped and unfinished name the definitions whose count is a lower bound: for the rows, for the
	// time.
	capped, unfinished []string
	// kept are the keys whose rows cannot be deleted without a protected user or group.
	kept keptKeys
}

func (c *cleanup) dryRun(ctx context.Context) error {
	d := &dryRun{cleanup: c, byKey: map[string]*repo.DefinitionCount{}}
	var tasks []*childTask
	for _, p := range c.loader.parents {
		tasks = append(tasks, p.tasks...)
	}
	var err error
	if d.kept, err = readKept(ctx, tasks); err != nil {
		return err
	}
	for _, p := range c.loader.parents {
		finished, err := d.walk(ctx, p)
		if err != nil {
			return err
		}
		if !finished {
			d.interrupt(p)
		}
	}
	d.report(ctx)
	return c.outcome.err()
}

// walk counts for all due records of a parent; false: the time was up first.
func (d *dryRun) walk(ctx context.Context, p *parentTasks) (finished bool, err error) {
	seen := map[repo.Key]struct{}{}
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

// page counts for the next records of a parent. left: there are more; finished: there are none,
// false if the time was up.
func (d *dryRun) page(
	ctx context.Context, p *parentTasks, seen map[repo.Key]struct{},
) (left, finished bool, err error) {
	limits := run.ReadLimits()
	limits.ReadOnly = true
	loaded, err := d.x.Database.LoadRecords(ctx, d.queue, repo.RecordPage{
		Parent: p.recorded, After: p.position, Limit: d.config.BatchSize, Queues: p.queues,
	}, limits)
	records := loaded.Records
	if err != nil || len(records) == 0 {
		return false, true, err
	}
	p.position = loaded.After
	if records, err = d.checkParents(ctx, p, records); err != nil {
		return false, false, err
	}
	records = d.holdKept(ctx, p, records)
	if len(p.absent) > 0 {
		d.outcome.addPostponed(nil, p, len(records))
		d.x.Count(ctx, "rescheduled_records", int64(len(records)))
	} else {
		d.x.Count(ctx, "processed_records", int64(len(records)))
	}
	var keys []repo.Key
	for _, r := range records {
		if _, ok := seen[r.Key]; !ok {
			seen[r.Key] = struct{}{}
			keys = append(keys, r.Key)
		}
	}
	for _, task := range p.tasks {
		if d.x.Left() <= 0 {
			return false, false, nil
		}
		d.count(ctx, task, keys)
	}
	return true, false, nil
}

// checkParents counts the records of living parents, whose children stay, and returns the others. An
// error of the parent's table fails them, as in a run.
func (d *dryRun) checkParents(
	ctx context.Context, p *parentTasks, records []repo.Record,
) (orphaning []repo.Record, err error) {
	if !p.table.Exists() {
		return records, nil
	}
	b := newBatch(p, records, 1)
	if err := d.settle(ctx, b, b.keys); err != nil {
		return nil, err
	}
	for _, k := range b.keys {
		if !k.settled {
			orphaning = append(orphaning, k.records...)
		} else if k.failure != nil {
			d.x.Count(ctx, "rescheduled_records", int64(len(k.records)))
		}
	}
	return orphaning, nil
}

// holdKept counts the records that a run would hold for protected rows, and returns the others.
func (d *dryRun) holdKept(ctx context.Context, p *parentTasks, records []repo.Record) []repo.Record {
	return slices.DeleteFunc(records, func(r repo.Record) bool {
		for _, t := range p.tasks {
			if kept := d.kept.of(t, r.Key); kept != nil {
				d.outcome.addProtected(kept.Error(), 1)
				d.x.Count(ctx, "rescheduled_records", 1)
				return true
			}
		}
		return false
	})
}

// interrupt marks the definitions of a parent whose records have not all been seen.
func (d *dryRun) interrupt(p *parentTasks) {
	for _, task := range p.tasks {
		if e := d.entry(task); !e.AtLeast {
			e.AtLeast = true
			d.unfinished = append(d.unfinished, task.key.String())
		}
	}
}

func (d *dryRun) count(ctx context.Context, task *childTask, keys []repo.Key) {
	entry := d.entry(task)
	if entry.AtLeast || len(keys) == 0 {
		return
	}
	n, err := int64(0), d.down(task)
	if err == nil {
		keys = slices.DeleteFunc(slices.Clone(keys), func(k repo.Key) bool {
			misfit := task.child.Takes(k)
			if misfit != nil {
				d.addFailure(ctx, newFailure(task, misfit, false), 1, misfit)
			}
			return misfit != nil
		})
		if len(keys) == 0 {
			return
		}
		n, err = task.child.Count(ctx, keys, dryRunRows-entry.Rows+1, repo.Limits{
			Statement: max(bulk.StatementTime, min(bulk.SingleRowTime, d.x.Left())),
			Lock:      bulk.LongLockTime,
			ReadOnly:  true,
		})
	}
	var refused *repo.Error
	if errors.As(err, &refused) && refused.Class() == repo.ClassTimeout && d.x.Left() <= 0 {
		return
	}
	if err != nil {
		d.markDown(task, err)
		d.addFailure(ctx, newFailure(task, err, false), len(keys), err)
		return
	}
	entry.Rows += n
	if entry.Rows > dryRunRows {
		entry.Rows, entry.AtLeast = dryRunRows, true
		d.capped = append(d.capped, task.key.String())
	}
}

func (d *dryRun) entry(task *childTask) *repo.DefinitionCount {
	id := fmt.Sprintf("%+v", task.key)
	e := d.byKey[id]
	if e == nil {
		e = &repo.DefinitionCount{
			Table:  task.key.Table,
			Column: repo.ColumnList(task.key.Columns),
			Parent: task.key.Parent,
			Action: task.key.OnDelete,
		}
		d.byKey[id] = e
		d.counts = append(d.counts, e)
	}
	return e
}

func (d *dryRun) report(ctx context.Context) {
	for _, e := range d.counts {
		if e.Action == repo.AsyncDelete {
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
			fmt.Sprintf("counted up to %d rows: %s", dryRunRows, strings.Join(d.capped, ", ")))
	}
	if len(d.unfinished) > 0 {
		why = append(why,
			"max_runtime reached before all records were seen: "+strings.Join(d.unfinished, ", "))
	}
	if reason := strings.Join(why, "; "); reason != "" {
		d.x.Limit(reason, reason)
	}
}
