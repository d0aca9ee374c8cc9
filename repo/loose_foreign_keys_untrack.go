package repo

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Untracked is what Untrack did.
type Untracked struct {
	// Table is the schema and name of the table.
	Table string `json:"table"`
	// Parent is its unqualified name if its deletions are no longer noted at all; empty after untracking a partition.
	Parent string `json:"-"`
	// Triggers dropped, as "name on schema.table".
	Triggers []string `json:"triggers"`
}

// Untrack drops the triggers that note deletions from a table and all its partitions; given a partition, that one's and
// those of its own partitions. Pending records stay and are still cleaned. A table without such a trigger is a
// [*RefusedError].
func (d *Database) Untrack(ctx context.Context, table string) (Untracked, error) {
	operation := "untrack " + table
	var target relation
	var drop []Trigger
	look := func(tx pgx.Tx) (err error) {
		target, drop, err = d.trackedBelow(ctx, tx, table)
		return err
	}
	err := d.readOnly(ctx, operation, look)
	if err == nil {
		err = d.ddl(ctx, operation, func(tx pgx.Tx) error {
			if err := look(tx); err != nil {
				return err
			}
			return dropTriggers(ctx, tx, drop)
		})
	}
	if err != nil {
		return Untracked{}, err
	}
	done := Untracked{Table: target.String()}
	if !target.Partition && target.ParentHere {
		done.Parent = target.Name
	}
	for _, t := range drop {
		done.Triggers = append(done.Triggers, fmt.Sprintf("%s on %s", t.Name, t.Relation()))
	}
	return done, nil
}

// trackedBelow finds the triggers on a table and on its partitions.
func (d *Database) trackedBelow(ctx context.Context, tx pgx.Tx, table string) (relation, []Trigger, error) {
	found, err := locate(ctx, tx, table)
	switch {
	case err != nil:
		return relation{}, nil, err
	case len(found) == 0:
		return relation{}, nil, &RefusedError{Database: d.Name, Reason: "there is no table " + table, NoTable: true}
	case len(found) > 1:
		return relation{}, nil, d.refuse("%s and %s are both called %s: say which, with its schema", found[0], found[1], table)
	}
	tree, err := partitionTree(ctx, tx, found[0].OID)
	if err != nil {
		return relation{}, nil, err
	}
	existing, err := triggers(ctx, tx)
	var below []Trigger
	for _, rel := range tree {
		for _, t := range existing {
			if t.OID == rel.OID && !rel.Inherited && strings.HasPrefix(t.Function, plainFunctionName) {
				below = append(below, t)
			}
		}
	}
	if err == nil && len(below) == 0 {
		err = d.refuse("%s is not tracked", found[0])
	}
	return found[0], below, err
}

const dropTriggerSQL = `DROP TRIGGER {trigger} ON {table}`

func dropTriggers(ctx context.Context, tx pgx.Tx, drop []Trigger) error {
	for _, t := range drop {
		sql := fill(dropTriggerSQL, "{trigger}", quote(t.Name), "{table}", quote(t.Schema, t.Table))
		if err := execAll(ctx, tx, statement{sql, nil}); err != nil {
			return err
		}
	}
	return nil
}
