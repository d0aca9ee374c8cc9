package admin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Inspection is the result of `caretaker lfk lint` in one database, which changes nothing.
type Inspection struct {
	// Queue is the queue of deleted parents, with its shape.
	Queue lfk.DeletedRecords
	// QueueFaults describe how the queue differs from GitLab's.
	QueueFaults []string
	// ActiveMissing means that records are sent to a partition that does not exist.
	ActiveMissing bool
	// Routed lists the faults of the routed queues with faults, by the names of their tables.
	Routed map[string][]string
	// Pending are the recorded table names that have pending records.
	Pending []string
	// Parents that are tables here, by their names in the definitions.
	Parents map[string]Parent
	// Children has an entry for each definition, nil if its child is not in this database.
	Children []*Child
	// ForeignKeys are the real foreign keys to tables that the definitions name.
	ForeignKeys []ForeignKey
	// Triggers are all that record deletions, or have the name of such a trigger.
	Triggers []Trigger
	// OldFunctions are the trigger functions, with their schemas, that an older version of
	// caretaker has made, that are missing, or that insert into no queue.
	OldFunctions []string
	// Lagging are the sequences whose next number is in use.
	Lagging []LaggingSequence
}

// Inspect reads all that lint checks in a database for these definitions. It reads the catalogue in
// one snapshot, then pending records and triggers or rules that may keep rows.
func (a Admin) Inspect(ctx context.Context, keys []lfk.Definition) (Inspection, error) {
	var i Inspection
	var tables map[string]relation
	err := a.read(ctx, "inspect loose foreign keys", func(ctx context.Context, tx pgx.Tx) (err error) {
		// 1. The queue and the triggers.
		if err = a.inspectQueue(ctx, tx, &i); err != nil {
			return err
		}
		if i.Triggers, err = triggers(ctx, tx); err != nil {
			return err
		}
		// 2. The tables of the definitions, with the tables below them.
		if tables, err = findTables(ctx, tx, keys); err != nil {
			return err
		}
		roots := rootsOf(tables)
		trees, err := readTrees(ctx, tx, roots...)
		if err != nil {
			return err
		}
		// 3. Parents and children.
		if i.Parents, err = inspectParents(ctx, tx, keys, tables, trees, i.Triggers); err != nil {
			return err
		}
		if i.Children, err = inspectChildren(ctx, tx, keys, tables, trees); err != nil {
			return err
		}
		// 4. Real foreign keys.
		snapshot, batch := catalog.NewCatalog(a.database), &pgx.Batch{}
		snapshot.QueueKeys(batch, catalog.AllActions)
		err = tx.SendBatch(ctx, batch).Close()
		i.ForeignKeys = foreignKeysOf(snapshot.Keys, trees)
		return err
	})
	// 5. Pending records and keeping triggers, outside of the snapshot.
	if err == nil {
		err = a.inspectPending(ctx, &i)
	}
	for n, child := range i.Children {
		if child == nil || err != nil {
			continue
		}
		if a.progress != nil {
			a.progress(n+1, len(i.Children))
		}
		table := tables[keys[n].Table]
		child.Keepers, err = catalog.NewSchema(a.database).KeepingTriggers(ctx, table.Table,
			keys[n].OnDelete == lfk.AsyncDelete)
	}
	return i, err
}

// InspectSequences reads the queue and the sequences alone.
func (a Admin) InspectSequences(ctx context.Context) (i Inspection, err error) {
	err = a.read(ctx, "inspect sequences", func(ctx context.Context, tx pgx.Tx) error {
		return a.inspectSequences(ctx, tx, &i)
	})
	return i, err
}

// inspectSequences reads the queue and its faults. It reads sequences only if the queue has none.
func (a Admin) inspectSequences(ctx context.Context, tx pgx.Tx, i *Inspection) (err error) {
	i.Queue, i.QueueFaults, err = a.readQueue(ctx, tx)
	if err == nil && len(i.QueueFaults) == 0 {
		i.Lagging, err = laggingSequences(ctx, tx, i.Queue)
	}
	return err
}

// inspectQueue reads the queue, its trigger functions, and the faults of routed queues. It stops
// early if the queue is missing or has faults.
func (a Admin) inspectQueue(ctx context.Context, tx pgx.Tx, i *Inspection) error {
	err := a.inspectSequences(ctx, tx, i)
	if err != nil || !i.Queue.Exists || len(i.QueueFaults) > 0 {
		return err
	}
	// 1. Trigger functions that are old, missing or stray.
	all, err := readFunctions(ctx, tx)
	if err != nil {
		return err
	}
	for _, f := range slices.Concat(all.old(i.Queue), all.missing(i.Queue)) {
		i.OldFunctions = append(i.OldFunctions, i.Queue.Schema+"."+f.name)
	}
	for _, f := range all.stray(i.Queue) {
		i.OldFunctions = append(i.OldFunctions, f.Schema+"."+f.Name)
	}
	slices.Sort(i.OldFunctions)
	i.OldFunctions = slices.Compact(i.OldFunctions)
	// 2. The active partition.
	i.ActiveMissing = i.Queue.ActiveMissing()
	tables, err := named(ctx, tx, lfk.QueueTables()...)
	i.Routed = map[string][]string{}
	// 3. The index of each table of the queue, and the shape of routed ones.
	for n, t := range i.Queue.Existing() {
		var faults []string
		if n > 0 && err == nil {
			faults, err = shapeFaults(ctx, tx, i.Queue, n)
		}
		if err == nil && len(faults) == 0 {
			faults, err = indexFaults(ctx, tx, tables[t.Name])
		}
		switch {
		case n == 0:
			i.QueueFaults = faults
		case len(faults) > 0:
			i.Routed[t.Name] = faults
		case t.ActiveMissing():
			i.Routed[t.Name] = []string{
				"the default of the `partition` column does not match any partition",
			}
		}
	}
	return err
}

