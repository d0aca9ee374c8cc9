package repo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rows are rows of a table that a sweep changes, or bounded removal removes: those that satisfy
// every Match and the Condition. Make them with the methods of [Catalog].
type Rows struct {
	Database *Database
	Table    Table
	Match    []Match
	// Condition is more SQL on the table as t, a constant: "t.type = 'DeployKey'".
	Condition string
	// except are rows that are none of these.
	except *Match
	// partitioned tables are worked partition by partition; part is one of them.
	partitioned bool
	part        *part
	// behind is a column of an index behind whose last value the next statement can go on; "" if
	// there is none.
	behind string
}

// Match is the rows whose columns have one of some values.
type Match struct {
	Columns []Column
	// Values of each column, as text; the rows of values belong together.
	Values [][]string
}

// IDs are values of a column that is an integer.
func IDs(ids ...int64) []string {
	values := make([]string, len(ids))
	for i, id := range ids {
		values[i] = strconv.FormatInt(id, 10)
	}
	return values
}

// Rows are the rows of a table of the catalogue in which the column has one of these values. False:
// there is no such table or column, or it was not asked for.
func (c *Catalog) Rows(table, column string, values ...string) (Rows, bool) {
	r := c.tables[table]
	found, there := r.Column(column)
	if !there {
		return Rows{}, false
	}
	rows := Rows{Database: c.Database, Table: r.Table, partitioned: r.partitioned, Match: []Match{{[]Column{found}, [][]string{values}}}}
	if len(values) == 1 {
		rows.behind = found.behind
	}
	return rows, true
}

// Children are the rows that refer to these values of the parent's columns by a foreign key. values
// are in the order of k.ParentColumns.
func (c *Catalog) Children(k ForeignKey, values [][]string) Rows {
	return Rows{Database: c.Database, Table: k.Child, partitioned: k.partitioned, Match: []Match{{k.Columns, values}}}
}

// Where is the rows among r with a further match, by which they are found.
func (r Rows) Where(m Match) Rows {
	r.Match, r.behind = append(slices.Clone(r.Match), m), ""
	return r
}

// Except is the rows among r without those that have these values of the columns.
func (r Rows) Except(columns []Column, values [][]string) Rows {
	r.except = &Match{columns, values}
	return r
}

// String names the table and columns: "issues.author_id".
func (r Rows) String() string { return r.Table.Name + "." + joinColumns(r.Match[0].Columns) }

// Change is what becomes of rows.
type Change struct {
	// Delete them, and return the values of Report, a column, if it is not "".
	Delete bool
	Report string
	// Set these columns otherwise: to Value, or to NULL if that is nil.
	Set   []string
	Value *int64
}

// Action is the change in a word, for logs and statistics.
func (c Change) Action() string {
	switch {
	case c.Delete:
		return "delete"
	case c.Value == nil:
		return "nullify"
	}
	return "move"
}

// Nullify is the change that the foreign key asks for with ON DELETE SET NULL.
func (k ForeignKey) Nullify() Change { return Change{Set: k.setNull} }

// Batch bounds one statement of a sweep.
type Batch struct {
	Permit
	// Rows it may change.
	Rows int64
	// Behind is where the one before ended; nil: from the start.
	Behind *int64
	// Swift is for a batch behind a full one: no row is read before it is changed, so only the
	// changed ones are known.
	Swift bool
	// SkipLocked leaves out rows that somebody else has locked, instead of waiting for them under
	// Limits.Lock.
	SkipLocked bool
}

// BatchResult is what a statement of a sweep did.
type BatchResult struct {
	// Picked rows, at most as many as the batch allowed, and how many of them were Changed: the
	// others have moved on, or a trigger has put back what they had. A Swift batch does not notice
	// the latter.
	Picked, Changed int64
	// Last is for the next Batch's Behind; nil if the table has no index for that, or nothing was
	// picked.
	Last *int64
	// Reported values of deleted rows.
	Reported []string
}

