package rowset

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// Batch bounds one statement of a sweep.
type Batch struct {
	fencing.Permit
	// Rows is the maximum number of rows that the statement may change.
	Rows int64
	// After is the end of the previous batch, nil to start at the beginning.
	After *int64
	// Direct changes rows without picking them first. It is for a batch after a full one.
	Direct bool
	// SkipLocked skips rows that others have locked, instead of waiting for them.
	SkipLocked bool
}

// BatchResult is the result of a statement of a sweep.
type BatchResult struct {
	// Found is the number of rows that were found, at most the batch's limit. Changed is the number
	// of changed rows. Other rows have moved, or a trigger has restored their values: a Direct
	// batch does not detect the latter.
	Found, Changed int64
	// Last is the After of the next batch, nil if no rows were found or the table has no index for
	// it.
	Last *int64
	// Reported values of deleted rows.
	Reported []string
}

// sweepSQL changes rows at their positions. Picking them first keeps the limit under every plan. A
// position may have another row by then, so the change checks the match again.
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
  RETURNING {returned} AS key, {report} AS report, {done} AS done
),{outside}
tally AS (SELECT count(*) AS n, max(last) AS last FROM picked)
SELECT EXISTS (SELECT FROM guard) AND {noted}, tally.n, tally.last,
  (SELECT count(*) FROM changed WHERE done), {reports} FROM tally`

// Sweep changes a batch of the rows in one transaction and one round trip. It neither retries nor
// continues: the caller does, and checks the time in between.
func (r Rows) Sweep(ctx context.Context, c Change, b Batch) (result BatchResult, err error) {
	var p stmt.Parameters
	match, filter := r.sql(&p)
	operation := c.Action() + " " + r.String()
	// Skipping locked rows and reporting values both require that rows are picked first.
	if b.Direct && !b.SkipLocked && c.Report == "" {
		if b.Permit, err = pg.Watching(ctx, r.Database, b.Permit); err != nil {
			return result, err
		}
		result, err = r.sweepDirect(ctx, c, b, operation)
		return result, pg.ProtectedBy(err, r.Table.Name)
	}
	change, done := c.sql(r.from(), &p)
	lock, following, report, reports := "", "NULL::bigint", "1", "ARRAY[]::text[]"
	outside := ""
	switch {
	case b.SkipLocked && c.Delete:
		lock = "FOR UPDATE SKIP LOCKED"
	case b.SkipLocked:
		lock = "FOR NO KEY UPDATE SKIP LOCKED"
	}
	if r.following != "" {
		following = "t." + stmt.Quote(r.following)
		if b.After != nil {
			match += r.afterSQL(*b.After, &p)
		}
	}
	if c.Report != "" {
		report = "t." + stmt.Quote(c.Report)
		reports = "ARRAY(SELECT report::text FROM changed WHERE report IS NOT NULL)"
		outside = r.recordOutside(c, b.Source, &p)
	}
	sql := stmt.Fill(sweepSQL, "{table}", r.from(), "{match}", match, "{filter}", filter,
		"{behind}", following, "{limit}", p.Add(b.Rows), "{lock}", lock,
		"{returned}", r.returned(), "{noted}", pg.ReceiptSQL,
		"{outside}", outside, "{change}", change, "{done}", done, "{report}", report, "{reports}", reports)
	sql = pg.Summary(r.Database, sql, r.returned(), "done")
	err = pg.Change(ctx, r.Database, b.Permit, pg.NewQuery(operation, sql, p...), c.receipt(r),
		&result.Found, &result.Last, spans.Affected{Rows: &result.Changed}, &result.Reported)
	kept := KeptError{Rows: r.String(), Intended: c.wanted()}
	return result, ExplainKept(ctx, r.Database, err, r.Table, kept)
}

// afterSQL returns a comparison of rows that begins with the matched column. So only the index on
// both can serve it: that of the primary key would walk through all rows.
func (r Rows) afterSQL(last int64, p *stmt.Parameters) string {
	column := r.Match[0].Columns[0]
	return fmt.Sprintf(" AND (t.%s, t.%s) > (%s, %s::bigint)", stmt.Quote(column.Name), stmt.Quote(r.following),
		column.Value(r.Match[0].Values[0][0], p), p.Add(last))
}

// A direct batch sends two statements, and reads no row before changing it. So it costs hardly more
// than its share of one statement for all rows would: bench (g) compares the two.

// directGuardSQL reports whether the guard holds, which lasts until the end of the transaction, and
// where the batch ends.
const directGuardSQL = `WITH {guard} SELECT EXISTS (SELECT FROM guard), {bound}`

// directBoundSQL finds the last row of a batch. It orders by two columns although the first has one
// value, so that only the index on both can serve it. The comparison of rows keeps to that value.
const directBoundSQL = `(
  SELECT t.{behind} FROM {table} t
  WHERE (t.{column}, t.{behind}) > ({value}, {last}::bigint)
    AND (t.{column}, t.{behind}) <= ({value}, 9223372036854775807){condition}
  ORDER BY t.{column}, t.{behind} OFFSET {limit} - 1 LIMIT 1
)`

// directRangeSQL selects the rows up to that bound, or all remaining ones.
const directRangeSQL = `(t.{column}, t.{behind}) > ({value}, {last}::bigint)
  AND (t.{column}, t.{behind}) <= ({value}, coalesce({bound}, 9223372036854775807))`

// directFirstSQL selects the first rows, if no index finds those after the previous batch.
const directFirstSQL = `
  t.ctid = ANY (ARRAY(SELECT t.ctid FROM {table} t WHERE {match} LIMIT {limit}))`

// directSQL changes rows without picking them, while the guard holds.
const directSQL = `
WITH {guard},
changed AS (
  {change}
  WHERE {filter} AND {which} AND (SELECT held FROM guard) = 1
  RETURNING {returned} AS key
)
SELECT {noted}, (SELECT count(*) FROM changed)`

// sweepDirect changes a batch in one transaction and one round trip.
func (r Rows) sweepDirect(
	ctx context.Context, c Change, b Batch, operation string,
) (result BatchResult, err error) {
	var probe, change stmt.Parameters
	bound := "NULL::bigint"
	var which string
	match, filter := r.sql(&change)
	ordered := r.following != "" && b.After != nil
	if ordered {
		bound = r.fillDirect(directBoundSQL, b, &probe)
		which = r.fillDirect(stmt.Fill(directRangeSQL, "{bound}", directBoundSQL), b, &change)
	} else {
		which = stmt.Fill(directFirstSQL, "{table}", r.from(), "{match}", match, "{limit}", change.Add(b.Rows))
	}
	update, _ := c.sql(r.from(), &change)
	sql := stmt.Fill(directSQL, "{change}", update, "{filter}", filter, "{which}", which,
		"{returned}", r.returned(), "{noted}", pg.ReceiptSQL)
	sql = pg.Summary(r.Database, sql, r.returned(), "true")
	guard := b.Fill(stmt.Statement{SQL: stmt.Fill(directGuardSQL, "{bound}", bound), Args: probe})
	q := pg.Query{Statement: b.Fill(stmt.Statement{SQL: sql, Args: change}), Receipt: new(c.receipt(r).Write(b.Source, nil))}
	all := append([]stmt.Statement{guard}, q.Statements(b.Limits)...)
	var held, recorded bool
	ctx, _ = spans.WithAffected(b.Finishing(ctx), []any{spans.Affected{Rows: &result.Changed}})
	err = pg.Send(ctx, r.Database, operation, b.Limits, all,
		func(results pgx.BatchResults) error {
			if err := results.QueryRow().Scan(&held, &result.Last); err != nil {
				return err
			}
			err := results.QueryRow().Scan(&recorded, &result.Changed)
			result.Found = result.Changed
			return err
		})
	// Without the guard, the statements have changed nothing.
	if err == nil && !held {
		return result, b.Refused(ctx, pg.PoolOf(r.Database))
	}
	// A bound means that the batch was full.
	if ordered && result.Last != nil {
		result.Found = b.Rows
	}
	return result, err
}

// fillDirect puts the names of the rows and the values of the batch into these parts.
func (r Rows) fillDirect(sql string, b Batch, p *stmt.Parameters) string {
	remaining := r
	remaining.Match = r.Match[1:]
	_, condition := remaining.sql(p)
	if condition != "" {
		condition = " AND " + condition
	}
	column := r.Match[0].Columns[0]
	return stmt.Fill(sql, "{table}", r.from(), "{column}", stmt.Quote(column.Name),
		"{behind}", stmt.Quote(r.following), "{condition}", condition,
		"{value}", column.Value(r.Match[0].Values[0][0], p),
		"{last}", p.Add(*b.After), "{limit}", p.Add(b.Rows)+"::bigint")
}
