package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// Names of triggers and trigger functions. All but those for one table are GitLab's.
const (
	plainFunctionName     = capture.TriggerFunctions
	overrideFunctionName  = capture.OverrideFunction
	columnFunctionPrefix  = capture.ColumnFunctionPrefix
	integerFunctionPrefix = capture.IntegerFunctionPrefix
	valuesFunctionPrefix  = capture.ValuesFunctionPrefix
	triggerSuffix         = capture.TriggerSuffix
)

// maxNameBytes is the maximum length of a name in PostgreSQL. PostgreSQL truncates a longer name
// silently, which then names another object.
const maxNameBytes = 63

// captureFunction is a trigger function that records the rows that a statement deletes.
type captureFunction struct {
	// name has no schema: the function is in that of the queue.
	name string
	// key are the columns that are recorded.
	key []string
	// arguments of the triggers.
	arguments []string
	// row means that the function is called for each row, because statement triggers do not fire
	// where logical replication applies deletions.
	row bool
}

// plainFunction returns the function for tables without partitions whose key is id.
func plainFunction() captureFunction {
	return captureFunction{name: plainFunctionName, key: []string{"id"}}
}

// overrideFunction returns the function for partitioned tables whose key is id. Its argument is the
// name of the root.
func overrideFunction(root relation) captureFunction {
	return captureFunction{
		name: overrideFunctionName, key: []string{"id"}, arguments: []string{root.Name},
	}
}

// columnFunction returns the function for tables whose key is another integer column.
func columnFunction(column string, root relation) captureFunction {
	return captureFunction{
		name: columnFunctionPrefix + column, key: []string{column}, arguments: []string{root.Name},
	}
}

// tableFunction returns the function for one table and its key, of either prefix. One for any table
// would have to build its statement at each call, which takes three times as long. Its name has a
// hash of its triggers' arguments, the table and key. One for each row has another hash.
func tableFunction(prefix string, root relation, key []string) captureFunction {
	arguments := append([]string{root.String()}, key...)
	text := strings.Join(arguments, "\x00")
	if root.Replicated {
		text += "\x00\x00row"
	}
	hash := sha256.Sum256([]byte(text))
	return captureFunction{prefix + hex.EncodeToString(hash[:6]), key, arguments, root.Replicated}
}

// recordedSQL is the recorded name: that of the trigger's table now, or of the partitioned table
// that it belongs to. The arguments of the trigger may be out of date: tables are renamed, and
// partitions detached.
const recordedSQL = `(
    SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = coalesce(pg_partition_root(TG_RELID), TG_RELID))`

// recorded returns the expression for the recorded name. A plain trigger is never on a partition.
func (f captureFunction) recorded() string {
	if f.name == plainFunctionName {
		return plainRecordedSQL
	}
	return recordedSQL
}

// plainRecordedSQL is the schema and name of the trigger's own table.
const plainRecordedSQL = `TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME`

// recordedBefore is recorded of older versions, which trusted the arguments of the trigger.
func (f captureFunction) recordedBefore(q lfk.DeletedRecords) string {
	switch {
	case f.name == plainFunctionName:
		return plainRecordedSQL
	case capture.FunctionOfTable(f.name):
		return capture.Literal(f.arguments[0])
	}
	return capture.Literal(q.Schema) + ` || '.' || TG_ARGV[0]`
}

// values reports whether the key is recorded as texts.
func (f captureFunction) values() bool { return strings.HasPrefix(f.name, valuesFunctionPrefix) }

// createFunctionSQL: a role that may delete from the table needs no rights on the queue, and no
// search_path affects the function. It catches no errors: that would cost every deletion a
// subtransaction, and lose the record.
const createFunctionSQL = `
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS {body}`

// functionBodySQL is the body of functions for a queue that is not ours. It identifies the
// functions of older versions: do not change it.
const functionBodySQL = `
BEGIN
  INSERT INTO {queue} (fully_qualified_table_name, primary_key_value)
  SELECT {recorded}, old_table.{column} FROM old_table WHERE old_table.{column} IS NOT NULL;
  RETURN NULL;
END
`

// tracedBodySQL stores the span that the session has set beside the records of a statement's first
// 1000 rows. A span that is not a traceparent is ignored.
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

// oldRow starts the subquery of the deleted rows in a function for each row. It identifies such a
// function.
const oldRow = `FROM (SELECT OLD.`

// revokeFunctionSQL: PostgreSQL checks the right to execute when a trigger is created, not when it
// fires. Without this, any role could create a trigger that reports live rows as deleted.
const revokeFunctionSQL = `REVOKE ALL ON FUNCTION {function}() FROM PUBLIC`

// insertsSQL reports whether the function p inserts something and its queue, if one of ours,
// exists. A restored dump or the operator can leave an empty one, and a schema can be renamed.
const insertsSQL = `(p.prosrc ~* 'insert\s+into' AND (` + namedQueueSQL + ` IS NULL OR to_regclass(` + namedQueueSQL + `) IS NOT NULL))`

// namedQueueSQL is the quoted queue that the source of the function p inserts into, NULL if it
// names none of ours.
const namedQueueSQL = `substring(p.prosrc, 'INSERT INTO ("[^"]+"\."loose_foreign_keys_deleted_records")')`

// sql returns the quoted name of the function, with the queue's schema.
func (f captureFunction) sql(q lfk.DeletedRecords) string { return quote(q.Schema, f.name) }

// create creates the function. An existing one is used as it is.
func (f captureFunction) create(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords) error {
	all, err := readFunctions(ctx, tx)
	if err != nil || all.have(f, q) {
		return err
	}
	if err := f.replace(ctx, tx, q); err != nil {
		return err
	}
	return run(ctx, tx, fill(revokeFunctionSQL, "{function}", f.sql(q)))
}

