package lfk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
)

// Keys whose parent is alive. Their children stay. Records without a deletion are closed. Records
// of a reused key are held until the operator decides.

// Actions for the records of reused keys.
const (
	// ReuseHold holds them until the operator decides with caretaker lfk reused.
	ReuseHold = "hold"
	// ReuseClean cleans the children, as if the parent were deleted.
	ReuseClean = "clean"
	// ReuseKeep closes the records, so that the children stay.
	ReuseKeep = "keep"
)

// checkedAtOnce is the number of keys that one statement checks.
const checkedAtOnce = 500

// checkParents settles the keys of a batch whose parents are alive where the statements on the
// children do not check it. That is so in a dry run, if the child is in another database, or if no
// child can be reached. It is so if the parent cannot have the key. It is also so if the parent's
// table was created after the run started, or if another of its keys was found alive.
func (c *cleanup) checkParents(ctx context.Context, b *batch) error {
	late, early := !b.table.Exists(), b.living.Load()
	if late {
		tables, _, err := c.parentTables(ctx, c.x, c.queue, map[string]*parentTasks{b.recorded: b.parentTasks})
		if err != nil {
			return err
		}
		b.table = tables[b.recorded]
	}
	if !b.table.Exists() {
		return nil
	}
	down := !slices.ContainsFunc(b.tasks, func(t *childTask) bool { return c.down(t) == nil })
	unchecked := func(k *openKey) bool {
		return down && b.table.Takes(k.key) || slices.ContainsFunc(b.tasks, func(t *childTask) bool {
			unchecked := late || early || t.database != c.x.Database.Name || !b.table.Takes(k.key) ||
				c.x.DryRun && c.down(t) == nil
			return unchecked && t.child != nil && t.child.CheckKey(k.key) == nil
		})
	}
	return c.settle(ctx, b, slices.DeleteFunc(slices.Clone(b.keys), func(k *openKey) bool {
		return !unchecked(k)
	}))
}

// queueError is an error that ends the run: it is not from a statement on a child.
type queueError struct{ error }

func (e *queueError) Unwrap() error { return e.error }

// isQueueError reports whether err ends the run because no statement on a child caused it.
func isQueueError(err error) bool {
	_, ok := errors.AsType[*queueError](err)
	return ok
}

// settle checks keys against their parent's table. It settles those of living parents, unless their
// children may be cleaned all the same.
func (c *cleanup) settle(ctx context.Context, b *batch, keys []*openKey) error {
	for some := range slices.Chunk(keys, checkedAtOnce) {
		if err := c.settleSome(ctx, b, some); err != nil {
			return &queueError{err}
		}
	}
	return nil
}

// holdReused postpones the records of a key like failed ones, but without a failure.
func (c *cleanup) holdReused(b *batch, k *openKey, claim lfk.Claim) {
	k.settled, k.failure = true, &failure{held: true, sqlstate: reasons.KeyReused}
	c.outcome.addReused(b.recorded, claim, len(k.records))
}

// settleSome checks whether the parents of the keys are really deleted. It closes records of
// obsolete keys and holds those of reused keys. If PostgreSQL refuses the check, the records fail
// and the run continues.
func (c *cleanup) settleSome(ctx context.Context, b *batch, keys []*openKey) error {
	claims, err := c.claims(ctx, b, keys)
	if refused, ok := errors.AsType[*dberr.Error](err); ok && refused.SQLState != "" {
		c.failCheck(ctx, b, keys, refused)
		return nil
	}
	if err != nil {
		return err
	}
	var obsolete []lfk.Record
	for i, k := range keys {
		switch claims[i] {
		case lfk.ClaimTrue:
		case lfk.ClaimApproved:
			k.approved = true
		case lfk.ClaimObsolete:
			k.settled = true
			obsolete = append(obsolete, k.records...)
			c.outcome.addObsolete(b.recorded, k.key)
		case lfk.ClaimReused, lfk.ClaimUnknown:
			c.holdReused(b, k, claims[i])
		}
	}
	return c.change(ctx, obsolete, "obsolete_records", c.x.Database.Queue.CloseRecords)
}

// claims returns how the run handles each key. All records of a key are treated alike: if one of
// them must be held, all are held, including those that the operator has released.
func (c *cleanup) claims(ctx context.Context, b *batch, keys []*openKey) ([]lfk.Claim, error) {
	var records []lfk.Record
	for _, k := range keys {
		records = append(records, k.records...)
	}
	limits := run.ReadLimits()
	limits.ReadOnly = c.x.DryRun
	found, err := c.x.Database.Queue.Claims(ctx, c.queue, b.table, records, limits)
	if err != nil {
		return nil, err
	}
	claims := make([]lfk.Claim, len(keys))
	for i, k := range keys {
		claims[i] = slices.Max(found[:len(k.records)])
		found = found[len(k.records):]
		if claims[i] == lfk.ClaimReused {
			claims[i] = c.reusedClaim()
		}
	}
	return claims, nil
}

