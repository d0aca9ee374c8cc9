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

// Names of what records deletions, which are GitLab's but for functions of one table.
const (
	plainFunctionName     = capture.TriggerFunctions
	overrideFunctionName  = capture.OverrideFunction
	columnFunctionPrefix  = capture.ColumnFunctionPrefix
	integerFunctionPrefix = capture.IntegerFunctionPrefix
	valuesFunctionPrefix  = capture.ValuesFunctionPrefix
	triggerSuffix         = capture.TriggerSuffix
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

// insertsSQL: the function p inserts something, and its queue, if it names one of ours, exists. A restored
// dump or the operator can leave an empty one, and a schema can be renamed.
const insertsSQL = `(p.prosrc ~* 'insert\s+into' AND (` + namedQueueSQL + ` IS NULL OR to_regclass(` + namedQueueSQL + `) IS NOT NULL))`

const namedQueueSQL = `substring(p.prosrc, 'INSERT INTO ("[^"]+"\."loose_foreign_keys_deleted_records")')`

func (f captureFunction) sql(q lfk.DeletedRecords) string { return quote(q.Schema, f.name) }

// create makes the function. One that exists is used as it is.
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

// replace makes the function, or gives the one that is there another body: rights and owner stay.
func (f captureFunction) replace(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords) error {
	body := functionBodySQL
	if q.Managed {
		// Spans are kept beside queues of our own alone.
		body = tracedBodySQL
	}
	return run(ctx, tx, fill(createFunctionSQL, "{function}", f.sql(q), "{body}",
		capture.Literal(f.body(body, f.recorded(), q))))
}

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
	columns, key := "fully_qualified_table_name, primary_key_value", "old_table."+quote(f.key[0])
	if f.values() {
		columns, key = columns+", key_values", "0, ARRAY["+strings.Join(values, ", ")+"]"
	}
	return fill(template, "{queue}", quotedQueue(q), "{column}", quote(f.key[0]),
		"{columns}", columns, "{key}", key, "{present}", strings.Join(present, " AND "),
		"{recorded}", recorded)
}

// functionsSQL finds the trigger functions of all schemas whose names begin as those that record
// deletions, with the arguments of a trigger that calls them.
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
	// Inserts: it inserts something, and its queue, if it names one of ours, exists. NamesQueue: it
	// names one of ours.
	Inserts, NamesQueue bool
	// Called: a trigger calls it. Row: it does so for each row.
	Called, Row bool
}

// functions are all of the database.
type functions []function

func readFunctions(ctx context.Context, tx pgx.Tx) (functions, error) {
	return list(ctx, tx, pgx.RowToStructByPos[function], functionsSQL, plainFunctionName)
}

// have reports whether there is such a function in the application schema that writes something.
func (all functions) have(f captureFunction, q lfk.DeletedRecords) bool {
	return slices.ContainsFunc(all, func(there function) bool {
		return there.Schema == q.Schema && there.Name == f.name && there.Inserts
	})
}

// old are the functions of a queue of our own that triggers call, and that an older version of this
// program has made, or that insert nothing.
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

// stray are the functions of another schema that insert into a queue of our own which is not there any
// more. Triggers call them: ALTER TABLE SET SCHEMA takes no function along.
func (all functions) stray(q lfk.DeletedRecords) (stray []function) {
	for _, f := range all {
		if q.Managed && f.Schema != q.Schema && f.NamesQueue && !f.Inserts && f.Called {
			stray = append(stray, f)
		}
	}
	return stray
}

// missing are the functions of no table that a queue of our own does not have.
func (all functions) missing(q lfk.DeletedRecords) (missing []captureFunction) {
	for _, f := range []captureFunction{plainFunction(), overrideFunction(relation{})} {
		if q.Managed && !all.have(f, q) {
			missing = append(missing, f)
		}
	}
	return missing
}

const moveFunctionSQL = `ALTER FUNCTION {function}() SET SCHEMA {schema}`

// move moves a stray function to the queue. Its triggers, which know it by its OID, call it there. A
// function of the same name there is dropped first, which fails if a trigger calls it.
func (all functions) move(ctx context.Context, tx pgx.Tx, f function, q lfk.DeletedRecords) error {
	taken := func(there function) bool { return there.Schema == q.Schema && there.Name == f.Name }
	if slices.ContainsFunc(all, taken) {
		if err := run(ctx, tx, fill(dropFunctionSQL, "{function}", quote(q.Schema, f.Name)+"()")); err != nil {
			return err
		}
	}
	return run(ctx, tx, fill(moveFunctionSQL, "{function}", quote(f.Schema, f.Name), "{schema}", quote(q.Schema)))
}
