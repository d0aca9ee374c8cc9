package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Child lists the problems of a definition in one database that contains its child table.
type Child struct {
	// MissingColumns that the definition names.
	MissingColumns []string
	// Names are the columns of the child if some are missing.
	Names []string
	// Mismatches describe the types or values that do not fit.
	Mismatches []string
	// Indexed means that an index finds the rows of a key. A definition that cannot run counts as
	// indexed: it is not reported as slow as well.
	Indexed bool
	// Ordered means that one of these indexes has the definition's columns in their order, so that
	// a scan can walk the keys. It implies Indexed.
	Ordered bool
	// Columns are the referring columns, unless some are missing.
	Columns []catalog.KeyColumn
	// NeverNull are columns that the definition sets to NULL but that cannot be NULL.
	NeverNull []string
	// Generated lists columns that the definition changes but that only PostgreSQL sets.
	Generated []string
	// Unidentified is the child or a table below it whose deletions or updates fail, as they are
	// published without a replica identity. "" means none.
	Unidentified string
	// Keepers are triggers and rules that may keep rows as they are.
	Keepers []catalog.KeepingTrigger
}

// treeColumns returns the columns of a tree's root. NOT NULL, checks and generated columns include
// those of the tables below.
func treeColumns(tree []relation, of map[uint32][]catalog.KeyColumn) map[string]catalog.KeyColumn {
	columns := map[string]catalog.KeyColumn{}
	for _, r := range tree {
		for _, c := range of[r.OID] {
			above, known := columns[c.Name]
			c.NotNull, c.Check = c.NotNull || above.NotNull, c.Check || above.Check
			c.Generated = c.Generated || above.Generated
			if known || r.OID == tree[0].OID {
				columns[c.Name] = c
			}
		}
	}
	return columns
}

// inspectChildren inspects the definitions whose child is here, nil for the others. Columns,
// indexes and publications of all children cost one statement each. Values, checks and partial
// indexes cost further ones.
func inspectChildren(
	ctx context.Context, tx pgx.Tx, keys []lfk.Definition, tables map[string]relation, trees trees,
) ([]*Child, error) {
	// 1. Find the children, and the tables below them.
	var roots []uint32
	for _, k := range keys {
		if table, ok := tables[k.Table]; ok && !slices.Contains(roots, table.OID) {
			roots = append(roots, table.OID)
		}
	}
	of, oids := trees.members(roots)
	// 2. Read their columns, indexes and publications.
	found, err := catalog.KeyColumns(ctx, tx, oids)
	if err != nil {
		return nil, err
	}
	columns := map[uint32][]catalog.KeyColumn{}
	for _, c := range found {
		columns[c.Table] = append(columns[c.Table], c)
	}
	indexes, err := readIndexes(ctx, tx, trees, roots)
	if err != nil {
		return nil, err
	}
	published, err := list(ctx, tx, pgx.RowToStructByPos[unidentified], unidentifiedSQL, of, oids)
	// 3. Check each definition against its child.
	children := make([]*Child, len(keys))
	for i, key := range keys {
		if table, ok := tables[key.Table]; ok && err == nil {
			c := childCheck{tx: tx, key: key, table: table, indexes: indexes}
			c.columns = treeColumns(trees[table.OID], columns)
			if children[i], err = c.inspect(ctx); err == nil {
				deletes := key.OnDelete == lfk.AsyncDelete
				children[i].Unidentified = unidentifiedTables(published).of(table.OID, deletes)
			}
		}
	}
	return children, err
}

// childCheck inspects one definition in one database.
type childCheck struct {
	// tx is the transaction of the inspection, table the child.
	tx    pgx.Tx
	key   lfk.Definition
	table relation
	// columns are those of the whole tree, by name.
	columns map[string]catalog.KeyColumn
	indexes indexesByTable
	// ordered counts only indexes that have the columns in the definition's order.
	ordered bool
}

// inspect returns the problems of the definition. If a referring column is missing, it checks
// nothing further and reports the definition as indexed.
func (c childCheck) inspect(ctx context.Context) (*Child, error) {
	child := &Child{Indexed: true}
	// 1. Missing columns.
	values := slices.Clone(c.key.Conditions)
	if c.key.OnDelete == lfk.UpdateColumnTo {
		values = append(values, lfk.ColumnValue{Column: c.key.TargetColumn, Value: c.key.TargetValue})
	}
	for _, name := range append(slices.Clone(c.key.Columns), columnsOf(values)...) {
		if _, ok := c.columns[name]; !ok && !slices.Contains(child.MissingColumns, name) {
			child.MissingColumns = append(child.MissingColumns, name)
		}
	}
	if child.MissingColumns != nil {
		child.Names = slices.Sorted(maps.Keys(c.columns))
	}
	for _, name := range c.key.Columns {
		column, ok := c.columns[name]
		if !ok {
			return child, nil
		}
		child.Columns = append(child.Columns, column)
	}
	// 2. Values that do not fit their columns.
	for _, v := range values {
		fits, err := c.fits(ctx, v)
		if err != nil {
			return nil, err
		}
		if !fits {
			child.Mismatches = append(child.Mismatches, fmt.Sprintf(
				"the value %q does not fit column %s of type %s", v.Value, v.Column, c.columns[v.Column].Exact))
		}
	}
	// 3. Indexes: in any order of columns, then in the definition's order.
	var err error
	if len(child.MissingColumns)+len(child.Mismatches) == 0 {
		child.Indexed, err = c.indexed(ctx, c.table.OID)
		child.Ordered = child.Indexed
		if err == nil && child.Indexed && len(c.key.Columns) > 1 {
			c.ordered = true
			child.Ordered, err = c.indexed(ctx, c.table.OID)
		}
	}
	// 4. Changed columns that cannot be changed, or cannot be NULL.
	changed := []string{c.key.TargetColumn}
	if c.key.OnDelete == lfk.AsyncNullify {
		changed = c.key.Columns
		if err == nil {
			child.NeverNull, err = c.neverNull(ctx)
		}
	}
	for _, name := range changed {
		if c.columns[name].Generated {
			child.Generated = append(child.Generated, name)
		}
	}
	return child, err
}

