package lfk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Before its first batch a run reads the queue and its partitions and finds the databases of the
// children. It prepares the tasks of each parent.

// openQueue reads the queue, and maintains the partitions of a queue that caretaker has made.
func (k *worker) openQueue(ctx context.Context, x *run.Execution) (lfk.DeletedRecords, error) {
	queue, err := x.Database.Queue.DeletedRecords(ctx)
	if none, ok := errors.AsType[*dberr.NoSchemaError](err); ok {
		return queue, &fault.SkippedError{Reason: none.Error()}
	}
	name := x.Database.Name
	switch {
	case err != nil:
		return queue, err
	case !queue.Exists:
		return queue, &fault.SkippedError{Reason: fmt.Sprintf("database %s has no table "+
			"loose_foreign_keys_deleted_records: run `caretaker lfk install --database %s`", name, name)}
	}
	if err := checkPartitioned(queue, name); err != nil || x.DryRun {
		return queue, err
	}
	if !queue.Remembered {
		err := x.WithPermit(ctx, x.Database, run.ReadLimits(), func(p fencing.Permit) error {
			return x.Database.Queue.RememberQueue(ctx, p, queue)
		})
		if err != nil {
			return queue, err
		}
	}
	if !queue.Managed {
		return queue, nil
	}
	changed, err := k.maintainPartitions(ctx, x, queue)
	if err != nil || !changed {
		return queue, err
	}
	return x.Database.Queue.DeletedRecords(ctx)
}

// checkPartitioned fails a run if a table of the queue has another shape: the run would not see its
// records.
func checkPartitioned(queue lfk.DeletedRecords, database string) error {
	for _, t := range queue.Existing() {
		if !t.Partitioned {
			return &fault.FailedError{Text: fmt.Sprintf("%s on %s is not partitioned: run "+
				"`caretaker lfk lint` to see the required form", t.Name, database)}
		}
	}
	return nil
}

// maintainPartitions repairs, rolls and drops partitions. The next run retries failures. Only a
// lost lease ends this one.
func (k *worker) maintainPartitions(
	ctx context.Context, x *run.Execution, queue lfk.DeletedRecords,
) (changed bool, _ error) {
	for _, do := range []func(fencing.Permit) error{
		func(p fencing.Permit) error {
			repaired, err := x.Database.Queue.RepairPartition(ctx, p, queue)
			if repaired {
				changed = true
				x.Log.WarnContext(ctx, "missing active partition created",
					"partition", queue.Active)
			}
			return err
		},
		func(p fencing.Permit) error {
			next, err := x.Database.Queue.RollPartition(ctx, p, queue)
			if next != 0 {
				changed = true
				x.Log.InfoContext(ctx, "queue rolled over to a new partition", "partition", next)
			}
			return err
		},
		func(p fencing.Permit) error {
			dropped, err := x.Database.Queue.DropPartitions(ctx, p, queue)
			if len(dropped) > 0 {
				changed = true
				x.Log.InfoContext(ctx, "empty queue partitions dropped", "partitions", dropped)
			}
			return err
		},
		// The last step adds triggers, so it does not change the queue.
		func(p fencing.Permit) error { return k.trackPartitions(ctx, x, p) },
	} {
		err := x.WithPermit(ctx, x.Database, lfk.PartitionLimits(), do)
		if errors.Is(err, dberr.ErrLeaseLost) || x.Stopped() != nil {
			return changed, err
		}
		if err != nil {
			x.Log.WarnContext(ctx, "queue partitions not changed, retrying next run", "error", err)
		}
	}
	return changed, nil
}

// trackPartitions tracks the new partitions of tracked tables, unless it is disabled.
func (k *worker) trackPartitions(
	ctx context.Context, x *run.Execution, p fencing.Permit,
) error {
	if k.config.TrackPartitions != nil && !*k.config.TrackPartitions {
		return nil
	}
	tracked, err := x.Database.Capture.TrackPartitions(ctx, p)
	if len(tracked) > 0 {
		x.Log.InfoContext(ctx, "new partitions tracked", "partitions", tracked)
	}
	if err == nil || errors.Is(err, dberr.ErrLeaseLost) {
		return err
	}
	x.Log.WarnContext(ctx, "new partitions not tracked, retrying next run", "error", err)
	return nil
}

