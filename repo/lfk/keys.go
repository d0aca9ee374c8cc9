package lfk

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// KeyMismatchError reports that a definition does not fit the recorded key of its parent: it would
// find the rows of other parents, or none.
type KeyMismatchError struct{ text string }

// Error returns what does not fit.
func (e *KeyMismatchError) Error() string { return e.text }

// Public marks the text as safe for clients.
func (e *KeyMismatchError) Public() {}

// RecordedKey describes how the key of a table is recorded.
type RecordedKey struct {
	// Columns of the key, none if they are unknown.
	Columns []string
	// Values means that the key is recorded as texts, and Classes has the [pg.KeyClassSQL] of each
	// column. Otherwise the key is one integer, and Classes is empty.
	Values  bool
	Classes []string
}

// recordedKeysSQL finds the functions that record deletions, with the triggers that call them.
// Triggers of partitions repeat those of the table and do not count. Only functions that record
// values ($2) have columns: each costs a search of all types, and GitLab's tables have thousands.
const recordedKeysSQL = `
SELECT f.proname, n.nspname, coalesce(cn.nspname || '.' || c.relname, ''), coalesce(encode(t.tgargs, 'hex'), ''),
  ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND starts_with(f.proname, $2) ORDER BY a.attnum),
  ARRAY(
    SELECT ` + pg.KeyClassSQL + ` FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND starts_with(f.proname, $2) ORDER BY a.attnum)
FROM pg_proc f
JOIN pg_namespace n ON n.oid = f.pronamespace AND n.nspname = current_schema()
LEFT JOIN (
  pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid AND NOT c.relispartition
  JOIN pg_namespace cn ON cn.oid = c.relnamespace) ON t.tgfoid = f.oid
WHERE starts_with(f.proname, $1) AND f.pronargs = 0`

// captureTrigger is a row of recordedKeysSQL.
type captureTrigger struct {
	// Function is in Schema. Table is the name of the table, with its schema.
	Function, Schema, Table string
	Arguments               string
	// Names and Classes of the table's columns, none if an integer is recorded.
	Names, Classes []string
}

// key returns the key that the trigger records, and the recorded table names, none for other
// triggers. The last name is that of its table now. Records may have an earlier name.
func (t captureTrigger) key() (tables []string, key RecordedKey) {
	arguments := capture.TriggerArguments(t.Arguments)
	key.Columns = capture.TriggerKey(t.Function, arguments)
	key.Values = strings.HasPrefix(t.Function, capture.ValuesFunctionPrefix)
	switch {
	case len(key.Columns) == 0, t.Table == "":
	case capture.FunctionOfTable(t.Function):
		tables = []string{arguments[0], t.Table}
	case t.Function == capture.TriggerFunctions:
		tables = []string{t.Table}
	case len(arguments) > 0:
		tables = []string{t.Schema + "." + arguments[0], t.Table}
	}
	for _, name := range key.Columns {
		class := ""
		if at := slices.Index(t.Names, name); at >= 0 {
			class = t.Classes[at]
		}
		key.Classes = append(key.Classes, class)
	}
	return tables, key
}

// RecordedKeys describes how the keys of tables are recorded.
type RecordedKeys struct {
	// Of has the keys of tables, by their recorded names.
	Of map[string]RecordedKey
	// OnlyID means that no function of the queue's schema records, or ever recorded, anything else.
	OnlyID bool
}

// RecordedKeys reads how the keys of tables are recorded now.
func (d Queue) RecordedKeys(ctx context.Context, q DeletedRecords, l fencing.Limits) (RecordedKeys, error) {
	find := pg.NewQuery("find recorded keys", recordedKeysSQL, capture.TriggerFunctions, capture.ValuesFunctionPrefix)
	found, err := pg.ReadRows(ctx, d.db, l, find, pgx.RowToStructByPos[captureTrigger])
	keys := RecordedKeys{Of: map[string]RecordedKey{}, OnlyID: !q.Wide}
	for _, before := range []bool{true, false} {
		for _, t := range found {
			names, key := t.key()
			keys.OnlyID = keys.OnlyID && (t.Function == capture.TriggerFunctions || t.Function == capture.OverrideFunction)
			if n := len(names); n > 0 && before {
				keys.Of[names[0]] = key
			} else if n > 0 {
				keys.Of[names[n-1]] = key
			}
		}
	}
	return keys, err
}

// Places returns the position of each column of the definition in a key recorded by these columns,
// which may have another order. If the key does not fit, the error is a [*KeyMismatchError].
func (k Definition) Places(recorded []string) ([]int, error) {
	if len(k.Columns) != len(recorded) {
		return nil, &KeyMismatchError{fmt.Sprintf("the definition has %d columns, but the recorded key of %s is %s",
			len(k.Columns), k.Parent, ColumnList(recorded))}
	}
	places := make([]int, len(recorded))
	for i := range places {
		places[i] = i
		if k.Key != nil {
			places[i] = slices.Index(recorded, k.Key[i])
		}
	}
	if slices.Contains(places, -1) {
		return nil, &KeyMismatchError{fmt.Sprintf("the definition refers to %s, but the recorded key of %s is %s",
			ColumnList(k.Key), k.Parent, ColumnList(recorded))}
	}
	return places, nil
}

// MatchKey lets the child find its rows by a recorded key. parent is the table of the key if it is
// in the child's database, else nil: purges check there that the key has no row. If the key does
// not fit the child, the error is a [*KeyMismatchError].
func (c *Child) MatchKey(to RecordedKey, parent *ParentTable) (err error) {
	c.integers = !to.Values
	if parent.Exists() && parent.columns() == len(c.Key.Columns) {
		c.parent = parent
	}
	for _, column := range c.Key.Columns {
		if t := c.table.columns[column].Compared; t == "real" || t == "double precision" {
			return &KeyMismatchError{fmt.Sprintf("%s is of type %s, which rounds values, so different keys can compare as equal",
				column, t)}
		}
	}
	if len(to.Columns) == 0 {
		return nil
	}
	if c.Order, err = c.Key.Places(to.Columns); err != nil || c.integers {
		return err
	}
	for i, column := range c.Key.Columns {
		at := c.Order[i]
		if got, want := c.table.columns[column].Class, to.Classes[at]; got != want && want != "" {
			return &KeyMismatchError{fmt.Sprintf("%s cannot be compared with %s of %s", column,
				to.Columns[at], c.Key.Parent)}
		}
	}
	return nil
}

// CheckKey returns nil if the child can look up a key, else a [*KeyMismatchError].
func (c *Child) CheckKey(key Key) error {
	switch {
	case key.Columns() != len(c.Key.Columns):
		return &KeyMismatchError{fmt.Sprintf("the definition has %d columns, but the recorded key has %d values",
			len(c.Key.Columns), key.Columns())}
	case len(c.Key.Key) > 1 && c.Order == nil:
		// In another order the values would find the rows of other parents.
		return &KeyMismatchError{fmt.Sprintf("%s is no longer tracked, so the order in which its key "+
			"columns %s were recorded is unknown: remove `key` from the definition, and list the columns of `column` "+
			"in the recorded order",
			c.Key.Parent, ColumnList(c.Key.Key))}
	}
	return nil
}