// indexFaults reports that a table of the queue is missing the index without which loading records
// takes seconds, not milliseconds.
func indexFaults(ctx context.Context, tx pgx.Tx, table []relation) (faults []string, err error) {
	var oids []uint32
	for _, t := range table {
		oids = append(oids, t.OID)
	}
	indexes, err := catalog.Indexes(ctx, tx, oids...)
	wanted := []string{"partition", "fully_qualified_table_name", "consume_after", "id"}
	if err == nil && !slices.ContainsFunc(indexes, func(i catalog.Index) bool {
		return i.Predicate == "(status = 1)" && slices.Equal(i.Columns[:min(len(i.Columns), 4)], wanted)
	}) {
		faults = []string{"it has no valid index " +
			"(partition, fully_qualified_table_name, consume_after, id) WHERE status = 1"}
	}
	return faults, err
}

// inspectPending finds pending records. Without the index it would read all records. The statement
// may take 30 seconds, and waits up to 2 seconds for a lock.
func (a Admin) inspectPending(ctx context.Context, i *Inspection) error {
	if !i.Queue.Exists || len(i.QueueFaults) > 0 {
		return nil
	}
	if err := lfk.NewQueue(a.database).ReadDefault(ctx, &i.Queue); err != nil {
		return err
	}
	pending, err := lfk.NewQueue(a.database).PendingParents(ctx, i.Queue,
		fencing.Limits{Statement: 30 * time.Second, Lock: 2 * time.Second})
	i.Pending = lfk.ParentNames(pending)
	return err
}

// findTables finds the writable ordinary and partitioned tables that definitions name as children
// and as parents. The result has them by their names in the definitions. It has no views, foreign
// tables, or write-protected tables.
func findTables(
	ctx context.Context, tx pgx.Tx, keys []lfk.Definition,
) (map[string]relation, error) {
	var names []string
	for _, k := range keys {
		names = append(names, k.Table, k.Parent)
	}
	found, err := named(ctx, tx, names...)
	tables := map[string]relation{}
	for name, some := range found {
		r := some[0]
		if r.exact && !r.Protected && (r.Kind == kindTable || r.Kind == kindPartitioned) {
			tables[name] = r
		}
	}
	return tables, err
}

// rootsOf returns the OIDs of tables without duplicates.
func rootsOf(tables map[string]relation) (roots []uint32) {
	for _, table := range tables {
		roots = append(roots, table.OID)
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// definedKey returns the key columns that a definition of the parent sets, otherwise id. The first
// definition that sets them counts.
func definedKey(keys []lfk.Definition, parent string) []string {
	for _, k := range keys {
		if k.Parent == parent && k.Key != nil {
			return k.Key
		}
	}
	return []string{"id"}
}

// ForeignKey is a real foreign key to a table that definitions name.
type ForeignKey struct {
	catalog.ForeignKey
	// From, "" if none, and To are tables of definitions, with their schemas. The foreign key is of
	// From or a table below it, and refers to To or a table below it.
	From, To string
}

// Blocks reports whether a referenced row cannot be deleted. If the foreign key is deferrable, that
// shows at the commit.
func (f ForeignKey) Blocks() bool { return f.OnDelete == "a" || f.OnDelete == "r" }

// String returns the foreign key with its table.
func (f ForeignKey) String() string { return f.Name + " on " + f.Child.Recorded("") }

// foreignKeysOf returns the enforced foreign keys to the tables of some trees. A foreign key
// between several trees is returned for each pair of them.
func foreignKeysOf(keys []catalog.ForeignKey, trees trees) (found []ForeignKey) {
	roots := map[catalog.Table][]string{}
	for _, root := range slices.Sorted(maps.Keys(trees)) {
		for _, r := range trees[root] {
			roots[r.Table] = append(roots[r.Table], trees[root][0].String())
		}
	}
	for _, k := range keys {
		children := roots[k.Child]
		if len(children) == 0 {
			children = []string{""}
		}
		for _, to := range roots[k.Parent] {
			for _, from := range children {
				if k.Enforced {
					found = append(found, ForeignKey{k, from, to})
				}
			}
		}
	}
	return found
}
