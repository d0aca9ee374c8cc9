// Package capture names and reads triggers that record deleted rows, their functions and arguments.
package capture

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// `caretaker lfk track` creates the triggers that record deletions. Runs repeat them on new
// partitions.

const (
	// TriggerFunctions is the prefix of the trigger functions that record deletions.
	TriggerFunctions = "insert_into_loose_foreign_keys_deleted_records"
	// OverrideFunction records the column id under another table's name.
	OverrideFunction = TriggerFunctions + "_override_table"
	// ColumnFunctionPrefix is the prefix of functions that record the column in their name.
	ColumnFunctionPrefix = TriggerFunctions + "_with_"
	// IntegerFunctionPrefix is the prefix of functions of one table that record an integer.
	IntegerFunctionPrefix = TriggerFunctions + "_int_"
	// ValuesFunctionPrefix is the prefix of functions of one table that record a key as values.
	ValuesFunctionPrefix = TriggerFunctions + "_key_"
	// TriggerSuffix is the suffix of their triggers' names.
	TriggerSuffix = "_loose_fk_trigger"
)

// TriggerKey returns the columns recorded by a trigger that calls this function with these
// arguments, none if it does not record deletions.
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

// Route sends the records of deleted rows to a queue of their owner: to Table, with the value of
// the row's column Source as Column.
type Route struct {
	Table, Column, Source string
}

// TriggerRoutes returns the routes of a trigger that calls this function with these arguments, none
// if it writes only to the first queue. GitLab's have them as the last argument, in JSON.
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

// FunctionOfTable reports whether a trigger function is for one table, which the first argument of
// its triggers names.
func FunctionOfTable(function string) bool {
	return strings.HasPrefix(function, ValuesFunctionPrefix) ||
		strings.HasPrefix(function, IntegerFunctionPrefix)
}

// DeleteTrigger is a trigger that records the deletions from a table.
type DeleteTrigger struct {
	Name            string
	Table, Function catalog.Table
	Arguments       []string
	// Row means that it fires for each row, also for those that logical replication deletes.
	Row bool
}

// createTriggerSQL creates a trigger that fires after each deleting statement, with its rows.
const createTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_table
FOR EACH STATEMENT EXECUTE FUNCTION {function}({arguments})`

// createRowTriggerSQL creates a row trigger. PostgreSQL copies a table's to all its partitions.
const createRowTriggerSQL = `
CREATE TRIGGER {trigger} AFTER DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}({arguments})`

// enableTriggerSQL: by default triggers do not fire while a replica applies changes, and its
// deletions would not be recorded. It has ONLY because partitions have triggers of other names.
const enableTriggerSQL = `ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}`

// enableRowTriggerSQL also enables the copies.
const enableRowTriggerSQL = `ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}`

// CreateSQL returns the statement that creates the trigger.
func (t DeleteTrigger) CreateSQL() string {
	if t.Row {
		return t.fill(createRowTriggerSQL)
	}
	return t.fill(createTriggerSQL)
}

// EnableSQL returns the statement that makes the trigger fire always.
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

// TriggerArguments parses pg_trigger.tgargs in hex: each argument ends with a zero byte.
func TriggerArguments(encoded string) []string {
	// PostgreSQL's encoding can be decoded.
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

// Literals returns string constants, separated by commas.
func Literals(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = Literal(s)
	}
	return strings.Join(quoted, ", ")
}
