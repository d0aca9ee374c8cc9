package lfk

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// The statements that delete or update the children of deleted parents.

// receipt returns the receipt for the changes of the definition.
func (c *Child) receipt() pg.Receipt {
	action := pg.ReceiptDeleted
	switch c.Key.OnDelete {
	case AsyncNullify:
		action = pg.ReceiptNullified
	case UpdateColumnTo:
		action = pg.ReceiptUpdated
	}
	return pg.Receipt{Table: c.Key.Table, Action: action, Rule: c.Key.String()}
}

// changeSQL returns the start of the change, the conditions on the rows, and the condition that a
// returned row was changed. A value is set as it is, so PostgreSQL refuses a text that is too long.
// It is compared as the column stores it, maybe rounded.
func (c *Child) changeSQL(args *stmt.Parameters) (change, conditions, done string) {
	conditions = c.Equalities(args)
	columns, value, is := c.Key.changes(), "NULL", " IS NULL"
	if len(columns) == 0 {
		return "DELETE FROM " + c.table.SQL() + " t", conditions, "true"
	}
	if c.Key.OnDelete == UpdateColumnTo {
		value = c.Value(args, c.Key.TargetColumn, c.Key.TargetValue)
		stored := cmp.Or(c.table.columns[c.Key.TargetColumn].Stored, "text")
		is = " IS NOT DISTINCT FROM " + value + "::" + stored
		conditions += fmt.Sprintf(" AND NOT (t.%s%s)", stmt.Quote(c.Key.TargetColumn), is)
	}
	set, has := make([]string, len(columns)), make([]string, len(columns))
	for i, column := range columns {
		set[i], has[i] = stmt.Quote(column)+" = "+value, "t."+stmt.Quote(column)+is
	}
	change = fmt.Sprintf("UPDATE %s t SET %s", c.table.SQL(), strings.Join(set, ", "))
	return change, conditions, strings.Join(has, " AND ")
}

// Equalities returns the definition's conditions on the rows.
func (c *Child) Equalities(args *stmt.Parameters) string {
	var all strings.Builder
	for _, want := range c.Key.Conditions {
		fmt.Fprintf(&all, " AND t.%s = %s", stmt.Quote(want.Column), c.Value(args, want.Column, want.Value))
	}
	return all.String()
}

// Value returns a parameter of the type of a column.
func (c *Child) Value(args *stmt.Parameters, column, value string) string {
	return args.Add(value) + "::text::" + cmp.Or(c.table.columns[column].Type, "text")
}

// purgeAllSQL changes all rows of the keys, or none if there are more than $2. Counting and
// changing use one snapshot, so the cap holds whatever others commit meanwhile. A row that moves to
// another parent is skipped.
const purgeAllSQL = `
WITH {guard},
counted AS MATERIALIZED (
  SELECT count(*) AS n FROM (
    SELECT FROM {child} t WHERE t.{column} = ANY ({list}){conditions} LIMIT $2::bigint + 1) x
),
changed AS (
  {change}
  WHERE t.{column} = ANY ({list}){conditions}
    AND (SELECT n FROM counted) BETWEEN 1 AND $2::bigint AND (SELECT held FROM guard) = 1
  RETURNING {returned} AS key, {done} AS done
),
tally AS MATERIALIZED (
  SELECT (SELECT n FROM counted) AS found, (SELECT count(*) FROM changed WHERE done) AS changed
)`

// purgeUncountedSQL changes all rows of the keys without counting them first, which costs a third
// less. If there are more than $2, the statement fails with a division by zero and changes nothing.
// For a long list of keys its plan reads each page of the table once. Keys of several columns are
// joined instead. The tally and the receipt read the changed rows once.
const purgeUncountedSQL = `
WITH {guard},
changed AS (
  {change}{join}
  WHERE {joined}{conditions}
    AND (SELECT held FROM guard) = 1
  RETURNING {returned} AS key, {done} AS done
),
tally AS MATERIALIZED (
  SELECT c.found, c.n AS changed, c.n, c.low, c.high, c.covered
  FROM (SELECT count(*) AS found, {summed} FROM changed) c
  WHERE 1 / (c.found <= $2::bigint)::int = 1
)`

// purgeSeveralSQL is purgeAllSQL for a key of several columns. A LATERAL lookup of each key stops at
// the first row beyond $2. The statement changes the rows by position, as purgeSharesSQL does.
const purgeSeveralSQL = `
WITH {guard},
found AS MATERIALIZED (
  SELECT {parent_values}, c.tbl, c.loc
  FROM guard CROSS JOIN {parents}
  CROSS JOIN LATERAL (
    SELECT t.tableoid AS tbl, t.ctid AS loc FROM {child} t
    WHERE {matched}{conditions} LIMIT $2::bigint + 1
  ) c
  LIMIT $2::bigint + 1
),
counted AS MATERIALIZED (SELECT count(*) AS n FROM found),
changed AS (
  {change}
  WHERE t.ctid = ANY (ARRAY(SELECT loc FROM found))
    AND ((t.tableoid, t.ctid, {child_columns}) IN (SELECT tbl, loc, {parent_values} FROM found)) IS TRUE
    {conditions} AND (SELECT n FROM counted) BETWEEN 1 AND $2::bigint
  RETURNING {returned} AS key, {done} AS done
),
tally AS MATERIALIZED (
  SELECT (SELECT n FROM counted) AS found, (SELECT count(*) FROM changed WHERE done) AS changed
)`

