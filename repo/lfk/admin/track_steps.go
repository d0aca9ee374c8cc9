package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// trackStep corrects the triggers of one relation.
type trackStep struct {
	relation relation
	// replaced is the statement trigger to drop first, "" if none.
	replaced string
	// trigger that is required, "" if none because the partition gets that of its table.
	trigger string
	// create the trigger. Otherwise it exists and only needs to be enabled.
	create bool
}

// triggerName returns a relation's trigger name: a partition with too long a name has its root's.
func triggerName(rel, root relation) string {
	if name := rel.Name + triggerSuffix; len(name) <= maxNameBytes {
		return name
	}
	return root.Name + triggerSuffix
}

// renamedKey returns the key that a table's triggers record, if it seems renamed. The table no
// longer has it, but another key has as many columns, and remaining ones in their places. Deletions
// from the table fail meanwhile.
func renamedKey(
	ctx context.Context, tx pgx.Tx, root relation, key []string, existing []Trigger,
) (old []string, err error) {
	for _, t := range existing {
		if form, recorded := t.Form(); t.OID == root.OID && form == FormRight {
			old = recorded
		}
	}
	if len(old) != len(key) || slices.Equal(old, key) {
		return nil, nil
	}
	there, err := catalog.KeyColumns(ctx, tx, []uint32{root.OID}, old...)
	names := namesOf(there)
	if err != nil || len(names) == len(old) {
		return nil, err
	}
	for i, name := range old {
		if slices.Contains(names, name) && name != key[i] {
			return nil, err
		}
	}
	return old, err
}

// step returns the changes that one relation needs. Triggers for the key old are replaced. needed
// is false if the relation's triggers are already correct. A trigger that records another key or
// type is a [*RefusedError].
func (r tracking) step(
	rel, root relation, f captureFunction, old []string, existing []Trigger,
) (step trackStep, needed bool, err error) {
	if rel.Inherited {
		return step, false, nil
	}
	step.relation = rel
	name, found := triggerName(rel, root), false
	// Replace triggers of the old key, keep the first correct one, refuse any other that records
	// deletions.
	for _, t := range existing {
		if t.OID != rel.OID {
			continue
		}
		form, key := t.Form()
		same := slices.Equal(key, f.key)
		switch {
		case form == FormRight && same && t.Values() == f.values() && f.row && !t.Row,
			form == FormRight && old != nil && slices.Equal(key, old):
			step.replaced = t.Name
		case found:
		case form == FormRight && same && t.Values() == f.values():
			if found = true; t.Off() || f.row && t.Fires != "A" {
				step.trigger = t.Name
			}
		case form == FormRight && same:
			return step, false, r.refuse("%s is tracked by the key %s, whose type has changed: run `caretaker "+
				"lfk untrack %s` first", rel, lfk.ColumnList(key), format.Argument(r.table))
		case form == FormRight && len(key) > 1:
			return step, false, r.refuse("%s is tracked by the columns %s: use --column %s, or run `caretaker "+
				"lfk untrack %s` first", rel, lfk.ColumnList(key), columnsArgument(key),
				format.Argument(r.table))
		case form == FormRight:
			return step, false, r.refuse("%s is tracked by the column %s: use --column %s, or run `caretaker "+
				"lfk untrack %s` first",
				rel, lfk.ColumnList(key), columnsArgument(key), format.Argument(r.table))
		case t.Name == name:
			return step, false, r.refuse("%s has a different trigger named %s, which calls %s(%s): drop "+
				"or rename that trigger first",
				rel, name, t.Function, capture.Literals(t.Arguments))
		}
	}
	// PostgreSQL copies the row trigger to partitions.
	if step.create = !found && (!f.row || rel.OID == root.OID); step.create {
		step.trigger = name
	}
	return step, step.trigger != "" || step.replaced != "", nil
}

// columnsArgument returns a key as the argument of --column, quoted for a shell.
func columnsArgument(key []string) string { return format.Argument(strings.Join(key, ",")) }

// carryOut creates the function and the triggers of a plan, and lets runs track its partitions
// again. The caller's transaction holds the lock on the table.
func (p trackPlan) carryOut(ctx context.Context, tx pgx.Tx) error {
	if err := p.function.create(ctx, tx, p.queue); err != nil {
		return err
	}
	for _, sql := range p.sql() {
		if err := run(ctx, tx, sql); err != nil {
			return err
		}
	}
	for _, s := range p.steps {
		if _, err := tx.Exec(ctx, endUntrackingSQL, s.relation.Schema, s.relation.Name); err != nil {
			return err
		}
	}
	return nil
}

// sql returns the statements that create and enable the triggers. Triggers to replace are dropped
// first, so that a new trigger can have the same name.
func (p trackPlan) sql() (all []string) {
	for _, s := range p.steps {
		if s.replaced != "" {
			all = append(all, dropTrigger(s.replaced, s.relation.Schema, s.relation.Name))
		}
	}
	for _, s := range p.steps {
		t := capture.DeleteTrigger{
			Name: s.trigger, Table: s.relation.Table,
			Function:  catalog.Table{Schema: p.queue.Schema, Name: p.function.name},
			Arguments: p.function.arguments, Row: p.function.row,
		}
		if s.create {
			all = append(all, t.CreateSQL())
		}
		if s.trigger != "" {
			all = append(all, t.EnableSQL())
		}
	}
	return all
}

// endUntrackingSQL lets runs track the partition again.
const endUntrackingSQL = `
DELETE FROM maintenance.untracked_partitions WHERE schema = $1 AND name = $2`
