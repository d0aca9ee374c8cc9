// Package lfk contains the SQL of loose_foreign_keys_cleanup. It reads records of deleted rows and
// the tables that refer to them. Its statements delete, nullify or mark the children.
package lfk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Actions of a loose foreign key, as the definitions file spells them.
const (
	AsyncDelete    = "async_delete"
	AsyncNullify   = "async_nullify"
	UpdateColumnTo = "update_column_to"
)

// Definition describes what a run does with the rows of Table whose Columns refer to a deleted row
// of Parent. Tables are named as [catalog.ParseTable] reads them, columns literally.
type Definition struct {
	Table, Parent string
	// Columns of the child, one to four, each referring to the column of Key at its place.
	Columns []string
	// Key lists the parent's columns. If empty, these are the recorded columns in their order.
	Key []string
	// OnDelete is one of the actions above.
	OnDelete string
	// TargetColumn and TargetValue belong to UpdateColumnTo.
	TargetColumn, TargetValue string
	// Conditions narrow the rows: all of them must hold.
	Conditions []ColumnValue
	// DeleteLimit caps the rows of one statement for every action. 0 means adaptive.
	DeleteLimit int
}

// ColumnValue is an equality. PostgreSQL converts the text of Value to the column's type.
type ColumnValue struct{ Column, Value string }

// String returns the definition's identity in messages: "child.column -> parent", or for several
// columns "child.(one, other) -> parent".
func (k Definition) String() string {
	return k.Table + "." + ColumnList(k.Columns) + " -> " + k.Parent
}

// ColumnList formats columns: "one", or "(one, other)".
func ColumnList(columns []string) string {
	if len(columns) == 1 {
		return columns[0]
	}
	return "(" + strings.Join(columns, ", ") + ")"
}

// changes returns the columns that the action sets, none if the action deletes rows.
func (k Definition) changes() []string {
	switch k.OnDelete {
	case AsyncNullify:
		return k.Columns
	case UpdateColumnTo:
		return []string{k.TargetColumn}
	}
	return nil
}

// Child is a definition in one database that contains its child table.
type Child struct {
	Key      Definition
	Database *pg.Database
	table    *childTable
	// Detaching lists the partitions whose detachment is pending: statements on the table leave
	// their rows out.
	Detaching []*Child
	// detaching lists the SQL names of these partitions, also in each of the partitions.
	detaching []string
	// lock is the row lock taken before a change: an update that leaves unique columns alone does
	// not conflict with foreign key checks.
	lock string
	// key is the SQL of the key that a statement returns for changed rows: see keyOfSQL.
	key string
	// mayKeep: see [Child.MayKeep]. tree is the table's name, if partitioned, for [lockTrees].
	mayKeep bool
	tree    []string
	// order[i] is the position of column i's value in the recorded key. nil is the same order.
	Order []int
	// integers means that the key is recorded as one integer.
	integers bool
	// parent is the table that the keys belong to, or nil if it is in another database.
	parent *ParentTable
}

// childTable is a child table with the columns that definitions name.
type childTable struct {
	catalog.Table
	// columns by name, without those that the table does not have.
	columns map[string]childColumn
}

// childColumn is a column of a child.
type childColumn struct {
	// Type has no modifiers, because a cast to character(3) or bit would cut values off. Stored has
	// them. Compared is the type that keys are compared as: bigint for all integers, and for a
	// domain its base type.
	Type, Stored, Compared string
	// Class as KeyClassSQL defines it.
	Class  string
	Unique bool
}

// MayKeep reports whether a row that a statement finds may stay unchanged without an error. Causes:
// a BEFORE trigger, a rule, another server, or a move to a partition or an inheriting table.
func (c *Child) MayKeep() bool { return c.mayKeep }

// Table returns the child table.
func (c *Child) Table() catalog.Table { return c.table.Table }

// comparedSQL is the type for comparing keys with the column a. All integers compare as bigint. A
// value outside a domain's range is not refused.
const comparedSQL = `(
  SELECT CASE WHEN t.oid IN ('smallint'::regtype, 'integer'::regtype) THEN 'bigint'
    ELSE format_type(t.oid, -1) END
  FROM ` + pg.BaseTypeSQL + ` t (oid))`

// keepsRowsSQL reports whether a rule, or a trigger as in keepingTriggersSQL, may keep rows of the
// table k unchanged without an error. The triggers and rules of a foreign table are unknown.
const keepsRowsSQL = `(k.relkind = 'f' OR k.relhasrules OR k.relhastriggers AND EXISTS (
    SELECT FROM pg_trigger t
    WHERE t.tgrelid = k.oid AND t.tgenabled IN ('O', 'A') AND t.tgtype & 3 = 3 AND t.tgtype & 24 > 0))`

