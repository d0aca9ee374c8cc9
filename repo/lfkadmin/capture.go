package lfkadmin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
)

// Names of what records deletions, which are GitLab's but for functions of one table.
const (
	plainFunctionName     = repo.TriggerFunctions
	overrideFunctionName  = repo.OverrideFunction
	columnFunctionPrefix  = repo.ColumnFunctionPrefix
	integerFunctionPrefix = repo.IntegerFunctionPrefix
	valuesFunctionPrefix  = repo.ValuesFunctionPrefix
	triggerSuffix         = repo.TriggerSuffix
)

// maxNameBytes is how long a name in PostgreSQL can be. A longer one is cut off silently, and then
// names something else.
const maxNameBytes = 63

// captureFunction is a trigger function that records the rows a statement has deleted.
type captureFunction struct {
	name string
	// key are the columns that are recorded.
	key []string
	// arguments of the triggers.
	arguments []string
	// row: it is called for each row, because no trigger of a statement fires where logical
	// replication applies deletions.
	row bool
}

func plainFunction() captureFunction {
	return captureFunction{name: plainFunctionName, key: []string{"id"}}
}

func overrideFunction(root relation) captureFunction {
	return captureFunction{
		name: overrideFunctionName, key: []string{"id"}, arguments: []string{root.Name},
	}
}

func columnFunction(column string, root relation) captureFunction {
	return captureFunction{
		name: columnFunctionPrefix + column, key: []string{column}, arguments: []string{root.Name},
	}
}

// tableFunction is for one table and its key, of either prefix: a function for any table would have
// to put its statement together at each call, which takes three times as long. The name has a hash of
// what it is for, and its triggers have that as their arguments. One for each row has another hash.
func tableFunction(prefix string, root relation, key []string) captureFunction {
	arguments := append([]string{root.String()}, key...)
	text := strings.Join(arguments, "\x00")
	if root.Replicated {
		text += "\x00\x00row"
	}
	hash := sha256.Sum256([]byte(text))
	return captureFunction{prefix + hex.EncodeToString(hash[:6]), key, arguments, root.Replicated}
}

// recordedSQL is the name in the record: that of the table on which the trigger stands now, or of the
// partitioned table which that belongs to. The arguments of the trigger may be out of date: tables are
// renamed, and partitions detached.
const recordedSQL = `(
    SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = coalesce(pg_partition_root(TG_RELID), TG_RELID))`

// recorded is the expression for the name in the record. A plain trigger stands on no partition.
func (f captureFunction) recorded() string {
	if f.name == plainFunctionName {
		return plainRecordedSQL
	}
	return recordedSQL
}

const plainRecordedSQL = `TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME`

// recordedBefore is that of older versions, which took the arguments of the trigger at their word.
func (f captureFunction) recordedBefore(q repo.DeletedRecords) string {
	switch {
	case f.name == plainFunctionName:
		return plainRecordedSQL
	case repo.FunctionOfTable(f.name):
		return repo.Literal(f.arguments[0])
	}
	return repo.Literal(q.Schema) + ` || '.' || TG_ARGV[0]`
}

// values says that the key is recorded as texts.
func (f captureFunction) values() bool { return strings.HasPrefix(f.name, valuesFunctionPrefix) }

// createFunctionSQL: whoever may delete from the table needs no rights on the queue, and no
// search_path leads the function astray. It catches no errors: that would cost every deletion a
// subtransaction, and lose the record.
const createFunctionSQL = `
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS {body}`

// functionBodySQL is that of functions for a queue that is not ours. The functions of older
// versions are recognized by it: it must stay as it is.
const functionBodySQL = `
BEGIN
  INSERT INTO {queue} (fully_qualified_table_name, primary_key_value)
  SELECT {recorded}, old_table.{column} FROM old_table WHERE old_table.{column} IS NOT NULL;
  RETURN NULL;
END
`

// tracedBodySQL keeps the span that the session has set beside the records, for those of a
// statement's first 1000 rows. What is no traceparent is ignored.
const tracedBodySQL = `
DECLARE
  trace CONSTANT text := current_setting('caretaker.traceparent', true);
BEGIN
  IF trace ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' THEN
    WITH noted AS (
      INSERT INTO {queue} ({columns})
      SELECT {recorded}, {key} FROM old_table WHERE {present}
      RETURNING partition, id
    )
    INSERT INTO maintenance.record_traces (partition, record_id, traceparent)
    SELECT noted.partition, noted.id, trace FROM noted LIMIT 1000;
  ELSE
    INSERT INTO {queue} ({columns})
    SELECT {recorded}, {key} FROM old_table WHERE {present};
  END IF;
  RETURN NULL;
END
`

