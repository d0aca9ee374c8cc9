package lfk

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// batch holds the loaded records, by key.
type batch struct {
	*parentTasks
	size int
	// table is the parent's, even if it was created after the start of the run.
	table *lfk.ParentTable
	// keys in the order of their shares of a statement.
	keys     []*openKey
	taskRuns map[*childTask]*taskRun
}

// openKey is a deleted parent row that passes through the definitions.
type openKey struct {
	key     lfk.Key
	records []lfk.Record
	// at is the index of the key's next task. len(tasks) means complete.
	at int
	// locked, the task whose rows another transaction has locked, and failure keep the key's
	// records. The other tasks continue.
	locked  *childTask
	failure *failure
	removed bool
	// settled: the parent with this key is alive. Its records were closed, or failure holds them.
	settled bool
	// approved: its children are cleaned although its parent is alive.
	approved bool
	// large: the rows of its batch exceeded a statement's cap, so it gets shares.
	large bool
}

// newBatch groups the records by key. Records of the same key share one openKey. The keys keep the
// order of their first records.
func newBatch(p *parentTasks, records []lfk.Record) *batch {
	b := &batch{parentTasks: p, size: len(records), table: p.table, taskRuns: map[*childTask]*taskRun{}}
	byKey := map[lfk.Key]*openKey{}
	for _, r := range records {
		k := byKey[r.Key]
		if k == nil {
			k = &openKey{key: r.Key}
			byKey[r.Key] = k
			b.keys = append(b.keys, k)
		}
		k.records = append(k.records, r)
	}
	return b
}

// ids returns the ids of its records.
func (b *batch) ids() (ids []lfk.RecordID) {
	for _, k := range b.keys {
		for _, r := range k.records {
			ids = append(ids, r.RecordID)
		}
	}
	return ids
}

// advance moves the key to its next task.
func (k *openKey) advance() { k.at, k.large = k.at+1, false }

// keepsRecords reports whether the key's records stay for now.
func (k *openKey) keepsRecords() bool { return k.locked != nil || k.failure != nil }

// complete reports whether all tasks of the key are done.
func (b *batch) complete(k *openKey) bool { return k.settled || k.at == len(b.tasks) }

// keysAt returns the keys whose next task is tasks[at].
func (b *batch) keysAt(at int) (keys []*openKey) {
	for _, k := range b.keys {
		if k.at == at && !k.removed && !k.settled {
			keys = append(keys, k)
		}
	}
	return keys
}

// moveToEnd moves keys to the end of the list.
func (b *batch) moveToEnd(these func(*openKey) bool) {
	slices.SortStableFunc(b.keys, func(x, y *openKey) int {
		switch {
		case these(x) == these(y):
			return 0
		case these(x):
			return 1
		}
		return -1
	})
}

// workBatch does steps 2 to 5 for a batch. Its error ends the run.
func (c *cleanup) workBatch(ctx context.Context, b *batch) error {
	defer func() {
		c.checkLimits()
		c.loader.release(b)
	}()
	return c.x.Batch(ctx, func(ctx context.Context) error {
		c.linkDeletions(ctx, b)
		if err := c.checkParents(ctx, b); err != nil {
			return err
		}
		if err := c.clean(ctx, b); err != nil {
			return err
		}
		return c.postpone(ctx, b)
	}, attribute.String("maintenance.database", c.x.Database.Name),
		attribute.String("maintenance.parent", b.recorded), attribute.Int("maintenance.records", b.size))
}

// linkDeletions links a batch to the spans in which the application deleted its parents, if it has
// set them (caretaker.traceparent). Links are optional: unreadable ones are skipped.
func (c *cleanup) linkDeletions(ctx context.Context, b *batch) {
	if !c.traced {
		return
	}
	var records []lfk.Record
	for _, k := range b.keys {
		records = append(records, k.records...)
	}
	parents, err := c.x.Database.Queue.RecordTraces(ctx, records, run.MaxBatchLinks, run.ReadLimits())
	if err == nil {
		c.x.Link(ctx, "deletion of the parent", parents)
	}
}