// childTablesSQL finds ordinary and partitioned tables. A table whose enabled trigger refuses every
// write is a leftover of a split database and does not count.
//
// A partition whose detachment is pending is not part of its table for statements: it counts as a
// table of its own.
//
// keeping lists the tables that may keep rows, or whose inheriting tables may. DELETE and INSERT
// move a row between partitions or inheriting tables, and a statement with an older snapshot finds
// only the deleted row. See also lockTreesSQL.
const childTablesSQL = `
WITH RECURSIVE named AS (
  SELECT c.oid, w.written, n.nspname, c.relname, n.nspname = current_schema() AS here
  FROM ` + catalog.NamedSQL + `
  WHERE c.relkind IN ('r', 'p') AND NOT ` + catalog.ProtectedSQL + `
), member (root, oid, detaching) AS (
  SELECT oid, oid, false FROM named
  UNION
  SELECT m.root, i.inhrelid, i.inhdetachpending FROM pg_inherits i JOIN member m ON m.oid = i.inhparent
), home AS (
  SELECT oid, oid AS root, written, nspname, relname, here, false AS detaching FROM named
  UNION ALL
  SELECT c.oid, t.oid, t.written, n.nspname, c.relname, t.here, true FROM member m
  JOIN named t ON t.oid = m.root JOIN pg_class c ON c.oid = m.oid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE m.detaching
), keeping AS (
  SELECT DISTINCT m.root FROM member m JOIN pg_class k ON k.oid = m.oid
  WHERE k.oid <> m.root OR ` + keepsRowsSQL + `
)
SELECT c.written, c.nspname, c.relname, c.here, c.detaching, EXISTS (SELECT FROM keeping k WHERE k.root = c.root),
  EXISTS (SELECT FROM pg_partitioned_table t WHERE t.partrelid = c.oid), ` + pg.KeyOfSQL + `,
  coalesce(a.attname, ''), coalesce(format_type(a.atttypid, -1), ''),
  coalesce(format_type(a.atttypid, a.atttypmod), ''), coalesce(` + comparedSQL + `, ''), ` + pg.KeyClassSQL + `,
  EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND a.attnum = ANY (i.indkey))
FROM home c
LEFT JOIN pg_attribute a
  ON a.attrelid = c.oid AND a.attname = ANY ($4) AND a.attnum > 0 AND NOT a.attisdropped`

// childRow is a row of childTablesSQL: a column of a table.
type childRow struct {
	Written, Schema, Table string
	// Detaching means that the table is a partition of the named table whose detachment is pending.
	Here, Detaching, MayKeep, Partitioned bool
	Key, Name                             string
	childColumn
}

// Children finds the definitions whose child table is in this database. The result has an entry for
// each definition, nil where the table is missing. Without an application schema the error is a
// [*dberr.NoSchemaError].
func (d Children) Children(ctx context.Context, keys []Definition) ([]*Child, error) {
	written, columns := namesOf(keys)
	schemas, names := catalog.SplitNames(written)
	find := pg.NewQuery("find child tables", childTablesSQL, written, schemas, names, columns)
	found, err := pg.Collect(ctx, d.db, find, pgx.RowToStructByPos[childRow])
	if err == nil && len(found) == 0 {
		_, err = d.db.ApplicationSchema(ctx)
	}
	if err != nil {
		return nil, err
	}
	rows, tables, detaching := map[string]childRow{}, map[string]*childTable{}, map[string][]string{}
	for _, r := range found {
		name := r.Written
		if r.Detaching {
			name = strings.Join([]string{r.Written, r.Schema, r.Table}, "\x00")
		}
		if tables[name] == nil {
			table := &childTable{catalog.Table{Schema: r.Schema, Name: r.Table}, map[string]childColumn{}}
			rows[name], tables[name] = r, table
			if r.Detaching {
				detaching[r.Written] = append(detaching[r.Written], name)
			}
		}
		tables[name].columns[r.Name] = r.childColumn
	}
	if err := pg.RenewTargets(ctx, d.db); err != nil {
		return nil, err
	}
	children := make([]*Child, len(keys))
	for i, key := range keys {
		if table := tables[key.Table]; table != nil {
			children[i] = child(d.db, key, table, rows[key.Table])
			names := []string{}
			for _, name := range detaching[key.Table] {
				names = append(names, tables[name].SQL())
				children[i].Detaching = append(children[i].Detaching, child(d.db, key, tables[name], rows[name]))
			}
			for _, c := range append([]*Child{children[i]}, children[i].Detaching...) {
				c.detaching = names
			}
		}
	}
	return children, nil
}

