package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Untracked is the result of Untrack.
type Untracked struct {
	// Table is the schema and name of the table.
	Table string `json:"table"`
	// Parent is its name, without the application schema, if its deletions are no longer recorded
	// at all. It is empty after untracking a partition.
	Parent string `json:"-"`
	// Triggers dropped, as "name on schema.table".
	Triggers []string `json:"triggers"`
}

// dropFunctionSQL fails if a trigger still calls the function.
const dropFunctionSQL = `DROP FUNCTION {function}`

// dropTriggerSQL locks the table exclusively until the end of the transaction.
const dropTriggerSQL = `DROP TRIGGER {trigger} ON {table}`

// dropTrigger returns the statement that drops a trigger, with quoted names.
func dropTrigger(name, schema, table string) string {
	return fill(dropTriggerSQL, "{trigger}", quote(name), "{table}", quote(schema, table))
}

// keepUntrackedSQL: otherwise the next run would track the partition again as a new one.
const keepUntrackedSQL = `
INSERT INTO maintenance.untracked_partitions (schema, name) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// Untrack drops the triggers that record deletions from a table and all its partitions, or from a
// partition and its own partitions. Pending records stay and are still cleaned. A table without
// such a trigger is a [*RefusedError]. So is a table with pending or dead records whose keys have
// several columns.
func (a Admin) Untrack(ctx context.Context, table string) (Untracked, error) {
	var target relation
	var drop []Trigger
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		target, drop, err = a.trackedBelow(ctx, tx, table)
		return true, err
	}
	err := a.change(ctx, "untrack "+table, needed, func(ctx context.Context, tx pgx.Tx) error {
		for _, t := range drop {
			if err := run(ctx, tx, dropTrigger(t.Name, t.Schema, t.Table)); err != nil {
				return err
			}
			if !target.Partition {
				continue
			}
			if _, err := tx.Exec(ctx, keepUntrackedSQL, t.Schema, t.Table); err != nil {
				return err
			}
		}
		// A refusal here rolls back the dropped triggers.
		if err := a.keepMeaning(ctx, tx, target, drop); err != nil {
			return err
		}
		return dropUnused(ctx, tx, drop)
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

// Recorded returns the name under which deletions from a tracked table or partition are recorded. For
// a table that Untrack refuses, the error is a [*RefusedError].
func (a Admin) Recorded(ctx context.Context, table string) (name string, err error) {
	schema, err := a.database.ApplicationSchema(ctx)
	if err != nil {
		return "", err
	}
	err = a.read(ctx, "find triggers of "+table, func(ctx context.Context, tx pgx.Tx) error {
		found, _, err := a.trackedBelow(ctx, tx, table)
		if name = found.Parent; found.ParentHere {
			name = schema + "." + name
		}
		return err
	})
	return name, err
}

// leftRecordsSQL reports whether a record of the table $2 is pending in a partition of $1, or dead.
const leftRecordsSQL = `
SELECT EXISTS (
  SELECT FROM unnest($1::bigint[]) AS leaf (number) CROSS JOIN LATERAL (
    SELECT FROM {queue} r
    WHERE r.partition = leaf.number AND r.status = 1 AND r.fully_qualified_table_name = $2{which}
    LIMIT 1) pending)
  OR EXISTS (
    SELECT FROM maintenance.dead_records r WHERE r.fully_qualified_table_name = $2{which})`

// compositeSQL matches a record whose key has several columns.
const compositeSQL = ` AND cardinality(r.key_values) > 1`

// leftRecords reports whether a table has remaining records that match which. which: an additional
// condition in SQL, "" for all records.
func leftRecords(
	ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords, recorded, which string,
) (left bool, err error) {
	sql := fill(leftRecordsSQL, "{queue}", quotedQueue(q), "{which}", which)
	err = tx.QueryRow(ctx, sql, q.Partitions, recorded).Scan(&left)
	return left, err
}

// drain returns the advice about remaining records.
func drain(t relation) string {
	return fmt.Sprintf("wait until loose_foreign_keys_cleanup has processed these records "+
		"(to retry dead records, run `caretaker lfk retry --table %s`)", format.Argument(t.String()))
}

// keepMeaning refuses while records with keys of several columns remain: only the trigger shows the
// order of their values. The trigger's lock is held, so no more records can come.
func (a Admin) keepMeaning(ctx context.Context, tx pgx.Tx, target relation, drop []Trigger) error {
	composite := func(t Trigger) bool {
		return strings.HasPrefix(t.Function, valuesFunctionPrefix) && len(t.Arguments) > 2
	}
	if a.unneeded || target.Partition || !slices.ContainsFunc(drop, composite) {
		return nil
	}
	q, err := a.usableQueue(ctx, tx)
	if err != nil || !q.Wide {
		return err
	}
	if left, err := leftRecords(ctx, tx, q, target.String(), compositeSQL); err != nil || !left {
		return err
	}
	return a.refuse("%s has pending or dead records, and without its trigger the "+
		"order of the values in their keys would be unknown: %s", target, drain(target))
}

// checkLeft refuses to start recording a key while records remain from earlier tracking. They may
// have another key, and would count as values of this one. --column id confirms that the records
// hold ids. A table with no other unique key needs no confirmation.
func (r tracking) checkLeft(
	ctx context.Context, tx pgx.Tx, p trackPlan, existing []Trigger, indexes []catalog.Index,
) error {
	tracked := func(t Trigger) bool {
		return t.OID == p.root.OID && strings.HasPrefix(t.Function, plainFunctionName)
	}
	byID := slices.Equal(p.function.key, []string{"id"})
	if byID && (len(r.columns) > 0 || !p.queue.Managed) || slices.ContainsFunc(existing, tracked) {
		return nil
	}
	if byID && catalog.UniqueKeys(indexes) < 2 {
		return nil
	}
	if left, err := leftRecords(ctx, tx, p.queue, p.root.String(), ""); err != nil || !left {
		return err
	}
	decide := ""
	if byID {
		decide = "if the keys in these records are ids, add --column id. Otherwise, "
	}
	return r.refuse("%s has pending or dead records from earlier tracking, possibly with a "+
		"different key: %s%s", p.root, decide, drain(p.root))
}

// dropUnused drops the functions of one table that only these triggers called. It reads the
// functions again, after the triggers that called them were dropped.
func dropUnused(ctx context.Context, tx pgx.Tx, dropped []Trigger) error {
	all, err := readFunctions(ctx, tx)
	for _, f := range all {
		unused := !f.Called && slices.ContainsFunc(dropped, func(t Trigger) bool {
			return t.ofTable() && t.functionSchema == f.Schema && t.Function == f.Name
		})
		if err == nil && unused {
			err = run(ctx, tx, fill(dropFunctionSQL, "{function}", quote(f.Schema, f.Name)+"()"))
		}
	}
	return err
}

// trackedBelow finds the triggers on a table and on its partitions. If it finds none, the error is
// a [*RefusedError], which names the table above if that one's trigger records the deletions.
func (a Admin) trackedBelow(
	ctx context.Context, tx pgx.Tx, table string,
) (target relation, below []Trigger, err error) {
	if target, err = a.locate(ctx, tx, table); err != nil {
		return target, nil, err
	}
	trees, err := readTrees(ctx, tx, target.OID)
	if err != nil {
		return target, nil, err
	}
	existing, err := triggers(ctx, tx)
	copied := false
	for _, rel := range trees[target.OID] {
		for _, t := range existing {
			switch {
			case t.OID != rel.OID || rel.Inherited || !strings.HasPrefix(t.Function, plainFunctionName):
			case t.Copied:
				copied = true
			default:
				below = append(below, t)
			}
		}
	}
	switch {
	case err != nil || len(below) > 0:
	case copied:
		err = a.refuse("%s is tracked by a row trigger on %s that covers all partitions of %[2]s: untrack %[2]s "+
			"instead", target, target.Parent)
	default:
		err = a.refuse("%s is not tracked", target)
	}
	return target, below, err
}
