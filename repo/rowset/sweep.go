// Package rowset finds rows by their references, and changes them in bounded statements.
package rowset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Rows are rows of a table that a sweep changes or a bounded removal removes: those that satisfy
// every Match and the Condition. Make them with the methods of [catalog.Catalog].
type Rows struct {
	Database *pg.Database
	Table    catalog.Table
	Match    []Match
	// Condition is more SQL on the table as t, a constant: "t.type = 'DeployKey'".
	Condition string
	// except are values that no row may have.
	except []Match
	// partitioned means that the table is changed partition by partition. part is one of these.
	partitioned bool
	part        *catalog.Part
	// key is the SQL of the key that a statement returns for changed rows: see keyOfSQL.
	key string
	// following is a column of an index with the matched column: the next statement can begin after
	// its last value. "" means that the table has no such index.
	following string
}

// Match selects the rows whose columns have one of some values.
type Match struct {
	Columns []catalog.Column
	// Values of each column, as text. Values at the same position of the lists belong together.
	Values [][]string
}

// IDs returns values of an integer column.
func IDs(ids ...int64) []string {
	values := make([]string, len(ids))
	for i, id := range ids {
		values[i] = strconv.FormatInt(id, 10)
	}
	return values
}

// RowsOf returns the rows of a table in which the column has one of these values. It returns false
// if the catalogue does not have the table or column, or was not asked for it.
func RowsOf(c *catalog.Catalog, table, column string, values ...string) (Rows, bool) {
	r := c.Tables[table]
	found, ok := r.Column(column)
	if !ok {
		return Rows{}, false
	}
	rows := Rows{
		Database: c.Database, Table: r.Table, partitioned: r.Partitioned, key: r.Key,
		Match: []Match{{[]catalog.Column{found}, [][]string{values}}},
	}
	if len(values) == 1 {
		rows.following = found.Following
	}
	return rows, true
}

// Children returns the rows that refer by a foreign key to these values of k.ParentColumns.
func Children(c *catalog.Catalog, k catalog.ForeignKey, values [][]string) Rows {
	return Rows{
		Database: c.Database, Table: k.Child, partitioned: k.Partitioned, key: k.Key,
		Match: []Match{{k.Columns, values}},
	}
}

// Referring returns the rows that refer by one column of a foreign key to these values of the
// parent's column.
func Referring(c *catalog.Catalog, k catalog.ForeignKey, parentColumn string, values ...string) Rows {
	column, found := k.Column(parentColumn)
	if !found {
		return Rows{Database: c.Database, Table: k.Child, Condition: "false"}
	}
	k.Columns = []catalog.Column{column}
	return Children(c, k, [][]string{values})
}

// Where returns the rows of r that have a further match, by which they are found.
func (r Rows) Where(m Match) Rows {
	r.Match, r.following = append(slices.Clone(r.Match), m), ""
	return r
}

// Except returns the rows of r that do not have these values of the columns.
func (r Rows) Except(columns []catalog.Column, values [][]string) Rows {
	r.except = append(slices.Clone(r.except), Match{columns, values})
	return r
}

// Partitioned reports whether the rows must be split by [Parts] before they are changed.
func (r Rows) Partitioned() bool { return r.partitioned }

// String returns the table and columns: "issues.author_id".
func (r Rows) String() string { return r.Table.Name + "." + catalog.JoinColumns(r.Match[0].Columns) }

// from returns the table in statements: the partition if our role may name it, else the table.
func (r Rows) from() string {
	return r.reachedTable().SQL()
}

// reachedTable returns the table that statements name.
func (r Rows) reachedTable() catalog.Table {
	if r.part != nil && r.part.ByName {
		return r.part.Table
	}
	return r.Table
}

// sql returns the condition of the rows in two forms.
//
// match finds them by an index: with several matches by the last one, which has the known keys.
//
// filter checks rows that are already found, and no index can serve it. Otherwise statistics that
// do not know a huge account yet would make each statement read all its rows.
func (r Rows) sql(p *stmt.Parameters) (match, filter string) {
	var finds, asks []string
	for i, m := range r.Match {
		find, ask := m.sql(p)
		if i < len(r.Match)-1 {
			find = ask
		}
		finds, asks = append(finds, find), append(asks, ask)
	}
	var more []string
	if r.Condition != "" {
		more = append(more, "("+r.Condition+")")
	}
	for _, m := range r.except {
		_, excepted := m.sql(p)
		more = append(more, "("+excepted+") IS NOT TRUE")
	}
	if condition := r.part.Condition(p); condition != "" {
		more = append(more, condition)
	}
	return strings.Join(append(finds, more...), " AND "), strings.Join(append(asks, more...), " AND ")
}

