package rowset

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// probesAtOnce is the number of tables in one statement of Any, which locks each of them.
const probesAtOnce = 100

// Any returns for each of the rows whether any exist. All are of this database. It sends one
// statement for every [probesAtOnce] of them. The result has their order.
func (d Sweeps) Any(ctx context.Context, rows []Rows, l fencing.Limits) (has []bool, err error) {
	operation := "find rows"
	if len(rows) == 1 {
		operation = "find rows of " + rows[0].String()
	}
	for _, probe := range Probes(rows) {
		var found []bool
		q := pg.NewQuery(operation, probe.SQL, probe.Args...)
		if err := pg.ReadRow(ctx, d.db, l, q, &found); err != nil {
			return nil, err
		}
		has = append(has, found...)
	}
	return has, nil
}

// Probes returns statements whose only value shows for each of some rows, in order, whether any
// exist.
func Probes(rows []Rows) (statements []stmt.Statement) {
	for some := range slices.Chunk(rows, probesAtOnce) {
		var p stmt.Parameters
		exist := make([]string, len(some))
		for i, r := range some {
			match, _ := r.sql(&p)
			exist[i] = fmt.Sprintf("EXISTS (SELECT FROM %s t WHERE %s)", r.from(), match)
		}
		sql := "SELECT ARRAY[" + strings.Join(exist, ", ") + "]"
		statements = append(statements, stmt.Statement{SQL: sql, Args: p})
	}
	return statements
}

// takeSQL reads keys of rows before their removal. It skips rows that others have locked: no row
// may lose its dependants while another transaction gives it a new owner.
const takeSQL = `
WITH {guard},
picked AS MATERIALIZED (
  SELECT {keys} FROM {table} t
  WHERE {match} AND (SELECT held FROM guard) = 1
  LIMIT {limit} {lock}
)
SELECT EXISTS (SELECT FROM guard), {lists} FROM picked`

// Take reads the values of some columns, as text, of at most b.Rows rows, except those with the
// values aside of the same columns. The values of a row have the same position in each list. aside
// must have a list for each column, empty if no row is excepted.
func (r Rows) Take(
	ctx context.Context, columns []catalog.Column, aside [][]string, b Batch,
) (values [][]string, err error) {
	var p stmt.Parameters
	if len(aside[0]) > 0 {
		r = r.Except(columns, aside)
	}
	match, _ := r.sql(&p)
	values = make([][]string, len(columns))
	var keys, lists []string
	var into []any
	for i, c := range columns {
		keys = append(keys, fmt.Sprintf("t.%s::text AS k%d", stmt.Quote(c.Name), i))
		lists = append(lists, fmt.Sprintf("coalesce(array_agg(k%d), '{}')", i))
		into = append(into, &values[i])
	}
	// Without SkipLocked the statement waits for locked rows, up to the lock timeout of the permit.
	lock := "FOR UPDATE"
	if b.SkipLocked {
		lock = "FOR UPDATE SKIP LOCKED"
	}
	sql := stmt.Fill(takeSQL, "{keys}", strings.Join(keys, ", "), "{table}", r.from(), "{match}", match,
		"{limit}", p.Add(b.Rows), "{lock}", lock, "{lists}", strings.Join(lists, ", "))
	q := pg.NewQuery("read keys of "+r.String(), sql, p...)
	return values, pg.Write(ctx, r.Database, b.Permit, q, into...)
}

// Refer returns the positions of the last match's values that rows still refer to. One statement
// searches all values, and changes nothing.
func (r Rows) Refer(ctx context.Context, l fencing.Limits) ([]int, error) {
	var p stmt.Parameters
	last := r.Match[len(r.Match)-1]
	// All other matches are conditions on the referring rows.
	remaining := r
	remaining.Match = r.Match[:len(r.Match)-1]
	var conditions, names, lists []string
	for i, c := range last.Columns {
		names = append(names, fmt.Sprintf("v%d", i))
		conditions = append(conditions, fmt.Sprintf("t.%s = %s", stmt.Quote(c.Name), c.Listed("k."+names[i])))
		lists = append(lists, c.List(last.Values[i], &p))
	}
	if _, filter := remaining.sql(&p); filter != "" {
		conditions = append(conditions, filter)
	}
	sql := fmt.Sprintf(`SELECT k.place::int - 1 FROM unnest(%s) WITH ORDINALITY AS k (%s, place)
WHERE EXISTS (SELECT FROM %s t WHERE %s) ORDER BY 1`,
		strings.Join(lists, ", "), strings.Join(names, ", "), r.from(),
		strings.Join(conditions, " AND "))
	q := pg.NewQuery("find rows that refer through "+r.String(), sql, p...)
	return pg.ReadRows(ctx, r.Database, l, q, pgx.RowTo[int])
}

