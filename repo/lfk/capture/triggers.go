// Package capture names and reads what records deleted rows: triggers, their functions, and the arguments of both.
package capture

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Triggers that record deletions are made by `caretaker lfk track`, and repeated on new partitions by
// runs.

const (
	// TriggerFunctions is how the names of the trigger functions begin that record deletions.
	TriggerFunctions = "insert_into_loose_foreign_keys_deleted_records"
	// OverrideFunction records the column id under another table's name.
	OverrideFunction = TriggerFunctions + "_override_table"
	// ColumnFunctionPrefix is how those begin that record the column which they are called after.
	ColumnFunctionPrefix = TriggerFunctions + "_with_"
	// IntegerFunctionPrefix is how those of one table begin that record an integer.
	IntegerFunctionPrefix = TriggerFunctions + "_int_"
	// ValuesFunctionPrefix is how those of one table begin that record a key as values.
	ValuesFunctionPrefix = TriggerFunctions + "_key_"
	// TriggerSuffix is how the names of their triggers end.
	TriggerSuffix = "_loose_fk_trigger"
)

// TriggerKey are the columns that a trigger records which calls this function with these arguments;
// none: it is not one that records deletions.
func TriggerKey(function string, arguments []string) []string {
	column, ofColumn := strings.CutPrefix(function, ColumnFunctionPrefix)
	switch {
	case FunctionOfTable(function):
		return arguments[min(1, len(arguments)):]
	case ofColumn:
		return []string{column}
	case function == TriggerFunctions, function == OverrideFunction:
		return []string{"id"}
	}
	return nil
}

// Route sends the records of deleted rows to a queue of their owner: to Table, with the value that the
// column Source of the row has, as Column.
type Route struct {
	Table, Column, Source string
}

// TriggerRoutes are the routes of a trigger which calls this function with these arguments, none if it
// writes to the first queue alone. GitLab's functions take them as their last argument, in JSON.
func TriggerRoutes(function string, arguments []string) (routes []Route, err error) {
	at := 0
	if function == OverrideFunction {
		at = 1
	}
	if function != TriggerFunctions && function != OverrideFunction || len(arguments) <= at {
		return nil, nil
	}
	err = json.Unmarshal([]byte(arguments[at]), &routes)
	return routes, err
}

// FunctionOfTable reports whether a trigger function is for one table, which the first argument of its
// triggers names.
func FunctionOfTable(function string) bool {
	return strings.HasPrefix(function, ValuesFunctionPrefix) ||
		strings.HasPrefix(function, IntegerFunctionPrefix)
}

// DeleteTrigger is a trigger that records the deletions from a table.
type DeleteTrigger struct {
	Name            string
	Table, Function catalog.Table
	Arguments       []string
	// Row: it fires for each row, also for those that logical replication deletes.
	Row bool
}

// createTriggerSQL fires after each statement that deletes, with the rows it deleted.
const createTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_table
FOR EACH STATEMENT EXECUTE FUNCTION {function}({arguments})`

// createRowTriggerSQL fires for each row. On a partitioned table PostgreSQL copies it to all partitions.
const createRowTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}({arguments})`

// enableTriggerSQL: by default triggers rest while a replica applies changes, and deletions would
// go unnoticed. ONLY, because partitions have triggers of other names.
const enableTriggerSQL = `ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}`

// enableRowTriggerSQL is for the copies, too.
const enableRowTriggerSQL = `ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}`

// CreateSQL makes the trigger.
func (t DeleteTrigger) CreateSQL() string {
	if t.Row {
		return t.fill(createRowTriggerSQL)
	}
	return t.fill(createTriggerSQL)
}

// EnableSQL lets the trigger fire always.
func (t DeleteTrigger) EnableSQL() string {
	if t.Row {
		return t.fill(enableRowTriggerSQL)
	}
	return t.fill(enableTriggerSQL)
}

func (t DeleteTrigger) fill(sql string) string {
	return stmt.Fill(sql, "{trigger}", stmt.Quote(t.Name), "{table}", stmt.Quote(t.Table.Schema, t.Table.Name),
		"{function}", stmt.Quote(t.Function.Schema, t.Function.Name),
		"{arguments}", Literals(t.Arguments))
}

// TriggerArguments are those of a trigger, from pg_trigger.tgargs in hex: each ends with a zero byte.
func TriggerArguments(encoded string) []string {
	// What PostgreSQL encodes can be decoded.
	bytes, _ := hex.DecodeString(encoded)
	text, some := strings.CutSuffix(string(bytes), "\x00")
	if !some {
		return nil
	}
	return strings.Split(text, "\x00")
}

// Literal quotes a string constant for DDL, which takes no parameters.
func Literal(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// Literals are constants, with commas in between.
func Literals(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = Literal(s)
	}
	return strings.Join(quoted, ", ")
}
