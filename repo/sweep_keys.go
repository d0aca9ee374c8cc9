package repo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// probesAtOnce is how many tables one statement of Any looks at: each is locked while it runs.
const probesAtOnce = 100

// Any says of each of the rows whether there are some. All are of this database.
func (d *Database) Any(ctx context.Context, rows []Rows, l Limits) (has []bool, err error) {
	what := "look for rows"
	if len(rows) == 1 {
		what = "look for rows of " + rows[0].String()
	}
	for _, probe := range probes(rows) {
		var found []bool
		if err := d.readRow(ctx, l, newQuery(what, probe.sql, probe.args...), &found); err != nil {
			return nil, err
		}
		has = append(has, found...)
	}
	return has, nil
}

// probes are statements whose only values say of each of the rows, in order, whether there are some.
func probes(rows []Rows) (statements []statement) {
	for some := range slices.Chunk(rows, probesAtOnce) {
		var p parameters
		exist := make([]string, len(some))
		for i, r := range some {
			match, _ := r.sql(&p)
			exist[i] = fmt.Sprintf("EXISTS (SELECT FROM %s t WHERE %s)", r.from(), match)
		}
		statements = append(statements, statement{"SELECT ARRAY[" + strings.Join(exist, ", ") + "]", p})
	}
	return statements
}

// takeSQL reads keys of rows that are about to be removed. Rows that somebody else has locked are left out, so that no
// row loses its dependants while another transaction gives it to somebody else.
const takeSQL = `
WITH {guard},
picked AS MATERIALIZED (
  SELECT {keys} FROM {table} t
  WHERE {match} AND (SELECT held FROM guard) = 1
  LIMIT {limit} {lock}
)
SELECT EXISTS (SELECT FROM guard), {lists} FROM picked`

// Take reads the values of some columns, as text, of at most b.Rows rows, except those with the values aside, which are
// of the same columns. The values of a row have the same place in each list.
func (r Rows) Take(ctx context.Context, columns []Column, aside [][]string, b Batch) (values [][]string, err error) {
	var p parameters
	match, _ := r.sql(&p)
	if len(aside[0]) > 0 {
		_, taken := Match{columns, aside}.sql(&p)
		match += " AND (" + taken + ") IS NOT TRUE"
	}
	values = make([][]string, len(columns))
	var keys, lists []string
	var into []any
	for i, c := range columns {
		keys = append(keys, fmt.Sprintf("t.%s::text AS k%d", quote(c.Name), i))
		lists = append(lists, fmt.Sprintf("coalesce(array_agg(k%d), '{}')", i))
		into = append(into, &values[i])
	}
	lock := "FOR UPDATE"
	if b.SkipLocked {
		lock = "FOR UPDATE SKIP LOCKED"
	}
	sql := fill(takeSQL, "{keys}", strings.Join(keys, ", "), "{table}", r.from(), "{match}", match,
		"{limit}", p.add(b.Rows), "{lock}", lock, "{lists}", strings.Join(lists, ", "))
	err = r.Database.write(ctx, b.Permit, newQuery("read keys of "+r.String(), sql, p...), into...)
	return values, err
}

// Refer says which values are still referred to by rows with this match on them: their places in the lists.
func (r Rows) Refer(ctx context.Context, l Limits) ([]int, error) {
	var p parameters
	last := r.Match[len(r.Match)-1]
	rest := r
	rest.Match = r.Match[:len(r.Match)-1]
	var conditions, lists []string
	for i, c := range last.Columns {
		conditions = append(conditions, fmt.Sprintf("t.%s = k.v%d", quote(c.Name), i))
		lists = append(lists, c.list(last.Values[i], &p))
	}
	if _, filter := rest.sql(&p); filter != "" {
		conditions = append(conditions, filter)
	}
	names := make([]string, len(lists))
	for i := range names {
		names[i] = fmt.Sprintf("v%d", i)
	}
	sql := fmt.Sprintf("SELECT k.place::int - 1 FROM unnest(%s) WITH ORDINALITY AS k (%s, place) WHERE EXISTS (SELECT FROM %s t WHERE %s) ORDER BY 1",
		strings.Join(lists, ", "), strings.Join(names, ", "), r.from(), strings.Join(conditions, " AND "))
	return readRows(ctx, r.Database, l, newQuery("look for what refers by "+r.String(), sql, p...), pgx.RowTo[int])
}