// clean repeats the tasks until all keys are complete or a limit is reached (steps 2 to 4). A key
// with more rows than its share waits at its task while the others continue, and takes part in the
// next pass.
func (c *cleanup) clean(ctx context.Context, b *batch) error {
	for {
		for at, task := range b.tasks {
			keys := b.keysAt(at)
			if len(keys) == 0 {
				continue
			}
			if c.limited() {
				if err := c.finishByProbes(ctx, b); err != nil {
					return err
				}
				return c.removeComplete(ctx, b)
			}
			if err := c.apply(ctx, b, task, keys); err != nil {
				return err
			}
		}
		if err := c.removeComplete(ctx, b); err != nil {
			return err
		}
		if !slices.ContainsFunc(b.keys, func(k *openKey) bool { return !b.complete(k) }) {
			for task, t := range b.taskRuns {
				task.learn(t.changed, len(b.keys))
			}
			return nil
		}
	}
}

// finishByProbes checks whether the very last row reached a row limit: keys without rows in any
// remaining task are complete. At the time limit it sends no query.
func (c *cleanup) finishByProbes(ctx context.Context, b *batch) error {
	for at, task := range b.tasks {
		keys := b.keysAt(at)
		if len(keys) == 0 || c.down(task) != nil {
			continue
		}
		if err := c.x.Stopped(); err != nil {
			return err
		}
		if c.x.Left() <= 0 {
			return nil
		}
		// Without an answer the keys stay incomplete, as the limit requires anyway.
		if _, err := c.advance(ctx, task, keys); err != nil {
			return nil //nolint:nilerr // see above
		}
	}
	return nil
}

// advance queries which keys still have rows for a task, and returns them. The others move on.
func (c *cleanup) advance(
	ctx context.Context, task *childTask, keys []*openKey,
) (left []*openKey, err error) {
	limits := fencing.Limits{Statement: c.sizes.Time(task), Lock: bulk.LockTime}
	remaining, err := task.child.Remaining(ctx, recordedKeys(keys), limits)
	if err != nil {
		return nil, err
	}
	rows := map[lfk.Key]bool{}
	for _, key := range remaining {
		rows[key] = true
	}
	for _, k := range keys {
		if rows[k.key] {
			left = append(left, k)
		} else {
			k.advance()
		}
	}
	return left, nil
}

// recordedKeys returns the keys as the queue recorded them, in the same order.
func recordedKeys(keys []*openKey) []lfk.Key {
	out := make([]lfk.Key, len(keys))
	for i, k := range keys {
		out[i] = k.key
	}
	return out
}

// removeComplete removes the records of the keys that are complete for every definition, unless an
// absent child holds them (step 3).
func (c *cleanup) removeComplete(ctx context.Context, b *batch) error {
	if len(b.absent) > 0 {
		return nil
	}
	var records []lfk.Record
	for _, k := range b.keys {
		if b.complete(k) && !k.keepsRecords() && !k.removed && !k.settled {
			records = append(records, k.records...)
			k.removed = true
		}
	}
	return c.change(ctx, records, "processed_records", c.x.Database.Queue.RemoveRecords)
}

// postpone records why each remaining record stays: failed, locked, held or cut off by a limit
// (step 5).
func (c *cleanup) postpone(ctx context.Context, b *batch) error {
	var failed []lfk.RecordFailure
	var locked, overrun []lfk.Record
	places := map[string]int{}
	held := 0
	for _, k := range b.keys {
		switch {
		case k.removed, k.settled && !k.keepsRecords():
		case k.failure != nil:
			failed = append(failed, k.failure.of(k.records)...)
		case k.locked != nil:
			locked = append(locked, k.records...)
			places[k.locked.place()] += len(k.records)
		case len(b.absent) > 0:
			failed = append(failed, b.holding().of(k.records)...)
			held += len(k.records)
			if !b.complete(k) {
				c.outcome.leaveIncomplete()
			}
		default:
			overrun = append(overrun, k.records...)
		}
	}
	if err := c.fail(ctx, failed); err != nil {
		return err
	}
	if err := c.change(ctx, locked, "rescheduled_records", c.x.Database.Queue.PostponeRecords); err != nil {
		return err
	}
	c.outcome.addPostponed(places, b.parentTasks, held)
	c.report(ctx, b, places)
	return c.charge(ctx, overrun)
}