// Place is the position of a row. It identifies the row in a dry run, which changes none.
type Place struct {
	// table is the OID of the table or partition, block and item are the row's ctid.
	table, block uint32
	item         uint16
}

// placesSQL reads rows in the order of their positions.
const placesSQL = `
SELECT t.tableoid, t.ctid, ARRAY[{keys}]::text[] FROM {table} t
WHERE {match} AND (t.tableoid, t.ctid) > ({oid}::oid, {tid}::tid)
ORDER BY t.tableoid, t.ctid
LIMIT {limit}`

// Places reads the positions of at most limit rows after a place, and the values of some columns,
// as text. The values of a row have its position in each list. It locks nothing. The zero Place
// starts at the beginning.
func (r Rows) Places(
	ctx context.Context, columns []catalog.Column, after Place, limit int64, l fencing.Limits,
) (places []Place, values [][]string, err error) {
	var p stmt.Parameters
	match, _ := r.sql(&p)
	keys := make([]string, len(columns))
	for i, c := range columns {
		keys[i] = fmt.Sprintf("t.%s::text", stmt.Quote(c.Name))
	}
	last := pgtype.TID{BlockNumber: after.block, OffsetNumber: after.item, Valid: true}
	sql := stmt.Fill(placesSQL, "{keys}", strings.Join(keys, ", "), "{table}", r.from(),
		"{match}", match, "{oid}", p.Add(after.table), "{tid}", p.Add(last), "{limit}", p.Add(limit))
	values = make([][]string, len(columns))
	l.ReadOnly = true
	q := pg.NewQuery("read rows of "+r.String(), sql, p...)
	places, err = pg.ReadRows(ctx, r.Database, l, q, func(row pgx.CollectableRow) (Place, error) {
		var table uint32
		var at pgtype.TID
		var found []string
		err := row.Scan(&table, &at, &found)
		for i := range found {
			values[i] = append(values[i], found[i])
		}
		return Place{table, at.BlockNumber, at.OffsetNumber}, err
	})
	return places, values, err
}

// partsSQL reads the leaves of a partitioned table: names, OID, and whether our role can read,
// update and delete their rows by name. The array has the partition keys of all levels, with "" for
// an expression.
const partsSQL = `
SELECT n.nspname, c.relname, c.oid,
  has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE')
    AND has_table_privilege(c.oid, 'DELETE') AND has_schema_privilege(n.oid, 'USAGE'),
  ARRAY(
    SELECT coalesce(a.attname::text, '')
    FROM pg_partition_tree(format('%I.%I', $1::text, $2::text)::regclass) level
    JOIN pg_partitioned_table k ON k.partrelid = level.relid
    CROSS JOIN unnest(k.partattrs::int2[]) AS key (n)
    LEFT JOIN pg_attribute a ON a.attrelid = k.partrelid AND a.attnum = key.n AND key.n > 0)
FROM pg_partition_tree(format('%I.%I', $1::text, $2::text)::regclass) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf
ORDER BY n.nspname, c.relname`

// partsOf lists the partitions of a table, once. The result is stored in c.Parts.
func partsOf(ctx context.Context, c *catalog.Catalog, t catalog.Table) ([]catalog.Part, error) {
	parts, ok := c.Parts[t]
	if ok {
		return parts, nil
	}
	q := pg.NewQuery("list the partitions of "+t.Name, partsSQL, t.Schema, t.Name)
	parts, err := pg.Collect(ctx, c.Database, q, func(row pgx.CollectableRow) (p catalog.Part, err error) {
		err = row.Scan(&p.Table.Schema, &p.Table.Name, &p.Oid, &p.ByName, &p.Keys)
		return p, err
	})
	if err == nil {
		c.Parts[t] = parts
	}
	return parts, err
}

// Parts returns the rows as sweeps change them: an entry for each partition that has any. For a
// table without partitions it returns the rows themselves, whether any exist or not. It probes all
// partitions with [Sweeps.Any], and so locks each of them.
func Parts(ctx context.Context, c *catalog.Catalog, r Rows, l fencing.Limits) (some []Rows, err error) {
	if !r.partitioned {
		return []Rows{r}, nil
	}
	parts, err := partsOf(ctx, c, r.Table)
	if err != nil {
		return nil, err
	}
	all := make([]Rows, len(parts))
	for i := range parts {
		all[i] = r
		all[i].partitioned, all[i].part = false, parts[i].Reached(r.Match[0].Columns)
	}
	has, err := NewSweeps(c.Database).Any(ctx, all, l)
	for i := range has {
		if has[i] {
			some = append(some, all[i])
		}
	}
	return some, err
}