// sweepSQL changes rows where they stand: a position alone may be another row by now, so the match
// is asked again. Picking them first keeps the limit under every plan.
const sweepSQL = `
WITH {guard},
picked AS MATERIALIZED (
  SELECT t.ctid AS loc, {behind} AS last FROM {table} t
  WHERE {match} AND (SELECT held FROM guard) = 1
  LIMIT {limit} {lock}
),
changed AS (
  {change}
  WHERE t.ctid = ANY (ARRAY(SELECT loc FROM picked)) AND {filter} AND (SELECT held FROM guard) = 1
  RETURNING {report} AS report, {done} AS done
),
tally AS (SELECT count(*) AS n, max(last) AS last FROM picked)
SELECT EXISTS (SELECT FROM guard), tally.n, tally.last, (SELECT count(*) FROM changed WHERE done), {reports} FROM tally`

// Sweep changes a batch of the rows in one transaction and one round trip. It neither repeats nor
// goes on: that is the caller's, who looks at the clock in between.
func (r Rows) Sweep(ctx context.Context, c Change, b Batch) (result BatchResult, err error) {
	if b.Swift && !b.SkipLocked && c.Report == "" {
		return r.swift(ctx, c, b)
	}
	var p parameters
	match, filter := r.sql(&p)
	change, done := c.sql(r.from(), &p)
	lock := "FOR UPDATE SKIP LOCKED"
	if !c.Delete {
		lock = "FOR NO KEY UPDATE SKIP LOCKED"
	}
	if !b.SkipLocked {
		lock = ""
	}
	behind := "NULL::bigint"
	if r.behind != "" {
		behind = "t." + quote(r.behind)
	}
	if r.behind != "" && b.Behind != nil {
		match += r.behindSQL(*b.Behind, &p)
	}
	report, reports := "1", "ARRAY[]::text[]"
	if c.Report != "" {
		report, reports = "t."+quote(c.Report), "ARRAY(SELECT report::text FROM changed WHERE report IS NOT NULL)"
	}
	sql := fill(sweepSQL, "{table}", r.from(), "{match}", match, "{filter}", filter, "{behind}", behind,
		"{limit}", p.add(b.Rows), "{lock}", lock, "{change}", change, "{done}", done, "{report}", report, "{reports}", reports)
	err = r.Database.write(ctx, b.Permit, newQuery(c.Action()+" "+r.String(), sql, p...),
		&result.Picked, &result.Last, affected{&result.Changed}, &result.Reported)
	return result, r.Database.ruled(ctx, err, r.Table, KeptError{Rows: r.String(), Wanted: c.wanted()})
}

// sql is the change, and the condition that a row it returns has indeed become so.
func (c Change) sql(table string, p *parameters) (change, done string) {
	if c.Delete {
		return "DELETE FROM " + table + " t", "true"
	}
	value, is := "NULL", " IS NULL"
	if c.Value != nil {
		value = p.add(*c.Value) + "::bigint"
		is = "::text = " + value + "::text"
	}
	set, has := make([]string, len(c.Set)), make([]string, len(c.Set))
	for i, column := range c.Set {
		set[i], has[i] = quote(column)+" = "+value, "t."+quote(column)+is
	}
	return "UPDATE " + table + " t SET " + strings.Join(set, ", "), strings.Join(has, " AND ")
}

// behindSQL is written as a comparison of rows that begins with the matched column, so that no
// other index than the one meant can serve it: that of the primary key would walk through
// everybody's rows.
func (r Rows) behindSQL(last int64, p *parameters) string {
	column := r.Match[0].Columns[0]
	return fmt.Sprintf(" AND (t.%s, t.%s) > (%s, %s::bigint)", quote(column.Name), quote(r.behind),
		column.value(r.Match[0].Values[0][0], p), p.add(last))
}

