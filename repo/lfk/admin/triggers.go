package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// Trigger is a trigger that records deletions, or has the name of such a trigger.
type Trigger struct {
	// OID of the table. Schema and Table are its names.
	OID           uint32
	Schema, Table string
	// Parent is the name of the table's topmost partitioned table, or of the table itself.
	Parent string
	// ParentSchema is the parent's. ParentHere means that it is the application schema.
	ParentSchema string
	ParentHere   bool
	// Divided is true for a partitioned table and for a partition.
	Divided  bool
	Name     string
	Function string
	// Arguments of the function.
	Arguments []string
	// Fires is PostgreSQL's tgenabled: O(rigin only), A(lways), R(eplica only), D(isabled).
	Fires string
	// Row triggers fire for each row. Copied means that one of the partitioned table was copied.
	Row, Copied bool
	// Droppable is the argument of DROP TRIGGER, "name ON schema.table": for a copy the original.
	Droppable string
	// functionSchema is the schema of the function.
	functionSchema string
	// capturing means that the function is in the application schema and is called after each
	// deleting statement with its rows, or for each row.
	capturing bool
	// Idle functions have one of our names but insert nothing, or into a missing queue.
	Idle bool
}

// Relation returns the schema and table of the trigger.
func (t Trigger) Relation() string { return t.Schema + "." + t.Table }

// Form of a trigger.
type Form int

// The forms, from bad to good.
const (
	// FormForeign does not record deletions.
	FormForeign Form = iota
	// FormWrong records deletions under another name, or elsewhere, or no longer.
	FormWrong
	// FormRight records each deletion once, under the parent's name.
	FormRight
)

// Recorded returns the name under which deletions from the table should be recorded.
func (t Trigger) Recorded() string { return t.ParentSchema + "." + t.Parent }

// Values reports whether the trigger records the key as texts.
func (t Trigger) Values() bool { return strings.HasPrefix(t.Function, valuesFunctionPrefix) }

// ofTable reports whether the function is for one table.
func (t Trigger) ofTable() bool { return capture.FunctionOfTable(t.Function) }

// Form returns whether the trigger records correctly, and the columns that it records, none for a
// foreign trigger.
func (t Trigger) Form() (form Form, key []string) {
	key = capture.TriggerKey(t.Function, t.Arguments)
	switch {
	case !t.capturing, len(key) == 0 && !t.ofTable():
		return FormForeign, nil
	case t.Idle:
		return FormWrong, key
	case t.ofTable():
		if len(key) == 0 {
			return FormWrong, []string{"id"}
		}
		if t.Arguments[0] != t.Recorded() {
			return FormWrong, key
		}
	case t.Function == plainFunctionName:
		// Under its own name: no run reads records of a partition's name.
		if t.Divided || len(t.Arguments) > 1 {
			return FormWrong, key
		}
	case !t.ParentHere || len(t.Arguments) == 0 || t.Arguments[0] != t.Parent || len(t.Arguments) > 2 ||
		len(t.Arguments) == 2 && t.Function != overrideFunctionName:
		return FormWrong, key
	}
	return FormRight, key
}

// Named returns the table that the trigger's arguments name, "" if none.
func (t Trigger) Named() string {
	switch {
	case !t.capturing || t.Function == plainFunctionName || len(t.Arguments) == 0:
		return ""
	case t.ofTable():
		return t.Arguments[0]
	}
	return t.functionSchema + "." + t.Arguments[0]
}

// RouteFault returns why a trigger that routes records to queues of this database makes deletions
// fail, "" if they do not fail.
func (t Trigger) RouteFault(q lfk.DeletedRecords) string {
	routes, err := capture.TriggerRoutes(t.Function, t.Arguments)
	if err != nil {
		return fmt.Sprintf("has the targets %q, which are not a JSON list", t.Arguments[len(t.Arguments)-1])
	}
	for _, route := range routes {
		owner := ""
		for _, table := range q.Existing() {
			if table.Name == route.Table {
				owner = table.Owner()
			}
		}
		switch {
		case owner == "":
			return fmt.Sprintf("routes records to %s, which does not exist or is not a "+
				"queue", route.Table)
		case owner != route.Column:
			return fmt.Sprintf("routes records to %s by the column %s, but this queue requires the column %s", route.Table, route.Column, owner)
		}
	}
	return ""
}

// Off reports whether the trigger does not fire when the application deletes.
func (t Trigger) Off() bool { return t.Fires == "D" || t.Fires == "R" }

const triggersSQL = `
SELECT c.oid, n.nspname, c.relname, root.relname, rn.nspname, rn.nspname = current_schema(),
  c.relkind = 'p' OR c.relispartition,
  t.tgname, p.proname, encode(t.tgargs, 'hex'), t.tgenabled::text, pn.nspname, t.tgtype & 1 = 1,
  t.tgparentid <> 0, (
    WITH RECURSIVE up AS (
      SELECT t.oid, t.tgname, t.tgrelid, t.tgparentid
      UNION ALL
      SELECT o.oid, o.tgname, o.tgrelid, o.tgparentid FROM up JOIN pg_trigger o ON o.oid = up.tgparentid)
    SELECT up.tgname || ' ON ' || un.nspname || '.' || uc.relname
    FROM up JOIN pg_class uc ON uc.oid = up.tgrelid JOIN pg_namespace un ON un.oid = uc.relnamespace
    WHERE up.tgparentid = 0),
  pn.nspname = current_schema() AND t.tgtype IN (8, 9) AND t.tgqual IS NULL
    AND (t.tgtype = 9) = (position($3 IN p.prosrc) > 0)
    AND (t.tgtype = 9 OR coalesce(t.tgoldtable = 'old_table', false)),
  starts_with(p.proname, $1) AND NOT (` + insertsSQL + `)
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
JOIN pg_namespace rn ON rn.oid = root.relnamespace
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace pn ON pn.oid = p.pronamespace
WHERE (NOT t.tgisinternal OR t.tgparentid <> 0) AND (starts_with(p.proname, $1) OR t.tgname::text IN (c.relname || $2, root.relname || $2))
ORDER BY n.nspname, c.relname, t.tgname`

// triggers reads all triggers of the database that record deletions, or have such a name.
func triggers(ctx context.Context, tx pgx.Tx) ([]Trigger, error) {
	return list(ctx, tx, func(row pgx.CollectableRow) (t Trigger, err error) {
		var arguments string
		err = row.Scan(&t.OID, &t.Schema, &t.Table, &t.Parent, &t.ParentSchema, &t.ParentHere, &t.Divided,
			&t.Name, &t.Function, &arguments, &t.Fires, &t.functionSchema, &t.Row, &t.Copied,
			&t.Droppable, &t.capturing, &t.Idle)
		t.Arguments = capture.TriggerArguments(arguments)
		return t, err
	}, triggersSQL, plainFunctionName, triggerSuffix, oldRow)
}
