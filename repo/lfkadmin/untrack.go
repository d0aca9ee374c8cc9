package lfkadmin

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
	// Parent is its name, without the application schema, if its deletions are no longer recorded at
	// all; empty after untracking a partition.
	Parent string `json:"-"`
	// Triggers dropped, as "name on schema.table".
	Triggers []string `json:"triggers"`
}

const dropTriggerSQL = `DROP TRIGGER {trigger} ON {table}`

// keepUntrackedSQL: else the next run would take the partition for a new one, and track it again.
const keepUntrackedSQL = `
INSERT INTO maintenance.untracked_partitions (schema, name) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// Untrack drops the triggers that record deletions from a table and all its partitions; given a
// partition, that one's and those of its own partitions. Pending records stay and are still
// cleaned. A table without such a trigger is a [*RefusedError].
func (a Admin) Untrack(ctx context.Context, table string) (Untracked, error) {
	var target relation
	var drop []Trigger
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		target, drop, err = a.trackedBelow(ctx, tx, table)
		return true, err
	}
	err := a.change(ctx, "untrack "+table, needed, func(ctx context.Context, tx pgx.Tx) error {
		for _, t := range drop {
			names := []string{"{trigger}", quote(t.Name), "{table}", quote(t.Schema, t.Table)}
			if err := run(ctx, tx, fill(dropTriggerSQL, names...)); err != nil {
				return err
			}
			if !target.Partition {
				continue
			}
			if _, err := tx.Exec(ctx, keepUntrackedSQL, t.Schema, t.Table); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Untracked{}, err
	}
	done := Untracked{Table: target.String()}
	if !target.Partition {
		done.Parent = target.Parent
	}
	for _, t := range drop {
		done.Triggers = append(done.Triggers, fmt.Sprintf("%s on %s", t.Name, t.Relation()))
	}
	return done, nil
}

// trackedBelow finds the triggers on a table and on its partitions.
func (a Admin) trackedBelow(
	ctx context.Context, tx pgx.Tx, table string,
) (target relation, below []Trigger, err error) {
	if target, err = a.locate(ctx, tx, table); err != nil {
		return target, nil, err
	}
	tree, err := partitionTree(ctx, tx, target.OID)
	if err != nil {
		return target, nil, err
	}
	existing, err := triggers(ctx, tx)
	for _, rel := range tree {
		for _, t := range existing {
			if t.OID == rel.OID && !rel.Inherited && strings.HasPrefix(t.Function, plainFunctionName) {
				below = append(below, t)
			}
		}
	}
	if err == nil && len(below) == 0 {
		err = a.refuse("%s is not tracked", target)
	}
	return target, below, err
}