// comparedAs is the type of the values that the column is compared with: what refers to an id may
// be narrower than the id, and indexes on any integer find a bigint.
func (c Column) comparedAs() string {
	if slices.Contains([]string{"integer", "smallint"}, c.Type) {
		return "bigint"
	}
	return c.Type
}

// value is a parameter to be compared with the column. Integers go as they are: a cast is evaluated
// again for every row.
func (c Column) value(text string, p *parameters) string {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && c.comparedAs() == "bigint" {
		return p.add(n) + "::bigint"
	}
	return p.add(text) + "::text::" + c.Type
}

// list is a parameter for several of them.
func (c Column) list(values []string, p *parameters) string {
	return fmt.Sprintf("%s::text[]::%s[]", p.list(values), c.comparedAs())
}

// sql is the condition of the rows, twice: as it finds them by an index, and as it is asked of a
// row at hand. No index can serve the latter: where rows are known by their place or keys,
// statistics that do not know a huge account yet would otherwise have it read whole for each
// statement. The last match, of keys in hand, finds the rows.
func (r Rows) sql(p *parameters) (match, filter string) {
	var found, asked []string
	for i, m := range r.Match {
		f, a := m.sql(p)
		if i < len(r.Match)-1 {
			f = a
		}
		found, asked = append(found, f), append(asked, a)
	}
	if r.Condition != "" {
		found, asked = append(found, "("+r.Condition+")"), append(asked, "("+r.Condition+")")
	}
	if r.except != nil {
		_, named := r.except.sql(p)
		found, asked = append(found, "("+named+") IS NOT TRUE"), append(asked, "("+named+") IS NOT TRUE")
	}
	if condition := r.part.condition(p); condition != "" {
		found, asked = append(found, condition), append(asked, condition)
	}
	return strings.Join(found, " AND "), strings.Join(asked, " AND ")
}

// sql: a list of keys must be a hash look-up where it is asked of a row, not a search of the list.
func (m Match) sql(p *parameters) (match, filter string) {
	columns, lists := make([]string, len(m.Columns)), make([]string, len(m.Columns))
	for i, c := range m.Columns {
		columns[i] = "t." + quote(c.Name)
		if len(m.Values[i]) == 1 && len(m.Columns) == 1 {
			equal := columns[i] + " = " + c.value(m.Values[i][0], p)
			return equal, asked(equal)
		}
		lists[i] = c.list(m.Values[i], p)
	}
	if len(columns) == 1 {
		return fmt.Sprintf("%s = ANY (%s)", columns[0], lists[0]), asked(fmt.Sprintf("%s IN (SELECT unnest(%s))", columns[0], lists[0]))
	}
	in := fmt.Sprintf("(%s) IN (SELECT * FROM unnest(%s))", //nolint:unqueryvet // unnest has the columns that were given
		strings.Join(columns, ", "), strings.Join(lists, ", "))
	return in, asked(in)
}

// asked is a condition that is asked of rows at hand, and finds none.
func asked(condition string) string { return "(" + condition + ") IS TRUE" }

// from is what statements name: the partition, if it may be named, else the table.
func (r Rows) from() string {
	if r.part != nil && r.part.direct {
		return r.part.table.sql()
	}
	return r.Table.sql()
}

// Partitioned says whether the rows must be split by [Catalog.Parts] before they are worked.
func (r Rows) Partitioned() bool { return r.partitioned }

// Referring are the rows that refer by one column of a foreign key to these values of the parent's
// column.
func (c *Catalog) Referring(k ForeignKey, parentColumn string, values ...string) Rows {
	for i, column := range k.ParentColumns {
		if column.Name == parentColumn {
			return Rows{Database: c.Database, Table: k.Child, partitioned: k.partitioned, Match: []Match{{k.Columns[i : i+1], [][]string{values}}}}
		}
	}
	return Rows{Database: c.Database, Table: k.Child, Condition: "false"}
}