// parentTasks holds the tasks for the records of one parent, and how far they are loaded.
type parentTasks struct {
	// recorded is the parent's name in the records.
	recorded string
	tasks    []*childTask
	// absent are the definitions whose child is not in any configured database, and not accepted: they
	// hold the records.
	absent []lfk.Definition
	// living is set once a parent was found alive. Later batches check parents before any change.
	living atomic.Bool
	// table is the table of the recorded name at the start of the run. nil means none.
	table    *lfk.ParentTable
	position lfk.Position
	// queues are the tables of the queue with due records at the start of the walk. The next walk
	// takes records in other tables: it cleans the remaining rows of a key, mostly none.
	queues []int
	// fits is how many records fit under the caps of the statements, by the last batch.
	fits int
}

// childTask is one definition in one database of its child. Tasks are in the order of execution.
type childTask struct {
	key lfk.Definition
	// child is nil if it is unknown whether database has the child, because it does not answer.
	child    *lfk.Child
	database string
	// down is why this run cannot do the task.
	down error
	// rowsPerKey is the number of rows per key in the last complete batch, as math.Float64bits.
	rowsPerKey atomic.Uint64
	// counted is the number of next statements that count their rows first, since a guess was wrong.
	// wrong is the number of wrong guesses.
	counted, wrong atomic.Int64
}

// firstCounted is the number of statements that count their rows after the first wrong guess.
// Every other wrong guess doubles it, up to maxDoubled times.
const firstCounted, maxDoubled = 8, 10

// guessFailed lets the next statements count their rows first.
func (t *childTask) guessFailed() {
	t.counted.Store(firstCounted << min(t.wrong.Add(1)-1, maxDoubled))
}

// mayGuess reports whether the next statement may change rows without counting them first.
func (t *childTask) mayGuess() bool { return t.counted.Load() <= 0 || t.counted.Add(-1) < 0 }

// expected returns the likely number of rows of so many keys. 0 means unknown, or none.
func (t *childTask) expected(keys int) float64 {
	return math.Float64frombits(t.rowsPerKey.Load()) * float64(keys)
}

// learn learns from a complete batch. In an incomplete one keys have unknown rows.
func (t *childTask) learn(rows int64, keys int) {
	t.rowsPerKey.Store(math.Float64bits(float64(rows) / float64(keys)))
}

// SizeKey is the key of the sizes of its statements.
func (t *childTask) SizeKey() bulk.SizeKey {
	return bulk.SizeKey{What: t.key.String(), Action: t.key.OnDelete, Database: t.database}
}

// place returns the table of the task, with its database.
func (t *childTask) place() string { return t.key.Table + " on " + t.database }

// deletes reports whether the task deletes rows. Otherwise it updates them.
func (t *childTask) deletes() bool { return t.key.OnDelete == lfk.AsyncDelete }