// purgeAllResultSQL ends the statement if it removes no records.
const purgeAllResultSQL = `
SELECT EXISTS (SELECT FROM guard) AND {noted}, found, changed, 0::bigint FROM tally`

// purgeAllRemovalSQL ends the statement if the child is in the queue's database and this is the
// last definition of the keys. Records are removed with their rows. They stay if the cap was
// reached or not every row was changed. [Child.Remaining] then finds the keys that still have rows.
const purgeAllRemovalSQL = `,
deleted AS (
  DELETE FROM {queue} q USING tally, unnest($3::bigint[], $4::text[]::{id}[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
    AND (SELECT held FROM guard) = 1 AND tally.found = tally.changed AND tally.found <= $2::bigint
  RETURNING q.partition, q.id
){forget}{journal}
SELECT EXISTS (SELECT FROM guard) AND {noted}, found, changed, (SELECT count(*) FROM deleted) FROM tally`

// purgeSharesSQL changes at most $3 rows of each key and $2 in all. It finds them by (tableoid,
// ctid), because ctid alone is not unique in a partitioned table and a child may have no primary
// key. Rows that others have changed since are skipped. A row counts as kept if the statement has
// not changed it although its snapshot still shows it. LIMIT 1 makes seen read rows one by one, by
// ctid. IS TRUE keeps the comparison with such a row a hash lookup. The result has n, the numbers
// of the keys.
const purgeSharesSQL = `
WITH {guard},
found AS MATERIALIZED (
  SELECT k.n, {parent_values}, c.tbl, c.loc
  FROM guard CROSS JOIN {parents}
  CROSS JOIN LATERAL (
    SELECT t.tableoid AS tbl, t.ctid AS loc FROM {child} t
    WHERE {matched}{conditions} LIMIT $3::bigint {lock}
  ) c
  LIMIT $2::bigint
),
changed AS (
  {change}
  WHERE t.ctid = ANY (ARRAY(SELECT loc FROM found))
    AND ((t.tableoid, t.ctid, {child_columns}) IN (SELECT tbl, loc, {parent_values} FROM found)) IS TRUE{conditions}
  RETURNING {returned} AS key, {done} AS done
),
tally AS (SELECT n, count(*) AS rows FROM found GROUP BY n),
seen AS MATERIALIZED (
  SELECT f.n FROM found f
  CROSS JOIN LATERAL (SELECT FROM {child} s WHERE s.ctid = f.loc AND s.tableoid = f.tbl LIMIT 1) s
  WHERE (SELECT count(*) FROM found) > (SELECT count(*) FROM changed WHERE done)
)
SELECT EXISTS (SELECT FROM guard) AND {noted},
  ARRAY(SELECT n FROM tally ORDER BY n), ARRAY(SELECT rows FROM tally ORDER BY n),
  (SELECT count(*) FROM found), (SELECT count(*) FROM changed WHERE done),
  ARRAY(
    SELECT DISTINCT n FROM seen
    WHERE (SELECT count(*) FROM seen) > (SELECT count(*) FROM changed WHERE done))`

// Purge is one statement on a child.
type Purge struct {
	fencing.Permit
	// Keys of deleted parents, without duplicates, with one value per column of the definition.
	Keys []Key
	// Approved lists the keys whose children are changed although their parent is alive.
	Approved []Key
	// Cap is the maximum number of rows that the statement may change.
	Cap int64
	// Uncounted lets PurgeAll change the rows without counting them first. More rows than the cap
	// are an error. It must not be set if [Child.MayKeep] is true: kept rows are not found then.
	Uncounted bool
}

// PurgeResult is the result of a statement.
type PurgeResult struct {
	// Found rows are at most one more than the cap. Changed counts those that were changed: a
	// trigger may restore what an update sets.
	Found, Changed int64
	// Shares counts the rows found of each key that had any. PurgeAll does not set it.
	Shares map[Key]int64
	// Kept are keys with rows that the statement has locked but not changed, although no other
	// transaction has changed them: triggers do that. Only PurgeShares with skipLocked sets it.
	Kept []Key
	// Removed is the number of removed records.
	Removed int64
}