// child returns a definition whose child is in this database.
func child(d *pg.Database, key Definition, table *childTable, r childRow) *Child {
	c := &Child{
		Key: key, Database: d, table: table, lock: "FOR UPDATE SKIP LOCKED", mayKeep: r.MayKeep,
		key: cmp.Or(r.Key, textOf(key.Columns)),
	}
	if r.Partitioned {
		c.tree = []string{table.SQL()}
	}
	changed := key.changes()
	if len(changed) > 0 && !slices.ContainsFunc(changed, func(name string) bool {
		return table.columns[name].Unique
	}) {
		c.lock = "FOR NO KEY UPDATE SKIP LOCKED"
	}
	return c
}

// textOf returns the SQL that identifies changed rows of a table without a primary key.
func textOf(columns []string) string {
	if len(columns) == 1 {
		return "t." + stmt.Quote(columns[0]) + "::text"
	}
	return "ROW(" + Referring(columns) + ")::text"
}

// Referring returns the SQL of columns of the child t.
func Referring(columns []string) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = "t." + stmt.Quote(c)
	}
	return strings.Join(names, ", ")
}

func namesOf(keys []Definition) (tables, columns []string) {
	for _, k := range keys {
		tables = append(tables, k.Table)
		columns = append(append(columns, k.Columns...), k.TargetColumn)
		for _, c := range k.Conditions {
			columns = append(columns, c.Column)
		}
	}
	return tables, columns
}

// keyArguments contains keys as the parameters of a statement: one array of texts for each column.
type keyArguments [][]string

func (c *Child) arguments(keys []Key) (keyArguments, error) {
	of := make(keyArguments, len(c.Key.Columns))
	for i := range of {
		of[i] = make([]string, len(keys))
	}
	for n, key := range keys {
		values := key.Values()
		if len(values) != len(of) {
			return nil, fmt.Errorf("a key with %d values does not match the definition %s", len(values), c.Key)
		}
		for i := range of {
			at := i
			if c.Order != nil {
				at = c.Order[i]
			}
			of[i][n] = values[at]
		}
	}
	return of, nil
}

// Query fills the child's identifiers into a statement whose parameters are the keys' first column
// as $1, and own. After them it adds the keys' other columns and the values of the definition. A
// column that does not exist has no type: the statement then fails by its name.
func (c *Child) Query(
	operation, template string, keys []Key, own []any, more ...string,
) (pg.Query, error) {
	arrays, err := c.arguments(keys)
	if err != nil {
		return pg.Query{}, err
	}
	args := stmt.Parameters(append([]any{arrays[0]}, own...))
	var lists, names, matches []string
	for i, column := range c.Key.Columns {
		compared := cmp.Or(c.table.columns[column].Compared, "text")
		if c.integers {
			// PostgreSQL refuses a column of another type.
			compared = "bigint"
		}
		value := "$1::text[]"
		if i > 0 {
			value = args.Add(arrays[i]) + "::text[]"
		}
		list := value + "::" + compared + "[]"
		name := fmt.Sprintf("k%d", i+1)
		lists, names = append(lists, list), append(names, name)
		matches = append(matches, "t."+stmt.Quote(column)+" = k."+name)
	}
	change, conditions, done := c.changeSQL(&args)
	parents := "unnest(" + strings.Join(lists, ", ") + ") WITH ORDINALITY AS k (" + strings.Join(names, ", ") + ", n)"
	join, joined := "", "t."+stmt.Quote(c.Key.Columns[0])+" = ANY ("+lists[0]+")"
	if len(lists) > 1 {
		join, joined = " FROM "+parents, strings.Join(matches, " AND ")
		if c.Key.OnDelete == AsyncDelete {
			join = " USING " + parents
		}
	}
	all := append([]string{
		"{child}", c.table.SQL(), "{conditions}", conditions,
		"{column}", stmt.Quote(c.Key.Columns[0]), "{list}", lists[0], "{child_columns}", Referring(c.Key.Columns),
		"{parents}", parents, "{join}", join, "{joined}", joined, "{matched}", strings.Join(matches, " AND "), "{parent_values}", strings.Join(names, ", "),
		"{change}", change, "{returned}", c.key, "{done}", done, "{noted}", pg.ReceiptSQL,
	}, more...)
	sql := pg.Summary(c.Database, stmt.Fill(template, all...), c.key, "done")
	return pg.NewQuery(operation+" "+c.Key.String(), sql, args...), nil
}
