package orphans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/repo/lfk/orphans"
)

// Audit searches for orphans.
type Audit struct {
	// Databases from the configuration, main first.
	Databases []*repo.Database
	// Keys are the definitions.
	Keys []lfk.Definition
}

// Task is one definition in one database that has its child.
type Task struct {
	Key lfk.Definition
	// Fault is why it cannot be audited, and what to do. "" means it can.
	Fault string

	child *lfk.Child
	// parents are the parent's databases. Records are written to the first.
	parents []*orphans.Parent
	// key are the columns by which the databases of the parent record it. untracked is the first of
	// them if key is a guess, because its deletions are not recorded.
	key       []string
	untracked string
	// values reports that the first database records text keys. mixed is the name of one that
	// records another type.
	values bool
	mixed  string
	// order has, for each recorded column of the parent, the position of the child's column.
	order []int
}

// Name returns the definition with its conditions, which may distinguish it from another one.
func (t *Task) Name() string {
	parts := []string{t.Key.String()}
	for _, c := range t.Key.Conditions {
		parts = append(parts, fmt.Sprintf("if %s = %s", c.Column, c.Value))
	}
	return strings.Join(parts, " ")
}

// Database returns the name of the child's database, or "".
func (t *Task) Database() string {
	if t.child == nil {
		return ""
	}
	return t.child.Database.Name
}

// QueueDatabase returns the database of the parent whose queue gets the records, only without a
// Fault.
func (t *Task) QueueDatabase() *repo.Database { return repo.Of(t.parents[0].Database()) }

// inspected is an inspected database with its contents.
type inspected struct {
	database *repo.Database
	admin.Inspection
	children []*lfk.Child
}

// Tasks returns the tasks of the audit, in the order of the definitions. It omits definitions whose
// child is in no configured database. An error means that a database does not answer.
func (a Audit) Tasks(ctx context.Context) (tasks []*Task, err error) {
	databases := make([]inspected, len(a.Databases))
	for i, d := range a.Databases {
		seen := inspected{database: d}
		if seen.Inspection, err = admin.New(d.Database).Inspect(ctx, a.Keys); err != nil {
			return nil, err
		}
		if seen.children, err = d.Children.Children(ctx, a.Keys); err != nil {
			return nil, err
		}
		databases[i] = seen
	}
	for i, key := range a.Keys {
		for _, d := range databases {
			if d.children[i] == nil || d.Children[i] == nil {
				continue
			}
			task := &Task{Key: key, child: d.children[i]}
			if task.Fault = childFault(key, d.Children[i]); task.Fault == "" {
				task.Fault, err = task.findParents(ctx, databases)
			}
			if err != nil {
				return nil, err
			}
			tasks = append(tasks, task)
		}
	}
	return tasks, nil
}

// childFault returns why the keys of a child cannot be read from an index. "" means they can.
func childFault(key lfk.Definition, child *admin.Child) string {
	switch {
	case len(child.MissingColumns) > 0:
		return fmt.Sprintf("%s has no column %s: run `caretaker lfk lint` for details", key.Table,
			strings.Join(child.MissingColumns, ", "))
	case len(child.Mismatches) > 0:
		return child.Mismatches[0] + ": run `caretaker lfk lint` for details"
	case !child.Indexed:
		return "no index covers the keys of " + key.Table + ": run `caretaker lfk lint` to see the missing index"
	case !child.Ordered:
		return fmt.Sprintf("the search for orphans of %s requires an index on (%s), in this order: create the "+
			"index, or list column and key of the definition in the same order as an existing index", key.Table,
			strings.Join(key.Columns, ", "))
	}
	return ""
}

