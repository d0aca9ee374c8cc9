package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Batches in the middle of a sweep read no row before they change it. So they cost hardly more than
// one statement for all rows would: bench (g) compares the two.

// swiftGuardSQL says whether the guard holds, as it then does until the end of the transaction, and
// where the batch ends.
const swiftGuardSQL = `WITH {guard} SELECT EXISTS (SELECT FROM guard), {bound}`

const swiftSQL = `WITH {guard} {change} WHERE {filter} AND {which} AND (SELECT held FROM guard) = 1`

// swiftBoundSQL is the last row of a batch. The order has two columns although the first has one
// value, so that only the index of both can serve it, and the comparison of rows keeps to that
// value.
const swiftBoundSQL = `(
  SELECT t.{behind} FROM {table} t
  WHERE (t.{column}, t.{behind}) > ({value}, {last}::bigint) AND (t.{column}, t.{behind}) <= ({value}, 9223372036854775807){condition}
  ORDER BY t.{column}, t.{behind} OFFSET {limit} - 1 LIMIT 1
)`

// swiftRangeSQL are the rows up to there, or all that are left.
const swiftRangeSQL = `(t.{column}, t.{behind}) > ({value}, {last}::bigint) AND (t.{column}, t.{behind}) <= ({value}, coalesce({bound}, 9223372036854775807))`

// swiftFirstSQL are the first rows there are, where no index says which come behind the last ones.
const swiftFirstSQL = `t.ctid = ANY (ARRAY(SELECT t.ctid FROM {table} t WHERE {match} LIMIT {limit}))`

// swift changes a batch in one transaction and one round trip.
func (r Rows) swift(ctx context.Context, c Change, b Batch) (result BatchResult, err error) {
	ordered := r.behind != "" && b.Behind != nil
	var look, change parameters
	bound := "NULL::bigint"
	if ordered {
		bound = r.fillBehind(swiftBoundSQL, b, &look)
	}
	lookSQL := fill(swiftGuardSQL, "{bound}", bound)
	match, filter := r.sql(&change)
	var which string
	if ordered {
		which = r.fillBehind(fill(swiftRangeSQL, "{bound}", swiftBoundSQL), b, &change)
	} else {
		which = fill(swiftFirstSQL, "{table}", r.from(), "{match}", match, "{limit}", change.add(b.Rows))
	}
	update, _ := c.sql(r.from(), &change)
	changeSQL := fill(swiftSQL, "{change}", update, "{filter}", filter, "{which}", which)
	var held bool
	ctx, _ = withAffected(ctx, []any{affected{&result.Changed}})
	both := []statement{b.fill(statement{lookSQL, look}), b.fill(statement{changeSQL, change})}
	err = r.Database.send(ctx, c.Action()+" "+r.String(), b.Limits, both,
		func(results pgx.BatchResults) error {
			if err := results.QueryRow().Scan(&held, &result.Last); err != nil {
				return err
			}
			tag, err := results.Exec()
			result.Picked, result.Changed = tag.RowsAffected(), tag.RowsAffected()
			return err
		})
	if err == nil && !held {
		return result, b.refused(ctx, r.Database.pool)
	}
	if ordered && result.Last != nil {
		result.Picked = b.Rows
	}
	return result, err
}

// fillBehind puts the rows' names and the batch's values into the parts above.
func (r Rows) fillBehind(sql string, b Batch, p *parameters) string {
	rest := r
	rest.Match = r.Match[1:]
	_, condition := rest.sql(p)
	if condition != "" {
		condition = " AND " + condition
	}
	column := r.Match[0].Columns[0]
	return fill(sql, "{table}", r.from(), "{column}", quote(column.Name), "{behind}", quote(r.behind), "{condition}", condition,
		"{value}", column.value(r.Match[0].Values[0][0], p), "{last}", p.add(*b.Behind), "{limit}", p.add(b.Rows)+"::bigint")
}