// reusedClaim returns the configured handling of a reused key.
func (c *cleanup) reusedClaim() lfk.Claim {
	switch c.config.ReusedKeys {
	case ReuseClean:
		return lfk.ClaimApproved
	case ReuseKeep:
		return lfk.ClaimObsolete
	}
	return lfk.ClaimReused
}

// failCheck fails keys whose parent cannot be checked, or postpones them if its lock is held.
func (c *cleanup) failCheck(ctx context.Context, b *batch, keys []*openKey, err *dberr.Error) {
	if err.Class() == dberr.ClassLock {
		parent := &childTask{key: lfk.Definition{Table: b.recorded}, database: c.x.Database.Name}
		for _, k := range keys {
			k.settled, k.locked = true, parent
		}
		return
	}
	f := &failure{
		definition: b.recorded, database: c.x.Database.Name, condition: err.Condition(),
		sqlstate: err.SQLState, message: err.Error(),
	}
	records := 0
	for _, k := range keys {
		k.settled, k.failure = true, f
		records += len(k.records)
	}
	c.addFailure(ctx, f, records, err)
}

// unsettled returns the keys that are not settled.
func unsettled(keys []*openKey) []*openKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k *openKey) bool { return k.settled })
}

// approvedKeys returns those whose children are cleaned although their parent is alive.
func approvedKeys(keys []*openKey) (approved []lfk.Key) {
	for _, k := range keys {
		if k.approved {
			approved = append(approved, k.key)
		}
	}
	return approved
}

// living counts the keys and records of living parents, by the recorded name of their table.
type living struct {
	obsolete map[string][]lfk.Key
	reused   map[string]int
	// unknown counts those whose key's columns are unknown.
	unknown map[string]int
	// protected counts the records that are held for protected rows, by the reason.
	protected map[string]int
}

// addObsolete records a key whose records stand for no deletion, by the recorded table name.
func (o *outcome) addObsolete(recorded string, key lfk.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.living.obsolete[recorded] = append(o.living.obsolete[recorded], key)
}

// addReused counts the records of a key that another row uses now. Keys that could not be checked
// count separately, as unknown.
func (o *outcome) addReused(recorded string, claim lfk.Claim, records int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if claim == lfk.ClaimUnknown {
		o.living.unknown[recorded] += records
	} else {
		o.living.reused[recorded] += records
	}
}

// addProtected counts records that a protection holds, by its reason.
func (o *outcome) addProtected(reason string, records int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.living.protected[reason] += records
}

// maxKeysNamed is the maximum number of keys of living parents in a log line.
const maxKeysNamed = 10

// reportLiving logs, for each parent, how many records were closed, and adds those that are held to
// the run's reason.
func (c *cleanup) reportLiving(ctx context.Context) {
	for _, recorded := range slices.Sorted(maps.Keys(c.outcome.living.obsolete)) {
		keys := c.outcome.living.obsolete[recorded]
		var named []string
		for _, key := range keys[:min(len(keys), maxKeysNamed)] {
			named = append(named, key.String())
		}
		if !c.x.DryRun {
			c.x.Log.WarnContext(ctx, "parent rows exist, records closed", "table", recorded,
				"keys", len(keys), "first_keys", strings.Join(named, ", "))
		}
	}
	var held []string
	table := func(recorded string) string { return strings.TrimPrefix(recorded, c.queue.Schema+".") }
	for _, recorded := range slices.Sorted(maps.Keys(c.outcome.living.reused)) {
		held = append(held, fmt.Sprintf("%s held because of reused keys: to check the records, run `caretaker lfk "+
			"reused %s`",
			format.Pluralize(c.outcome.living.reused[recorded], "record"), format.Argument(table(recorded))))
	}
	for _, recorded := range slices.Sorted(maps.Keys(c.outcome.living.unknown)) {
		held = append(held, fmt.Sprintf("%s held, because the key columns of %s are unknown without a trigger: "+
			"list the recorded columns as `key` in the definitions, or run `caretaker lfk reused %s`",
			format.Pluralize(c.outcome.living.unknown[recorded], "record"), table(recorded), format.Argument(table(recorded))))
	}
	for _, reason := range slices.Sorted(maps.Keys(c.outcome.living.protected)) {
		held = append(held, format.Pluralize(c.outcome.living.protected[reason], "record")+" held, "+reason)
	}
	if len(held) > 0 {
		text := strings.Join(held, "; ")
		c.x.Report(func(r *run.Run) { r.Reason = format.Join(r.Reason, text) })
	}
}