// sql returns the match to find rows, and to check a found row. In the check a list of keys must be
// a hash lookup, not a search of the list.
func (m Match) sql(p *stmt.Parameters) (match, filter string) {
	columns, lists := make([]string, len(m.Columns)), make([]string, len(m.Columns))
	for i, c := range m.Columns {
		columns[i] = "t." + stmt.Quote(c.Name)
		if len(m.Values[i]) == 1 && len(m.Columns) == 1 {
			match = columns[i] + " = " + c.Value(m.Values[i][0], p)
			return match, unindexed(match)
		}
		lists[i] = c.List(m.Values[i], p)
	}
	if slices.ContainsFunc(m.Columns, catalog.Column.Array) {
		values := make([]string, len(m.Columns))
		names := make([]string, len(m.Columns))
		for i, c := range m.Columns {
			names[i] = fmt.Sprint("v", i)
			values[i] = c.Listed("k." + names[i])
		}
		match = fmt.Sprintf("(%s) IN (SELECT %s FROM unnest(%s) AS k (%s))", strings.Join(columns, ", "),
			strings.Join(values, ", "), strings.Join(lists, ", "), strings.Join(names, ", "))
		return match, unindexed(match)
	}
	if len(columns) == 1 {
		return fmt.Sprintf("%s = ANY (%s)", columns[0], lists[0]),
			unindexed(fmt.Sprintf("%s IN (SELECT unnest(%s))", columns[0], lists[0]))
	}
	//nolint:unqueryvet // unnest has the columns that were given
	match = fmt.Sprintf("(%s) IN (SELECT * FROM unnest(%s))",
		strings.Join(columns, ", "), strings.Join(lists, ", "))
	return match, unindexed(match)
}

// unindexed returns a condition that no index can serve.
func unindexed(condition string) string { return "(" + condition + ") IS TRUE" }

// Change is the change of rows.
type Change struct {
	// Delete the rows, and return the values of the column Report, if it is not "".
	Delete bool
	Report string
	// Outside is the kind of paths that these values are, which are recorded as left outside the
	// database. "" means that the values are not paths.
	Outside string
	// Set these columns otherwise: to Value, or to NULL if Value is nil.
	Set   []string
	Value *int64
}

// Nullify returns the change that the foreign key's ON DELETE SET NULL makes.
func Nullify(k catalog.ForeignKey) Change { return Change{Set: k.SetNull} }

// Action returns the change as a word, for logs and statistics.
func (c Change) Action() string {
	switch {
	case c.Delete:
		return "delete"
	case c.Value == nil:
		return "nullify"
	}
	return "move"
}

// receipt returns the receipt for the change of the rows.
func (c Change) receipt(r Rows) pg.Receipt {
	action := pg.ReceiptUpdated
	switch {
	case c.Delete:
		action = pg.ReceiptDeleted
	case c.Value == nil:
		action = pg.ReceiptNullified
	}
	return pg.Receipt{Table: r.Table.Name, Action: action, Rule: r.String()}
}

// returned is the key that a statement returns for changed rows: that of the table, or else the
// columns by which the rows are found.
func (r Rows) returned() string {
	if r.key != "" {
		return r.key
	}
	columns := make([]string, len(r.Match[0].Columns))
	for i, c := range r.Match[0].Columns {
		columns[i] = "t." + stmt.Quote(c.Name)
	}
	return "ROW(" + strings.Join(columns, ", ") + ")::text"
}

// sql returns the change, and the condition that a returned row was changed.
func (c Change) sql(table string, p *stmt.Parameters) (change, done string) {
	if c.Delete {
		return "DELETE FROM " + table + " t", "true"
	}
	value, is := "NULL", " IS NULL"
	if c.Value != nil {
		value = p.Add(*c.Value) + "::bigint"
		is = "::text = " + value + "::text"
	}
	set, has := make([]string, len(c.Set)), make([]string, len(c.Set))
	for i, column := range c.Set {
		set[i], has[i] = stmt.Quote(column)+" = "+value, "t."+stmt.Quote(column)+is
	}
	return "UPDATE " + table + " t SET " + strings.Join(set, ", "), strings.Join(has, " AND ")
}
