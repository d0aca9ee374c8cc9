package loosefk

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// batch is the records in hand, by key.
type batch struct {
	*plan
	size int
	// keys in the order in which they get their share of a statement.
	keys     []*openKey
	attempts map[*step]*attempt
}

// openKey is one deleted parent row on its way through the definitions.
type openKey struct {
	key     int64
	records []repo.Record
	// at is the step that comes next: len(steps) when the key is through.
	at int
	// locked, the step whose rows somebody else has locked, and failure keep the key's records, though the other
	// definitions go on.
	locked  *step
	failure *failure
	removed bool
	// large: the rows of its batch did not fit under a statement's cap, so it gets shares.
	large bool
}

func newBatch(p *plan, records []repo.Record) *batch {
	b := &batch{plan: p, size: len(records), attempts: map[*step]*attempt{}}
	byKey := map[int64]*openKey{}
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

// next lets the key go on to its next step.
func (k *openKey) next() { k.at, k.large = k.at+1, false }

// flagged keys keep their records for now.
func (k *openKey) flagged() bool { return k.locked != nil || k.failure != nil }

func (b *batch) through(k *openKey) bool { return k.at == len(b.steps) }

// waiting are the keys whose next step is this one.
func (b *batch) waiting(at int) (keys []*openKey) {
	for _, k := range b.keys {
		if k.at == at && !k.removed {
			keys = append(keys, k)
		}
	}
	return keys
}

// workBatch cleans a batch and settles the fate of its records (constructor's steps 2 to 5). Its error ends the run.
func (c *cleanup) workBatch(ctx context.Context, b *batch) error {
	defer func() {
		c.checkLimits()
		c.loader.giveBack()
	}()
	return c.x.Batch(ctx, func(ctx context.Context) error {
		c.linkDeletions(ctx, b)
		if err := c.clean(ctx, b); err != nil {
			return err
		}
		return c.settle(ctx, b)
	}, attribute.String("maintenance.database", c.x.Database.Name), attribute.String("maintenance.parent", b.recorded),
		attribute.Int("maintenance.records", b.size))
}

// linkDeletions leads from a batch to the spans in which the application has deleted its parents, where it has told them
// (caretaker.traceparent). They are an extra: what cannot be read is left out.
func (c *cleanup) linkDeletions(ctx context.Context, b *batch) {
	if !c.noted {
		return
	}
	var records []repo.Record
	for _, k := range b.keys {
		records = append(records, k.records...)
	}
	if parents, err := c.x.Database.RecordTraces(ctx, records, run.MaxBatchLinks, run.ReadLimits()); err == nil {
		c.x.Link(ctx, "deletion of the parent", parents)
	}
}

// clean passes over the steps until all keys are through or a limit is reached. A key with more rows than its share
// stays behind at its step while the others go on, and takes part in the next pass.
func (c *cleanup) clean(ctx context.Context, b *batch) error {
	for {
		for at, s := range b.steps {
			keys := b.waiting(at)
			if len(keys) == 0 {
				continue
			}
			if c.limit.reached() {
				if err := c.finishByProbes(ctx, b); err != nil {
					return err
				}
				return c.removeThrough(ctx, b)
			}
			if err := c.apply(ctx, b, s, keys); err != nil {
				return err
			}
		}
		if err := c.removeThrough(ctx, b); err != nil {
			return err
		}
		if len(b.keys) == b.countThrough() {
			return nil
		}
	}
}

// putBehind moves keys behind the others.
func (b *batch) putBehind(these func(*openKey) bool) {
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

func (b *batch) countThrough() (n int) {
	for _, k := range b.keys {
		if k.removed || b.through(k) {
			n++
		}
	}
	return n
}

// finishByProbes looks whether a row limit was reached by the very last row: keys without rows in any step that is
// left are through. When the time is up nothing more is asked.
func (c *cleanup) finishByProbes(ctx context.Context, b *batch) error {
	for at, s := range b.steps {
		keys := b.waiting(at)
		if len(keys) == 0 || c.down(s) != nil {
			continue
		}
		if err := c.x.Stopped(); err != nil {
			return err
		}
		if c.x.Left() <= 0 {
			return nil
		}
		remaining, err := c.remaining(ctx, s, keys)
		if err != nil {
			return nil //nolint:nilerr // the keys stay incomplete, which is what the limit makes of them anyway
		}
		advance(keys, remaining)
	}
	return nil
}

// advance lets the keys without remaining rows go to their next step.
func advance(keys []*openKey, remaining map[int64]bool) {
	for _, k := range keys {
		if !remaining[k.key] {
			k.next()
		}
	}
}

// removeThrough removes the records of the keys that are complete for every definition, unless an absent child holds
// them.
func (c *cleanup) removeThrough(ctx context.Context, b *batch) error {
	if len(b.absent) > 0 {
		return nil
	}
	var records []repo.Record
	for _, k := range b.keys {
		if b.through(k) && !k.flagged() && !k.removed {
			records = append(records, k.records...)
			k.removed = true
		}
	}
	return c.change(ctx, records, "processed_records", c.x.Database.RemoveRecords)
}

// settle gives every record that is left its fate, one each: failed, locked, held, overrun.
func (c *cleanup) settle(ctx context.Context, b *batch) error {
	var failed []repo.RecordFailure
	var locked, overrun []repo.Record
	putOff := map[string]int{}
	held := 0
	for _, k := range b.keys {
		switch {
		case k.removed:
		case k.failure != nil:
			failed = append(failed, k.failure.of(k.records)...)
		case k.locked != nil:
			locked = append(locked, k.records...)
			putOff[k.locked.place()] += len(k.records)
		case len(b.absent) > 0:
			failed = append(failed, b.holding().of(k.records)...)
			held += len(k.records)
			if !b.through(k) {
				c.limit.setIncomplete()
			}
		default:
			overrun = append(overrun, k.records...)
		}
	}
	if len(failed) > 0 {
		if err := c.fail(ctx, failed); err != nil {
			return err
		}
	}
	if err := c.change(ctx, locked, "rescheduled_records", c.x.Database.PostponeRecords); err != nil {
		return err
	}
	c.locks.add(putOff)
	c.held.add(b.plan, held)
	b.tell(ctx, putOff)
	if len(overrun) == 0 {
		return nil
	}
	c.limit.setIncomplete()
	return c.charge(ctx, overrun)
}

// maxFailedKeys is how many keys of records that failed the span of a batch names.
const maxFailedKeys = 10

// tell says on the span of a batch that some of its records failed, or else that some were put off.
func (b *batch) tell(ctx context.Context, putOff map[string]int) {
	failures := failures{records: map[string]int{}}
	var keys []int64
	for _, k := range b.keys {
		if k.failure != nil {
			failures.count(k.failure, len(k.records))
			keys = append(keys, k.key)
		}
	}
	if err := failures.err(); err != nil {
		run.TellFailure(ctx, err)
		trace.SpanFromContext(ctx).SetAttributes(
			attribute.Int64Slice("maintenance.failed_keys", keys[:min(len(keys), maxFailedKeys)]))
	} else if len(putOff) > 0 {
		run.TellOutcome(ctx, run.OutcomeDeferred, "locked: "+strings.Join(slices.Sorted(maps.Keys(putOff)), ", "))
	} else if len(b.absent) > 0 {
		run.TellOutcome(ctx, run.OutcomeDeferred, "held, "+absentWords(b.absentChildren()))
	}
}

// permit is for statements on the queue.
func (c *cleanup) permit(ctx context.Context) (run.Permit, error) {
	return c.x.Permit(ctx, c.x.Database, c.queue.Table(), queueWriteLimits())
}

type fate func(context.Context, repo.Permit, repo.Queue, []repo.Record) (int64, error)

func (c *cleanup) change(
	ctx context.Context, records []repo.Record, count string, do fate,
) (err error) {
	if len(records) == 0 {
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

func (c *cleanup) fail(ctx context.Context, failed []repo.RecordFailure) (err error) {
	permit, err := c.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	rescheduled, dead, err := c.x.Database.FailRecords(ctx, permit.Permit, c.queue, failed)
	c.x.Count(ctx, "rescheduled_records", rescheduled)
	c.x.Count(ctx, "dead_records", dead)
	return err
}

func (c *cleanup) charge(ctx context.Context, records []repo.Record) (err error) {
	permit, err := c.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	incremented, rescheduled, err := c.x.Database.ChargeRecords(ctx, permit.Permit, c.queue, records)
	c.x.Count(ctx, "incremented_records", incremented)
	c.x.Count(ctx, "rescheduled_records", rescheduled)
	return err
}