// maxFailedKeys is the maximum number of failed keys on the span of a batch.
const maxFailedKeys = 10

// report records on the span of a batch that some records failed or, if none did, were postponed.
func (c *cleanup) report(ctx context.Context, b *batch, locked map[string]int) {
	var failures tally
	var keys []lfk.Key
	for _, k := range b.keys {
		if k.failure != nil && !k.failure.held {
			failures.add(k.failure, len(k.records))
			keys = append(keys, k.key)
		}
	}
	if err := failures.err(); err != nil {
		spans.RecordFailure(ctx, err)
		trace.SpanFromContext(ctx).SetAttributes(keysAttribute(keys[:min(len(keys), maxFailedKeys)]))
	} else if len(locked) > 0 {
		places := strings.Join(slices.Sorted(maps.Keys(locked)), ", ")
		spans.RecordOutcome(ctx, spans.OutcomeDeferred, "locked: "+places)
	} else if len(b.absent) > 0 {
		spans.RecordOutcome(ctx, spans.OutcomeDeferred, "held, because "+c.absentText(b.absentChildren()))
	}
}

// keysAttribute returns an attribute for keys: numbers if all keys are.
func keysAttribute(keys []lfk.Key) attribute.KeyValue {
	const name = "maintenance.failed_keys"
	var numbers []int64
	var texts []string
	for _, k := range keys {
		if n, ok := k.Int(); ok {
			numbers = append(numbers, n)
		}
		texts = append(texts, k.String())
	}
	if len(numbers) == len(keys) {
		return attribute.Int64Slice(name, numbers)
	}
	return attribute.StringSlice(name, texts)
}

// permit returns a permit for one statement on the queue, which waits for a lock.
func (c *cleanup) permit(ctx context.Context) (run.Permit, error) {
	limits := fencing.Limits{Statement: 2 * time.Second, Lock: bulk.LongLockTime}
	return c.x.Permit(ctx, c.x.Database, c.queue.Table(), limits)
}

// recordChange is a database method that changes records and returns their number.
type recordChange func(
	context.Context, fencing.Permit, lfk.DeletedRecords, []lfk.Record,
) (int64, error)

// change calls do for the records under a permit, and counts what do reports under the name count.
// A dry run only counts the records. An empty list costs no query.
func (c *cleanup) change(
	ctx context.Context, records []lfk.Record, count string, do recordChange,
) (err error) {
	if c.x.DryRun {
		c.x.Count(ctx, count, int64(len(records)))
	}
	if c.x.DryRun || len(records) == 0 {
		return nil
	}
	permit, err := c.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	n, err := do(ctx, permit.Permit, c.queue, records)
	c.x.Count(ctx, count, n)
	return err
}

// fail postpones records after a failure: by a minute, doubled up to an hour. The tenth isolated
// failure makes a record dead. A dry run only counts them.
func (c *cleanup) fail(ctx context.Context, failed []lfk.RecordFailure) (err error) {
	if c.x.DryRun {
		c.x.Count(ctx, "rescheduled_records", int64(len(failed)))
	}
	if c.x.DryRun || len(failed) == 0 {
		return nil
	}
	permit, err := c.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	rescheduled, dead, err := c.x.Database.Queue.FailRecords(ctx, permit.Permit, c.queue, failed)
	c.x.Count(ctx, "rescheduled_records", rescheduled)
	c.x.Count(ctx, "dead_records", dead)
	return err
}

// charge counts an attempt for records that the run could not finish, and leaves the run
// incomplete. The fourth attempt postpones a record by five minutes.
func (c *cleanup) charge(ctx context.Context, records []lfk.Record) (err error) {
	if len(records) == 0 {
		return nil
	}
	c.outcome.leaveIncomplete()
	permit, err := c.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	incremented, rescheduled, err := c.x.Database.Queue.ChargeRecords(ctx, permit.Permit, c.queue, records)
	c.x.Count(ctx, "incremented_records", incremented)
	c.x.Count(ctx, "rescheduled_records", rescheduled)
	return err
}