// replace creates the function, or replaces the body of an existing one: rights and owner stay.
func (f captureFunction) replace(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords) error {
	body := functionBodySQL
	if q.Managed {
		// Spans are stored only beside queues of our own.
		body = tracedBodySQL
	}
	return run(ctx, tx, fill(createFunctionSQL, "{function}", f.sql(q), "{body}",
		capture.Literal(f.body(body, f.recorded(), q))))
}

// body fills a template with the queue, the recorded name and the key. A function for each row
// reads the deleted row from OLD instead of the transition table.
func (f captureFunction) body(template, recorded string, q lfk.DeletedRecords) string {
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
	// One integer is stored in primary_key_value. Other keys are stored as texts in key_values,
	// with 0 in primary_key_value.
	columns, key := "fully_qualified_table_name, primary_key_value", "old_table."+quote(f.key[0])
	if f.values() {
		columns, key = columns+", key_values", "0, ARRAY["+strings.Join(values, ", ")+"]"
	}
	return fill(template, "{queue}", quotedQueue(q), "{column}", quote(f.key[0]),
		"{columns}", columns, "{key}", key, "{present}", strings.Join(present, " AND "),
		"{recorded}", recorded)
}

// functionsSQL finds the trigger functions that record deletions, in all schemas, by the prefix of
// their names. It reads the arguments of a trigger that calls them.
const functionsSQL = `
SELECT n.nspname, p.proname, p.prosrc, coalesce(calls.arguments, ''), ` + insertsSQL + `, ` + namedQueueSQL + ` IS NOT NULL,
  calls.tgfoid IS NOT NULL, coalesce(calls.row, false)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
LEFT JOIN (
  SELECT tgfoid, (array_agg(encode(tgargs, 'hex') ORDER BY oid))[1] AS arguments, bool_or(tgtype = 9) AS row
  FROM pg_trigger GROUP BY tgfoid) calls ON calls.tgfoid = p.oid
WHERE starts_with(p.proname, $1) AND p.pronargs = 0 AND p.prorettype = 'trigger'::regtype
ORDER BY n.nspname, p.proname`

// function is a row of functionsSQL.
type function struct {
	Schema, Name, Source, Arguments string
	// Inserts means that the function inserts something and its queue, if it names one of ours,
	// exists. NamesQueue means that it names one of ours.
	Inserts, NamesQueue bool
	// Called means that a trigger calls the function. Row means that it does so for each row.
	Called, Row bool
}

// functions are all capturing functions of the database.
type functions []function

// readFunctions reads the capturing functions of all schemas.
func readFunctions(ctx context.Context, tx pgx.Tx) (functions, error) {
	return list(ctx, tx, pgx.RowToStructByPos[function], functionsSQL, plainFunctionName)
}

// have reports whether the application schema has such a function that writes something.
func (all functions) have(f captureFunction, q lfk.DeletedRecords) bool {
	return slices.ContainsFunc(all, func(there function) bool {
		return there.Schema == q.Schema && there.Name == f.name && there.Inserts
	})
}

// old returns the functions of a queue of our own that triggers call, if an older version of
// caretaker made them or they insert nothing.
func (all functions) old(q lfk.DeletedRecords) (old []captureFunction) {
	for _, there := range all {
		f := captureFunction{name: there.Name, row: there.Row}
		f.arguments = capture.TriggerArguments(there.Arguments)
		f.key = capture.TriggerKey(there.Name, f.arguments)
		if !q.Managed || there.Schema != q.Schema || len(f.key) == 0 {
			continue
		}
		before := f.recordedBefore(q)
		if !there.Inserts || there.Source == f.body(functionBodySQL, before, q) ||
			there.Source == f.body(tracedBodySQL, before, q) && before != f.recorded() {
			old = append(old, f)
		}
	}
	return old
}

// stray returns the functions of another schema that insert into a missing queue of our own.
// Triggers call them: ALTER TABLE SET SCHEMA does not move functions.
func (all functions) stray(q lfk.DeletedRecords) (stray []function) {
	for _, f := range all {
		if q.Managed && f.Schema != q.Schema && f.NamesQueue && !f.Inserts && f.Called {
			stray = append(stray, f)
		}
	}
	return stray
}

// missing returns the functions for any table that a queue of our own is missing.
func (all functions) missing(q lfk.DeletedRecords) (missing []captureFunction) {
	for _, f := range []captureFunction{plainFunction(), overrideFunction(relation{})} {
		if q.Managed && !all.have(f, q) {
			missing = append(missing, f)
		}
	}
	return missing
}

// moveFunctionSQL keeps the function's OID, so its triggers need no change.
const moveFunctionSQL = `ALTER FUNCTION {function}() SET SCHEMA {schema}`

// move moves a stray function to the queue's schema. Its triggers, which refer to its OID, call it
// there. A function of the same name there is dropped first, which fails if a trigger calls it.
func (all functions) move(ctx context.Context, tx pgx.Tx, f function, q lfk.DeletedRecords) error {
	taken := func(there function) bool { return there.Schema == q.Schema && there.Name == f.Name }
	if slices.ContainsFunc(all, taken) {
		if err := run(ctx, tx, fill(dropFunctionSQL, "{function}", quote(q.Schema, f.Name)+"()")); err != nil {
			return err
		}
	}
	return run(ctx, tx, fill(moveFunctionSQL, "{function}", quote(f.Schema, f.Name), "{schema}", quote(q.Schema)))
}