// findParents finds the databases that contain the parent.
func (t *Task) findParents(ctx context.Context, databases []inspected) (fault string, err error) {
	partition := ""
	for _, d := range databases {
		seen, here := d.Parents[t.Key.Parent]
		if !here {
			continue
		}
		if seen.PartitionOf != "" {
			partition = fmt.Sprintf("%s is a partition of %s: use %[2]s in the definitions", t.Key.Parent,
				seen.PartitionOf)
			continue
		}
		// All databases must record the parent by the same key.
		if t.key != nil && !slices.Equal(t.key, seen.Key) {
			return fmt.Sprintf("%s is tracked by %s on %s and by %s elsewhere: track %[1]s by the same key in "+
				"every database", t.Key.Parent, lfk.ColumnList(seen.Key), d.database.Name,
				lfk.ColumnList(t.key)), nil
		}
		if fault := t.mapColumns(seen.Key); fault != "" {
			return fault, nil
		}
		if t.key = seen.Key; t.untracked == "" && !seen.Tracked() {
			t.untracked = d.database.Name
		}
		values := needsValues(seen)
		if len(t.parents) == 0 {
			t.values = values
		} else if values != t.values {
			t.mixed = d.database.Name
		}
		// A database without the table itself returns nil.
		parent, err := d.database.Orphans.Parent(ctx, t.Key.Parent, seen.Key, values)
		if err != nil {
			return "", err
		}
		if parent != nil {
			t.parents = append(t.parents, parent)
		}
	}
	// No database has the parent: find out why.
	if len(t.parents) > 0 {
		return "", nil
	}
	if partition != "" {
		return partition, nil
	}
	var all []*repo.Database
	for _, d := range databases {
		all = append(all, d.database)
	}
	others, err := lfk.NotTables(ctx, repo.Kernels(all), []string{t.Key.Parent})
	return cmp.Or(others[t.Key.Parent], t.Key.Parent+
		" is not in any configured database, so missing parent rows cannot be determined"), err
}

// needsValues reports whether a key is recorded as texts, not as one integer.
func needsValues(p admin.Parent) bool {
	return p.Values || len(p.Columns) != 1 || p.Columns[0].Class != repo.ClassInteger
}

// mapColumns finds the position of each recorded column among the child's.
func (t *Task) mapColumns(recorded []string) (fault string) {
	places, err := t.Key.Places(recorded)
	if err != nil {
		return err.Error() + ": run `caretaker lfk lint` for details"
	}
	t.order = make([]int, len(places))
	for i, place := range places {
		t.order[place] = i
	}
	return ""
}

// recorded returns a key of the child as in records.
func (t *Task) recorded(key lfk.Key) lfk.Key {
	values := key.Values()
	ordered := make([]string, len(t.order))
	for i, place := range t.order {
		ordered[i] = values[place]
	}
	return lfk.KeyOf(ordered...)
}

// Page is the result for some keys of a child.
type Page struct {
	// Keys that were checked, in order, and whether more follow.
	Keys []lfk.Key
	More bool
	// Orphans are those of them with rows but without a parent. Rows is the number of these rows.
	// It stops at 100,000, and is then a lower bound.
	Orphans []lfk.Key
	Rows    int64
	AtLeast bool
	// horizons are those of the parent's databases, from before the check of the parents.
	horizons []string
}

// maxRows is the limit for counting the rows of a page's orphans.
const maxRows = 100_000

// ErrBusy means that the parent of a definition has too many waiting records to compare with.
var ErrBusy = errors.New("the parent has more than 10,000 pending records: try again after " +
	"loose_foreign_keys_cleanup has processed the records")

// limits bound the reads.
func limits() fencing.Limits { return fencing.Limits{Statement: 10 * time.Second, Lock: time.Second} }