// PurgeAll deletes or updates all rows of some keys in one transaction, or none if there are more
// than the cap. If it changes all rows it finds, it removes the given records, which are of one
// table of the queue. That is possible in the queue's own database only.
func (c *Child) PurgeAll(
	ctx context.Context, p Purge, q DeletedRecords, records []Record,
) (r PurgeResult, err error) {
	ending, own := purgeAllResultSQL, []any{p.Cap}
	if len(records) > 0 {
		ending = pg.Journaled(q.Fill(records[0].Queue, purgeAllRemovalSQL),
			"('processed_records', (SELECT count(*) FROM deleted))", 5)
		own = append(append(own, recordArrays(records)...), p.RunID)
	}
	beginning, planned := purgeAllSQL, false
	switch {
	case p.Uncounted:
		beginning, ending = purgeUncountedSQL, stmt.Fill(ending, "{noted}", "{tallied}")
		planned = len(c.Key.Columns) == 1
	case len(c.Key.Columns) > 1:
		beginning = purgeSeveralSQL
	}
	clean, err := c.purge(beginning+ending, p, own)
	clean.Planned = planned
	if err == nil {
		err = c.change(ctx, p.Permit, clean, &r.Found, spans.Affected{Rows: &r.Changed}, spans.Affected{Rows: &r.Removed})
	}
	return r, err
}

// approved returns the numbers of the approved keys.
func (p Purge) approved() []int64 {
	if len(p.Approved) == 0 {
		return []int64{}
	}
	of := make(map[Key]int64, len(p.Keys))
	for i, key := range p.Keys {
		of[key] = int64(i + 1)
	}
	numbers := make([]int64, len(p.Approved))
	for i, key := range p.Approved {
		numbers[i] = of[key]
	}
	return numbers
}

// PurgeShares deletes or updates at most perKey rows of each key, and at most the cap in all, in
// one transaction. With skipLocked it skips locked rows instead of waiting under Limits.Lock.
func (c *Child) PurgeShares(
	ctx context.Context, p Purge, perKey int64, skipLocked bool,
) (r PurgeResult, err error) {
	lock := ""
	if skipLocked {
		lock = c.lock
	}
	clean, err := c.purge(purgeSharesSQL, p, []any{p.Cap, perKey}, "{lock}", lock)
	if err != nil {
		return r, err
	}
	var numbers, counts, kept []int64
	err = c.change(ctx, p.Permit, clean,
		&numbers, &counts, &r.Found, spans.Affected{Rows: &r.Changed}, &kept)
	r.Shares = make(map[Key]int64, len(numbers))
	for i, n := range numbers {
		r.Shares[p.Keys[n-1]] = counts[i]
	}
	r.Kept = numbered(p.Keys, kept)
	return r, err
}

// keepsSQL reports whether rows of the child {oid} may be kept. The preceding statement locks the
// table, so no such trigger can be created before the commit.
const keepsSQL = `EXISTS (
    SELECT FROM pg_class k
    WHERE k.oid = {oid} AND (` + keepsRowsSQL + ` OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = k.oid)))`

// detachingSQL reports whether the detachment of an unknown partition is pending. The known ones
// ({known}) have tasks of their own.
const detachingSQL = `EXISTS (
    SELECT FROM pg_inherits i
    WHERE i.inhdetachpending AND {oid} IN (SELECT relid FROM pg_partition_ancestors(i.inhparent))
      AND NOT EXISTS (SELECT FROM unnest({known}::text[]) AS d (name) WHERE to_regclass(d.name) = i.inhrelid))`

// changed returns the conditions under which a statement on the child may leave rows out. It then
// finds or keeps rows other than the run expects.
func (c *Child) changed(writes bool, args *stmt.Parameters) (all []pg.Condition) {
	keeps := writes && !c.mayKeep
	if !keeps && len(c.tree) == 0 {
		return nil
	}
	oid := "to_regclass(" + args.Add(c.table.SQL()) + ")"
	if keeps {
		all = append(all, pg.Condition{SQL: stmt.Fill(keepsSQL, "{oid}", oid), Err: dberr.ErrChildChanged})
	}
	if len(c.tree) > 0 {
		sql := stmt.Fill(detachingSQL, "{oid}", oid, "{known}", args.Add(c.detaching))
		all = append(all, pg.Condition{SQL: sql, Err: dberr.ErrChildChanged})
	}
	return all
}

// purge returns a statement on the child with its check.
func (c *Child) purge(template string, p Purge, own []any, more ...string) (q pg.Query, err error) {
	if q, err = c.Query("clean", template, p.Keys, own, more...); err != nil {
		return q, err
	}
	var args stmt.Parameters
	conditions := c.changed(true, &args)
	living, err := c.living(p, &args)
	if living != "" {
		conditions = append(conditions, pg.Condition{SQL: living, Err: dberr.ErrLivingParent})
	}
	q.Check = pg.FailIf(conditions, args)
	return q, err
}

// numbered returns some of the keys, by their numbers from 1.
func numbered(keys []Key, numbers []int64) []Key {
	some := make([]Key, len(numbers))
	for i, n := range numbers {
		some[i] = keys[n-1]
	}
	return some
}

// change sends a statement on the child.
func (c *Child) change(ctx context.Context, p fencing.Permit, q pg.Query, into ...any) error {
	p.Before = lockTrees(append(c.parent.trees(), c.tree...))
	return pg.Change(ctx, c.Database, p, q, c.receipt(), into...)
}