// oldRow begins what stands for the deleted rows in a function for each row. Such a function is known
// by it.
const oldRow = `FROM (SELECT OLD.`

// revokeFunctionSQL: the right to execute is asked for when a trigger is made, not when it fires.
// Without this anybody could make a trigger of their own that reports live rows as deleted.
const revokeFunctionSQL = `REVOKE ALL ON FUNCTION {function}() FROM PUBLIC`

// functionExistsSQL: one that inserts nothing into a queue is as good as none.
const functionExistsSQL = `SELECT EXISTS (
  SELECT FROM pg_proc p WHERE p.oid = to_regprocedure($1) AND ` + insertsSQL + `)`

// insertsSQL: the function p writes something, and its queue, if it names one of ours, exists. A restored
// dump or somebody can leave an empty one, and a schema can be renamed.
const insertsSQL = `(p.prosrc ~* 'insert\s+into' AND (` + namedQueueSQL + ` IS NULL OR to_regclass(` + namedQueueSQL + `) IS NOT NULL))`

const namedQueueSQL = `substring(p.prosrc, 'INSERT INTO ("[^"]+"\."loose_foreign_keys_deleted_records")')`

func (f captureFunction) sql(q repo.DeletedRecords) string { return quote(q.Schema, f.name) }

// exists says whether there is such a function in the application schema that writes something.
func (f captureFunction) exists(
	ctx context.Context, tx pgx.Tx, q repo.DeletedRecords,
) (exists bool, err error) {
	err = tx.QueryRow(ctx, functionExistsSQL, f.sql(q)+"()").Scan(&exists)
	return exists, err
}

// create makes the function. One that exists is used as it is.
func (f captureFunction) create(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) error {
	exists, err := f.exists(ctx, tx, q)
	if err != nil || exists {
		return err
	}
	if err := f.replace(ctx, tx, q); err != nil {
		return err
	}
	return run(ctx, tx, fill(revokeFunctionSQL, "{function}", f.sql(q)))
}

// replace makes the function, or gives the one that is there another body: rights and owner stay.
func (f captureFunction) replace(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) error {
	body := functionBodySQL
	if q.Managed {
		// Spans are kept beside queues of our own alone.
		body = tracedBodySQL
	}
	return run(ctx, tx, fill(createFunctionSQL, "{function}", f.sql(q), "{body}",
		repo.Literal(f.body(body, f.recorded(), q))))
}

func (f captureFunction) body(template, recorded string, q repo.DeletedRecords) string {
	var values, present []string
	for _, name := range f.key {
		column := "old_table." + quote(name)
		values, present = append(values, column+"::text"), append(present, column+" IS NOT NULL")
	}
	if f.row {
		var columns []string
		for _, name := range f.key {
			columns = append(columns, quote(name))
		}
		row := oldRow + strings.Join(columns, ", OLD.") + ") AS old_table"
		template = strings.ReplaceAll(template, "FROM old_table", row)
	}
	columns, key := "fully_qualified_table_name, primary_key_value", "old_table."+quote(f.key[0])
	if f.values() {
		columns, key = columns+", key_values", "0, ARRAY["+strings.Join(values, ", ")+"]"
	}
	return fill(template, "{queue}", quotedQueue(q), "{column}", quote(f.key[0]),
		"{columns}", columns, "{key}", key, "{present}", strings.Join(present, " AND "),
		"{recorded}", recorded)
}

// captureFunctionsSQL finds the functions with the arguments of a trigger that calls them.
const captureFunctionsSQL = `
SELECT p.proname, p.prosrc, coalesce((
  SELECT encode(t.tgargs, 'hex') FROM pg_trigger t WHERE t.tgfoid = p.oid ORDER BY t.oid LIMIT 1), ''),
  ` + insertsSQL + `, EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid AND t.tgtype = 9)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND starts_with(p.proname, $2) AND p.pronargs = 0
  AND p.prorettype = 'trigger'::regtype
ORDER BY p.proname`

// oldFunctions are the functions of a queue of our own that triggers call, and that an older version of
// this program has made, or that insert nothing.
func oldFunctions(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) (old []captureFunction, err error) {
	if !q.Managed {
		return nil, nil
	}
	type function struct {
		Name, Source, Arguments string
		Inserts, Row            bool
	}
	found, err := list(ctx, tx, pgx.RowToStructByPos[function], captureFunctionsSQL, q.Schema,
		plainFunctionName)
	for _, there := range found {
		f := captureFunction{name: there.Name, row: there.Row}
		f.arguments = repo.TriggerArguments(there.Arguments)
		f.key = repo.TriggerKey(there.Name, f.arguments)
		if len(f.key) == 0 {
			continue
		}
		before := f.recordedBefore(q)
		if !there.Inserts || there.Source == f.body(functionBodySQL, before, q) ||
			there.Source == f.body(tracedBodySQL, before, q) && before != f.recorded() {
			old = append(old, f)
		}
	}
	return old, err
}