// unidentifiedSQL finds tables without replica identity, given or below given ones, whose deletions
// or updates a publication has: these fail. Partitions are published alone or with a table above.
const unidentifiedSQL = `
WITH published (oid, deletes, updates) AS MATERIALIZED (
  SELECT c.oid, bool_or(p.pubdelete), bool_or(p.pubupdate)
  FROM pg_publication_tables t
  JOIN pg_publication p ON p.pubname = t.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  GROUP BY c.oid
)
SELECT b.root, n.nspname || '.' || c.relname, bool_or(p.deletes), bool_or(p.updates)
FROM unnest($1::oid[], $2::oid[]) AS b (root, oid)
JOIN pg_class c ON c.oid = b.oid AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT pg_partition_ancestors(c.oid)) above (oid)
JOIN published p ON p.oid = above.oid
WHERE c.relreplident <> 'f' AND NOT EXISTS (
  SELECT FROM pg_index i
  WHERE i.indrelid = c.oid AND i.indimmediate AND CASE c.relreplident
    WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
GROUP BY 1, 2 ORDER BY 1, 2`

// unidentified is a table without replica identity.
type unidentified struct {
	// Root is the OID of the child whose tree contains the table.
	Root uint32
	Name string
	// Deletes and Updates: these fail on the table.
	Deletes, Updates bool
}

// unidentifiedTables are the rows of unidentifiedSQL.
type unidentifiedTables []unidentified

// of returns the first table below a child, without a replica identity, on which a delete or an
// update fails. "" means none.
func (all unidentifiedTables) of(child uint32, deletes bool) string {
	for _, u := range all {
		if u.Root == child && (deletes && u.Deletes || !deletes && u.Updates) {
			return u.Name
		}
	}
	return ""
}

// neverNull returns the columns of the definition that cannot become NULL. A column with a check
// costs an EXPLAIN, a NOT NULL column costs nothing.
func (c childCheck) neverNull(ctx context.Context) (never []string, err error) {
	for _, name := range c.key.Columns {
		column := c.columns[name]
		proved := column.NotNull
		if !proved && column.Check {
			proved, err = c.never(ctx, c.table.SQL(), quote(name)+" IS NULL", nil)
		}
		if proved {
			never = append(never, name)
		}
	}
	return never, err
}

// columnsOf returns the columns of some values, in their order.
func columnsOf(values []lfk.ColumnValue) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.Column
	}
	return names
}

// fitsSQL reports whether the value converts to the column's type, stays the same when stored, and
// can be compared.
const fitsSQL = `SELECT coalesce($1::text::{type} = $1::text::{exact}, false)`

// fits reports whether a column can store a value. A missing column fits, because it is reported as
// missing.
func (c childCheck) fits(ctx context.Context, v lfk.ColumnValue) (fits bool, err error) {
	column, ok := c.columns[v.Column]
	if !ok {
		return true, nil
	}
	// A value that does not convert fails, which must not end the transaction.
	err = pgx.BeginFunc(ctx, c.tx, func(tx pgx.Tx) error {
		sql := fill(fitsSQL, "{type}", column.Type, "{exact}", column.Exact)
		return tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, v.Value).Scan(&fits)
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := (&dberr.Error{SQLState: refused.Code}).Class()
		if class == dberr.ClassData || class == dberr.ClassSchema {
			return false, nil
		}
	}
	return fits, err
}

// neverSQL is only planned, never run.
const neverSQL = `EXPLAIN (COSTS OFF) SELECT FROM {table} WHERE {condition}`

// never reports whether the planner can prove that no row meets a condition. By the same proof the
// planner decides whether it can use a partial index. values are the parameters of the condition.
func (c childCheck) never(
	ctx context.Context, table, condition string, values []any,
) (proved bool, err error) {
	if err := run(ctx, c.tx, `SET LOCAL constraint_exclusion = on`); err != nil {
		return false, err
	}
	plan, err := list(ctx, c.tx, pgx.RowTo[string],
		fill(neverSQL, "{table}", table, "{condition}", condition),
		append([]any{pgx.QueryExecModeExec}, values...)...)
	return strings.Contains(strings.Join(plan, "\n"), "One-Time Filter: false"), err
}