// Scan checks up to limit keys of the child after a key. It stops at the maximum number of orphans.
func (t *Task) Scan(ctx context.Context, after lfk.Key, limit, most int) (p Page, err error) {
	if p.Keys, err = orphans.Referred(ctx, t.child, after, limit, limits()); err != nil || len(p.Keys) == 0 {
		return p, err
	}
	// 1. Read the horizon of each parent before its rows.
	p.More = len(p.Keys) == limit
	for _, parent := range t.parents {
		horizon, err := parent.Horizon(ctx)
		if err != nil {
			return p, err
		}
		p.horizons = append(p.horizons, horizon)
	}
	// 2. Keep the keys that no parent has.
	child := make(map[lfk.Key]lfk.Key, len(p.Keys))
	missing := make([]lfk.Key, len(p.Keys))
	for i, key := range p.Keys {
		missing[i] = t.recorded(key)
		child[missing[i]] = key
	}
	for _, parent := range t.parents {
		if missing, err = parent.Missing(ctx, missing, limits()); err != nil || len(missing) == 0 {
			return p, err
		}
	}
	for _, parent := range t.parents {
		// 3. Drop the keys that already have a record, pending or dead.
		waiting, busy, err := parent.Waiting(ctx, limits())
		if err != nil {
			return p, err
		}
		if busy {
			return p, ErrBusy
		}
		missing = slices.DeleteFunc(missing, func(k lfk.Key) bool { return waiting[k] })
	}
	for i, key := range missing {
		missing[i] = child[key]
	}
	// 4. Read which keys still have rows, and count the rows up to maxRows.
	if p.Orphans, err = t.child.Remaining(ctx, missing, limits()); err != nil || len(p.Orphans) == 0 {
		return p, err
	}
	if len(p.Orphans) > most {
		p.cut(most)
	}
	p.Rows, err = t.child.Count(ctx, p.Orphans, maxRows+1, limits())
	p.Rows, p.AtLeast = min(p.Rows, maxRows), p.Rows > maxRows
	return p, err
}

// cut keeps only the first n of the orphans, and the keys up to the last of them.
func (p *Page) cut(n int) {
	last := slices.Index(p.Keys, p.Orphans[n-1])
	p.Orphans, p.Keys, p.More = p.Orphans[:n], p.Keys[:last+1], true
}

// guess returns why the key of the parent is uncertain. "" means it is certain, or there is a
// fault.
func (t *Task) guess() string {
	if t.untracked == "" || t.Fault != "" {
		return ""
	}
	return fmt.Sprintf("%s is not tracked on %s, so the search assumed the key %s",
		t.Key.Parent, t.untracked, lfk.ColumnList(t.key))
}

// Refuses returns why no records can be written for the task's orphans. "" means they can.
func (t *Task) Refuses() string {
	if t.untracked != "" {
		return fmt.Sprintf("%s is not tracked on %s, so its key is unknown: run `caretaker lfk "+
			"track %[1]s --database %[2]s` first", t.Key.Parent, t.untracked)
	}
	if t.mixed != "" {
		return fmt.Sprintf("the key of %s is recorded in different forms on %s and %s: use the same types for "+
			"the key columns in every database, then track %[1]s "+
			"again", t.Key.Parent, t.QueueDatabase().Name, t.mixed)
	}
	return t.parents[0].Refuses()
}

// confirm returns the keys still missing from the parent's databases except the first. It waits for the
// transactions that were open there when the keys were found. late: they have not ended.
func (t *Task) confirm(ctx context.Context, p Page, keys []lfk.Key) (_ []lfk.Key, late bool, err error) {
	for i, parent := range t.parents[1:] {
		ended, err := parent.Ended(ctx, p.horizons[i+1])
		if err != nil || !ended {
			return nil, err == nil, err
		}
		if keys, err = parent.Missing(ctx, keys, limits()); err != nil {
			return nil, false, err
		}
	}
	return keys, false, nil
}

// waitTimeout is how long to wait for older transactions, with the interval of checks.
const (
	waitTimeout = 2 * time.Second
	pause       = 50 * time.Millisecond
)

// Record writes the records of a page's orphans to the queue of the parent's database, and returns
// their number. late: older transactions have not ended within two seconds, and nothing was
// written. permitted calls with a permit for that database.
func (t *Task) Record(
	ctx context.Context, p Page, permitted func(func(fencing.Permit) error) error,
) (n int64, late bool, err error) {
	keys := make([]lfk.Key, len(p.Orphans))
	for i, key := range p.Orphans {
		keys[i] = t.recorded(key)
	}
	for end := time.Now().Add(waitTimeout); ; {
		var missing []lfk.Key
		missing, late, err = t.confirm(ctx, p, keys)
		if err == nil && !late && len(missing) > 0 {
			err = permitted(func(permit fencing.Permit) (err error) {
				n, late, err = t.parents[0].Record(ctx, permit, missing, p.horizons[0])
				return err
			})
		}
		if err != nil || !late || time.Now().After(end) {
			return n, late, err
		}
		select {
		case <-ctx.Done():
			return 0, true, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