// Trigger is a trigger that records deletions, or bears the name of one.
type Trigger struct {
	// OID of the table; Schema and Table are its names.
	OID           uint32
	Schema, Table string
	// Parent is the name of the topmost partitioned table it belongs to, or the table itself.
	Parent string
	// ParentSchema is the parent's; ParentHere: it is the application schema.
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
	// Row: it fires for each row. Copied: it belongs to a trigger of the partitioned table.
	Row, Copied bool
	// Droppable is what DROP TRIGGER takes, "name ON schema.table": of a copy the trigger that was copied.
	Droppable string
	// functionSchema is the schema of the function.
	functionSchema string
	// capturing: the function is one of the application schema's, called after each deleting
	// statement with its rows, or one for each row.
	capturing bool
	// Idle: that function inserts nothing, or into a queue that does not exist.
	Idle bool
}

// Relation is where the trigger is.
func (t Trigger) Relation() string { return t.Schema + "." + t.Table }

// Form of a trigger.
type Form int

// The forms, from bad to good.
const (
	// FormForeign does not record deletions.
	FormForeign Form = iota
	// FormWrong records deletions under another name, or elsewhere, or not any more.
	FormWrong
	// FormRight records each deletion once, under the parent's name.
	FormRight
)

// Recorded is the name under which deletions from the table should be recorded.
func (t Trigger) Recorded() string { return t.ParentSchema + "." + t.Parent }

// Values says that the trigger records the key as texts.
func (t Trigger) Values() bool { return strings.HasPrefix(t.Function, valuesFunctionPrefix) }

// ofTable: the function is for one table.
func (t Trigger) ofTable() bool { return repo.FunctionOfTable(t.Function) }

// Form says whether the trigger does its work, and the columns that it records: none for a foreign
// one.
func (t Trigger) Form() (form Form, key []string) {
	key = repo.TriggerKey(t.Function, t.Arguments)
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
		// Under its own name: that of a partition nobody asks for.
		if t.Divided || len(t.Arguments) > 1 {
			return FormWrong, key
		}
	case !t.ParentHere || len(t.Arguments) == 0 || t.Arguments[0] != t.Parent || len(t.Arguments) > 2 ||
		len(t.Arguments) == 2 && t.Function != overrideFunctionName:
		return FormWrong, key
	}
	return FormRight, key
}

// Named is the table that the trigger's arguments name; "" if they name none.
func (t Trigger) Named() string {
	switch {
	case !t.capturing || t.Function == plainFunctionName || len(t.Arguments) == 0:
		return ""
	case t.ofTable():
		return t.Arguments[0]
	}
	return t.functionSchema + "." + t.Arguments[0]
}

// RouteFault is why deletions fail by a trigger that routes records to queues of this database, ""
// if they do not.
func (t Trigger) RouteFault(q repo.DeletedRecords) string {
	routes, err := repo.TriggerRoutes(t.Function, t.Arguments)
	if err != nil {
		return fmt.Sprintf("its targets %q are not a list in JSON", t.Arguments[len(t.Arguments)-1])
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
			return fmt.Sprintf("it routes records to %s, which is no queue of this database", route.Table)
		case owner != route.Column:
			return fmt.Sprintf("it routes records to %s by the column %s, and not by %s", route.Table, route.Column, owner)
		}
	}
	return ""
}

// Off says that the trigger does not fire when the application deletes.
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
  NOT (` + insertsSQL + `)
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
JOIN pg_namespace rn ON rn.oid = root.relnamespace
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace pn ON pn.oid = p.pronamespace
WHERE (NOT t.tgisinternal OR t.tgparentid <> 0) AND (starts_with(p.proname, $1) OR t.tgname::text IN (c.relname || $2, root.relname || $2))
ORDER BY n.nspname, c.relname, t.tgname`

// triggers reads all triggers of the database that record deletions, or bear the name of one.
func triggers(ctx context.Context, tx pgx.Tx) ([]Trigger, error) {
	return list(ctx, tx, func(row pgx.CollectableRow) (t Trigger, err error) {
		var arguments string
		err = row.Scan(&t.OID, &t.Schema, &t.Table, &t.Parent, &t.ParentSchema, &t.ParentHere, &t.Divided,
			&t.Name, &t.Function, &arguments, &t.Fires, &t.functionSchema, &t.Row, &t.Copied,
			&t.Droppable, &t.capturing, &t.Idle)
		t.Arguments = repo.TriggerArguments(arguments)
		return t, err
	}, triggersSQL, plainFunctionName, triggerSuffix, oldRow)
}