// tasks makes the tasks of the parents that have definitions. A parent whose children are all
// accepted as absent counts as one without, and is skipped. So is one with a missing definition.
func (c *cleanup) tasks(
	ctx context.Context, missing map[string]string,
) ([]*parentTasks, error) {
	// 1. Find the child tables in all databases.
	accepted, err := c.acceptedAbsent(ctx)
	if err != nil {
		return nil, err
	}
	places, err := c.findChildren(ctx, c.x, c.keys)
	if err != nil {
		return nil, err
	}
	// 2. Group the definitions by the recorded name of their parent.
	byParent := map[string]*parentTasks{}
	ended := map[lfk.AbsentPlace]bool{}
	var absent []string
	for i, key := range c.keys {
		recorded := catalog.RecordedName(key.Parent, c.queue.Schema)
		p := byParent[recorded]
		if p == nil {
			p = &parentTasks{recorded: recorded}
			byParent[recorded] = p
		}
		p.tasks = append(p.tasks, places.unknown(key, i)...)
		for _, place := range places.ended(key, i, accepted) {
			ended[place] = true
		}
		switch found := p.add(key, i, places.found); {
		case found && places.dropped[key.Table] != nil:
			p.absent = append(p.absent, key)
		case found, len(places.silent) > 0:
		case !accepted.Everywhere(key.Table):
			p.absent = append(p.absent, key)
			absent = append(absent, key.Table)
		}
	}
	// 3. Record dropped and absent children. Absence is known only if every database has answered.
	c.recordDropped(ctx, c.x, places)
	if len(places.silent) == 0 {
		others, err := lfk.NotTables(ctx, repo.Kernels(c.Databases), absent)
		if err != nil {
			return nil, err
		}
		c.findSimilar(ctx, absent)
		c.recordAbsent(ctx, c.x, slices.Compact(absent), others)
	}
	if err := c.refer(ctx, c.x, c.queue, byParent); err != nil {
		return nil, err
	}
	// 4. Select the parents with work, and end acceptances whose child exists again.
	var parents []*parentTasks
	for _, p := range byParent {
		if len(p.tasks)+len(p.absent) > 0 && missing[p.recorded] == "" {
			parents = append(parents, p)
		}
	}
	return parents, c.endAbsence(ctx, c.x, ended)
}

// add adds the tasks of the i-th definition. It adds one for each database that has the child
// table, and one for each of its partitions whose detachment is pending. It reports whether there
// are any.
func (p *parentTasks) add(key lfk.Definition, i int, places [][]*lfk.Child) (found bool) {
	for _, children := range places {
		child := children[i]
		if child == nil {
			continue
		}
		found = true
		for _, table := range append(slices.Clone(child.Detaching), child) {
			task := &childTask{key: key, child: table, database: child.Database.Name}
			if !slices.ContainsFunc(p.tasks, task.duplicates) {
				p.tasks = append(p.tasks, task)
			}
		}
	}
	return found
}

// refer sets the recorded key columns by which the tasks find their rows, and the parents theirs. A
// definition that does not fit fails, and its records stay.
func (k *worker) refer(
	ctx context.Context, x *run.Execution, queue lfk.DeletedRecords, parents map[string]*parentTasks,
) error {
	tables, keys, err := k.parentTables(ctx, x, queue, parents)
	if err != nil {
		return err
	}
	for recorded, p := range parents {
		key, known := keys.Of[recorded]
		key.Values = key.Values || !known && queue.Wide
		p.table = tables[recorded]
		for _, task := range p.tasks {
			if task.child == nil {
				continue
			}
			beside := p.table
			if task.child.Database != x.Database.Database {
				beside = nil
			}
			if mismatch := task.child.MatchKey(key, beside); mismatch != nil {
				task.down = mismatch
			}
		}
	}
	return nil
}

// parentTables finds the tables of parents, and how keys are recorded.
func (k *worker) parentTables(
	ctx context.Context, x *run.Execution, queue lfk.DeletedRecords, parents map[string]*parentTasks,
) (map[string]*lfk.ParentTable, lfk.RecordedKeys, error) {
	limits := run.ReadLimits()
	limits.ReadOnly = x.DryRun
	keys, err := x.Database.Queue.RecordedKeys(ctx, queue, limits)
	if err != nil {
		return nil, keys, err
	}
	wanted := map[string][]string{}
	for recorded, p := range parents {
		for _, task := range p.tasks {
			if before := wanted[recorded]; before == nil || slices.Equal(before, task.key.Key) {
				wanted[recorded] = task.key.Key
			} else if task.key.Key != nil {
				wanted[recorded] = []string{}
			}
		}
	}
	tables, err := x.Database.Queue.ParentTables(ctx, slices.Collect(maps.Keys(parents)), keys, wanted, limits)
	return tables, keys, err
}

// duplicates reports whether another task is the same under another name of the table.
func (t *childTask) duplicates(other *childTask) bool {
	if other.child == nil || other.child.Table() != t.child.Table() || other.database != t.database {
		return false
	}
	one, two := t.key, other.key
	one.Table, one.Parent, two.Table, two.Parent = "", "", "", ""
	return reflect.DeepEqual(one, two)
}
