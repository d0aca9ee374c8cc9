package admin

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Parent is a parent table and how its deletions are recorded.
type Parent struct {
	// PartitionOf names the table that it is a partition of, "" if none.
	PartitionOf string
	// Relations are the table, then its partitions, level by level.
	Relations []Relation
	// Heirs are tables below it by INHERITS that have no trigger of their own.
	Heirs []string
	// Replicated means that logical replication fills the table, or one of its partitions.
	Replicated bool
	// Key lists the recorded columns. If nothing is recorded, it lists those that the definitions
	// name, or id. Columns are those that exist.
	Key     []string
	Columns []catalog.KeyColumn
	// Values means that the key is recorded as texts, otherwise as one integer.
	Values bool
}

// Tracked reports whether a trigger of any form records deletions.
func (p Parent) Tracked() bool {
	return slices.ContainsFunc(p.Relations, func(r Relation) bool {
		if r.Trigger == nil {
			return false
		}
		form, _ := r.Trigger.Form()
		return form != FormForeign
	})
}

// Relation is a table or partition with its trigger.
type Relation struct {
	// Name with its schema.
	Name string
	// Trigger that records deletions best, nil if none.
	Trigger *Trigger
	// Others record the same deletions again, or under another name.
	Others []Trigger
}

// InspectParents reads how deletions from the parents of these definitions are recorded. Of the
// [Inspection] it sets Parents, and Children with an empty entry for each child that is here. It is
// cheaper than [Admin.Inspect]: it reads neither indexes nor columns of children.
func (a Admin) InspectParents(
	ctx context.Context, keys []lfk.Definition,
) (i Inspection, err error) {
	if i.Queue.Schema, err = a.database.ApplicationSchema(ctx); err != nil {
		return i, err
	}
	i.Children = make([]*Child, len(keys))
	err = a.read(ctx, "inspect parents", func(ctx context.Context, tx pgx.Tx) error {
		tables, err := findTables(ctx, tx, keys)
		if err != nil {
			return err
		}
		for n, k := range keys {
			if _, here := tables[k.Table]; here {
				i.Children[n] = &Child{}
			}
		}
		if i.Triggers, err = triggers(ctx, tx); err != nil {
			return err
		}
		// Children that are not parents are not read further.
		maps.DeleteFunc(tables, func(name string, _ relation) bool {
			return !slices.ContainsFunc(keys, func(k lfk.Definition) bool { return k.Parent == name })
		})
		trees, err := readTrees(ctx, tx, rootsOf(tables)...)
		if err == nil {
			i.Parents, err = inspectParents(ctx, tx, keys, tables, trees, i.Triggers)
		}
		return err
	})
	return i, err
}

// inspectParents inspects the parents that are here, by their names in the definitions. existing
// are all triggers of the database. One statement reads the columns of all keys.
func inspectParents(ctx context.Context, tx pgx.Tx, keys []lfk.Definition,
	tables map[string]relation, trees trees, existing []Trigger,
) (map[string]Parent, error) {
	byTable := map[uint32][]Trigger{}
	for _, t := range existing {
		byTable[t.OID] = append(byTable[t.OID], t)
	}
	parents, oids, names := map[string]Parent{}, []uint32{}, []string{}
	for _, k := range keys {
		if table, here := tables[k.Parent]; here && parents[k.Parent].Key == nil {
			p := parentOf(table, trees[table.OID], byTable, definedKey(keys, k.Parent))
			parents[k.Parent] = p
			oids, names = append(oids, table.OID), append(names, p.Key...)
		}
	}
	columns, err := catalog.KeyColumns(ctx, tx, oids, names...)
	for name, p := range parents {
		for _, key := range p.Key {
			for _, c := range columns {
				if c.Table == tables[name].OID && c.Name == key {
					p.Columns = append(p.Columns, c)
				}
			}
		}
		parents[name] = p
	}
	return parents, err
}

// parentOf returns a parent with the triggers of its tree. wanted is the key of the definitions,
// which counts if no trigger records another.
func parentOf(
	table relation, tree []relation, existing map[uint32][]Trigger, wanted []string,
) Parent {
	p := Parent{Key: wanted, Replicated: replicated(tree)}
	if table.Partition {
		p.PartitionOf = table.Parent
	}
	// The order is backward: the trigger of the table itself decides the key, not that of a
	// partition.
	for _, rel := range slices.Backward(tree) {
		r := sortTriggers(rel, existing[rel.OID])
		if rel.Inherited {
			if r.Trigger == nil {
				p.Heirs = append(p.Heirs, rel.String())
			}
			continue
		}
		if r.Trigger != nil {
			if form, key := r.Trigger.Form(); form != FormForeign {
				p.Key, p.Values = key, r.Trigger.Values()
			}
		}
		p.Relations = append(p.Relations, r)
	}
	slices.Reverse(p.Relations)
	return p
}

// sortTriggers finds the trigger of a table that comes nearest to recording all of its deletions
// always, and the other triggers that record them. The form of a trigger counts most, then when
// it fires.
func sortTriggers(rel relation, existing []Trigger) Relation {
	r := Relation{Name: rel.String()}
	rank := func(t *Trigger) int {
		form, _ := t.Form()
		rank := int(form)*100 + map[string]int{"A": 20, "O": 10}[t.Fires]
		if t.Row {
			rank++
		}
		if t.Copied && !t.Off() {
			rank += 30 // it cannot be dropped alone
		}
		return rank
	}
	for i := range existing {
		if r.Trigger == nil || rank(&existing[i]) > rank(r.Trigger) {
			r.Trigger = &existing[i]
		}
	}
	for i, t := range existing {
		if form, _ := t.Form(); form != FormForeign && !t.Off() && &existing[i] != r.Trigger {
			r.Others = append(r.Others, t)
		}
	}
	return r
}
