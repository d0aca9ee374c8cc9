package catalog

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// KeepingTrigger may keep rows that a statement is to delete or update, without an error. It is an
// enabled BEFORE trigger for each row, which returns NULL to keep a row, or a rule.
type KeepingTrigger struct {
	// Kind is "trigger" or "rule".
	Kind, Name string
	Table      Table
}

// String names the trigger with its table: "trigger keep of users".
func (k KeepingTrigger) String() string { return k.Kind + " " + k.Name + " of " + k.Table.String() }

// Rule reports whether it is a rule.
func (k KeepingTrigger) Rule() bool { return k.Kind == "rule" }

// KeepingTriggersSQL inspects the table and all its partitions. A trigger of a partitioned table
// has a copy on each partition: only the original is named, unless it is disabled alone. Rules
// affect only the table that a statement names. A table without a schema is the application's.
const KeepingTriggersSQL = `
WITH RECURSIVE named AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = coalesce(nullif($1, ''), current_schema()) AND c.relname = $2
), member (oid) AS (
  SELECT oid FROM named
  UNION
  SELECT i.inhrelid FROM pg_inherits i JOIN member m ON m.oid = i.inhparent
), keeping AS (
  SELECT 'trigger' AS kind, t.tgname AS name, t.tgrelid AS relation
  FROM pg_trigger t JOIN member m ON m.oid = t.tgrelid
  WHERE t.tgenabled IN ('O', 'A') AND t.tgtype & $3 = $3
    AND NOT EXISTS (
      SELECT FROM pg_trigger p JOIN member m ON m.oid = p.tgrelid
      WHERE p.oid = t.tgparentid AND p.tgenabled IN ('O', 'A'))
  UNION ALL
  SELECT 'rule', r.rulename, r.ev_class
  FROM pg_rewrite r JOIN named n ON n.oid = r.ev_class
  WHERE r.ev_enabled IN ('O', 'A') AND r.ev_type::text = $4
)
SELECT k.kind, k.name, n.nspname, c.relname
FROM keeping k JOIN pg_class c ON c.oid = k.relation JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY k.kind DESC, n.nspname, c.relname, k.name`

// userTriggerSQL is true for a trigger t with the function p that PostgreSQL did not create for a
// constraint. Before PostgreSQL 15 the copies on partitions are internal, too.
const userTriggerSQL = `(NOT t.tgisinternal OR t.tgparentid <> 0 AND p.pronamespace <> 'pg_catalog'::regnamespace)`

// Events of triggers, as in pg_trigger.tgtype and pg_rewrite.ev_type. A trigger for each row has
// bit 1, a trigger that fires before the change has bit 2.
const (
	beforeRowDelete, ruleOnDelete int16 = 1 | 2 | 8, '4'
	beforeRowUpdate, ruleOnUpdate int16 = 1 | 2 | 16, '2'
)

// KeepingTriggers returns the triggers and rules of a table and its partitions that may keep rows
// from being deleted or, unless deletes, from being updated.
func (d Schema) KeepingTriggers(
	ctx context.Context, t Table, deletes bool,
) ([]KeepingTrigger, error) {
	args := KeepingArgs(t, deletes)
	q := pg.NewQuery("find triggers that prevent changes", KeepingTriggersSQL, args...)
	return pg.Collect(ctx, d.db, q, ScanKeeping)
}

// KeepingArgs returns the arguments of KeepingTriggersSQL.
func KeepingArgs(t Table, deletes bool) []any {
	triggers, rules := beforeRowUpdate, ruleOnUpdate
	if deletes {
		triggers, rules = beforeRowDelete, ruleOnDelete
	}
	return []any{t.Schema, t.Name, triggers, string(rune(rules))}
}

// ScanKeeping reads a row of KeepingTriggersSQL.
func ScanKeeping(row pgx.CollectableRow) (k KeepingTrigger, err error) {
	err = row.Scan(&k.Kind, &k.Name, &k.Table.Schema, &k.Table.Name)
	return k, err
}
