package repo

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Actions of a loose foreign key, in the words of the definitions file.
const (
	AsyncDelete    = "async_delete"
	AsyncNullify   = "async_nullify"
	UpdateColumnTo = "update_column_to"
)

// LooseForeignKey is one definition: what becomes of the rows of Table whose Column refers to a
// deleted row of Parent. Names are unqualified and literal.
type LooseForeignKey struct {
	Table, Column, Parent string
	// OnDelete is one of the actions above.
	OnDelete string
	// TargetColumn and TargetValue belong to UpdateColumnTo.
	TargetColumn, TargetValue string
	// Conditions narrow the rows: all of them must hold.
	Conditions []ColumnValue
	// DeleteLimit caps the rows of one statement, whatever the action; 0: adaptive.
	DeleteLimit int
}

// ColumnValue is an equality, the value in the text form that PostgreSQL converts to the column's
// type.
type ColumnValue struct{ Column, Value string }

// String is the definition's identity in messages: "child.column -> parent".
func (k LooseForeignKey) String() string { return k.Table + "." + k.Column + " -> " + k.Parent }

// changes is the column that the action sets; "": rows are deleted.
func (k LooseForeignKey) changes() string {
	switch k.OnDelete {
	case AsyncNullify:
		return k.Column
	case UpdateColumnTo:
		return k.TargetColumn
	}
	return ""
}

// Child is one definition in one home of its child table.
type Child struct {
	Key      LooseForeignKey
	Database *Database
	schema   string
	table    string
	types    columnTypes
	// lock is how rows are locked before they are changed: an update that leaves unique columns alone
	// gets along with the checks of foreign keys.
	lock string
	// key is what a statement can return of the rows it changes: see keyOfSQL.
	key string
	// mayKeep: a trigger or rule may keep rows that a statement would change, without an error.
	mayKeep bool
	// unprotected is the condition of rows that may be deleted, "" if all may: a protected user or group
	// stays, and its record with it.
	unprotected string
}

// MayKeep says whether a row that a statement finds may be left as it is without an error: by a
// BEFORE trigger, a rule, another server, or because it may be protected.
func (c *Child) MayKeep() bool { return c.mayKeep }

// columnTypes by table and column, without their modifiers: a cast to character(3) or bit would cut
// values off.
type columnTypes map[[2]string]string

// childTablesSQL: ordinary and partitioned tables of the application schema count. A table whose
// enabled trigger refuses every write is a leftover of a split database and is no home.
//
// The last column says whether rows may be kept: triggers as in keepingTriggersSQL, of the table and
// all that inherit from it.
const childTablesSQL = `
WITH RECURSIVE member (root, oid) AS (
  SELECT c.oid, c.oid FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
  WHERE c.relname = ANY ($1)
  UNION
  SELECT m.root, i.inhrelid FROM pg_inherits i JOIN member m ON m.oid = i.inhparent
), keeping AS (
  SELECT DISTINCT m.root FROM member m JOIN pg_class k ON k.oid = m.oid
  WHERE k.relkind = 'f' OR k.relhasrules OR k.relhastriggers AND EXISTS (
    SELECT FROM pg_trigger t
    WHERE t.tgrelid = k.oid AND t.tgenabled IN ('O', 'A') AND t.tgtype & 3 = 3 AND t.tgtype & 24 > 0)
)
SELECT c.relname, coalesce(a.attname, ''), coalesce(format_type(a.atttypid, -1), ''), n.nspname,
  EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND a.attnum = ANY (i.indkey)),
  EXISTS (SELECT FROM keeping k WHERE k.root = c.oid), ` + keyOfSQL + `
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
LEFT JOIN pg_attribute a
  ON a.attrelid = c.oid AND a.attname = ANY ($2) AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relname = ANY ($1) AND c.relkind IN ('r', 'p') AND NOT ` + ProtectedSQL

// Children finds the definitions whose child table has a home in this database. The result has an
// entry a definition, nil where the table is not here. Without an application schema the error is a
// [*NoSchemaError].
func (d *Database) Children(ctx context.Context, keys []LooseForeignKey) ([]*Child, error) {
	tables, columns := namesOf(keys)
	type column struct {
		Table, Name, Type, Schema string
		Unique, MayKeep           bool
		Key                       string
	}
	find := newQuery("find child tables", childTablesSQL, tables, columns)
	found, err := collect(ctx, d, find, pgx.RowToStructByPos[column])
	if err == nil && len(found) == 0 {
		_, err = d.ApplicationSchema(ctx)
	}
	if err != nil {
		return nil, err
	}
	schemas, types, unique := map[string]string{}, columnTypes{}, map[[2]string]bool{}
	mayKeep, primaryKeys := map[string]bool{}, map[string]string{}
	for _, c := range found {
		schemas[c.Table], mayKeep[c.Table], primaryKeys[c.Table] = c.Schema, c.MayKeep, c.Key
		types[[2]string{c.Table, c.Name}] = c.Type
		unique[[2]string{c.Table, c.Name}] = c.Unique
	}
	children := make([]*Child, len(keys))
	for i, key := range keys {
		if schema, ok := schemas[key.Table]; ok {
			children[i] = &Child{
				Key: key, Database: d, schema: schema, table: quote(schema, key.Table),
				types: types, lock: "FOR UPDATE SKIP LOCKED", mayKeep: mayKeep[key.Table],
				key: cmp.Or(primaryKeys[key.Table], "t."+quote(key.Column)+"::text"),
			}
			if key.changes() == "" {
				children[i].unprotected = d.unprotectedRows(key.Table)
			}
			if children[i].unprotected != "" {
				children[i].mayKeep = true
			}
			if changed := key.changes(); changed != "" && !unique[[2]string{key.Table, changed}] {
				children[i].lock = "FOR NO KEY UPDATE SKIP LOCKED"
			}
		}
	}
	return children, nil
}

// Table is the child table.
func (c *Child) Table() Table { return Table{c.schema, c.Key.Table} }

func namesOf(keys []LooseForeignKey) (tables, columns []string) {
	for _, k := range keys {
		tables = append(tables, k.Table)
		columns = append(columns, k.Column, k.TargetColumn)
		for _, c := range k.Conditions {
			columns = append(columns, c.Column)
		}
	}
	return tables, columns
}

// sql fills the child's identifiers into a statement whose own parameters end before $first, and
// returns the values of the parameters from there on. A column that does not exist has no type: the
// statement then fails by its name.
func (c *Child) sql(template string, first int, more ...string) (sql string, values []any) {
	var conditions strings.Builder
	parameter := func(column, value string) string {
		values = append(values, value)
		kind := c.types[[2]string{c.Key.Table, column}]
		if kind == "" {
			kind = "text"
		}
		return fmt.Sprintf("$%d::text::%s", first+len(values)-1, kind)
	}
	for _, want := range c.Key.Conditions {
		fmt.Fprintf(&conditions, " AND t.%s = %s", quote(want.Column), parameter(want.Column, want.Value))
	}
	change := "DELETE FROM " + c.table + " t"
	switch c.Key.OnDelete {
	case AsyncNullify:
		change = fmt.Sprintf("UPDATE %s t SET %s = NULL", c.table, quote(c.Key.Column))
	case UpdateColumnTo:
		target, value := quote(c.Key.TargetColumn), parameter(c.Key.TargetColumn, c.Key.TargetValue)
		change = fmt.Sprintf("UPDATE %s t SET %s = %s", c.table, target, value)
		fmt.Fprintf(&conditions, " AND t.%s IS DISTINCT FROM %s", target, value)
	}
	unprotected := ""
	if c.unprotected != "" {
		unprotected = " AND " + c.unprotected
	}
	names := append([]string{
		"{unprotected}", unprotected, "{child}", c.table, "{column}", quote(c.Key.Column),
		"{conditions}", conditions.String(), "{change}", change, "{returned}", c.key, "{noted}", notedSQL,
	}, more...)
	return c.Database.summary(fill(template, names...), c.key, "true"), values
}

// receipt is of what the definition changes.
func (c *Child) receipt() receipt {
	action := receiptDeleted
	switch c.Key.OnDelete {
	case AsyncNullify:
		action = receiptNullified
	case UpdateColumnTo:
		action = receiptUpdated
	}
	return receipt{c.Key.Table, action, c.Key.String()}
}

// purgeAllSQL changes all rows of the keys, if there are no more than $2, else none. Counting and
// changing see one snapshot, so the cap holds whatever others commit meanwhile; a row that moves to
// another parent is left alone.
const purgeAllSQL = `
WITH {guard},
counted AS MATERIALIZED (
  SELECT count(*) AS n FROM (
    SELECT FROM {child} t WHERE t.{column} = ANY ($1::bigint[]){conditions} LIMIT $2::bigint + 1) x
),
changed AS (
  {change}
  WHERE t.{column} = ANY ($1::bigint[]){conditions}{unprotected}
    AND (SELECT n FROM counted) BETWEEN 1 AND $2::bigint AND (SELECT held FROM guard) = 1
  RETURNING {returned} AS key
),
tally AS MATERIALIZED (
  SELECT (SELECT n FROM counted) AS found, (SELECT count(*) FROM changed) AS changed
)`

// purgeUncountedSQL changes all rows of the keys without counting them first, which costs a third
// less. If there are more than $2 the statement fails with a division by zero, and changes nothing.
const purgeUncountedSQL = `
WITH {guard},
changed AS (
  {change}
  WHERE t.{column} = ANY ($1::bigint[]){conditions}{unprotected}
    AND (SELECT held FROM guard) = 1
  RETURNING {returned} AS key
),
tally AS MATERIALIZED (
  SELECT n AS found, n AS changed FROM (SELECT count(*) AS n FROM changed) c
  WHERE 1 / (n <= $2::bigint)::int = 1
)`

// purgeAllResultSQL ends the statement where no records are to be removed.
const purgeAllResultSQL = `
SELECT EXISTS (SELECT FROM guard) AND {noted}, found, changed, 0::bigint FROM tally`

// purgeAllRemovalSQL ends it where the child is in the queue's database and this is the last
// definition of the keys: their records go with their rows. They stay if the cap was reached or not
// every row was changed; whether a key has rows left is then for [Child.Remaining] to say.
const purgeAllRemovalSQL = `,
deleted AS (
  DELETE FROM {queue} q USING tally, unnest($3::bigint[], $4::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
    AND (SELECT held FROM guard) = 1 AND tally.found = tally.changed AND tally.found <= $2::bigint
  RETURNING q.partition, q.id
)` + forgetSQL + `
SELECT EXISTS (SELECT FROM guard) AND {noted}, found, changed, (SELECT count(*) FROM deleted) FROM tally`

// purgeSharesSQL changes at most $3 rows of each key and $2 in all, where they stand: found by
// (tableoid, ctid), because ctid alone is not unique in a partitioned table and a child may have no
// primary key. A row that has moved on since is left alone, and missing in changed: only found rows
// that the statement's snapshot still sees, and that are not changed, were kept. LIMIT 1 makes seen
// look at them one by one, by ctid. IS TRUE keeps the comparison a hash look-up for the row at
// hand.
const purgeSharesSQL = `
WITH {guard},
found AS MATERIALIZED (
  SELECT k.key, c.tbl, c.loc
  FROM guard CROSS JOIN unnest($1::bigint[]) AS k (key)
  CROSS JOIN LATERAL (
    SELECT t.tableoid AS tbl, t.ctid AS loc FROM {child} t
    WHERE t.{column} = k.key{conditions} LIMIT $3::bigint {lock}
  ) c
  LIMIT $2::bigint
),
changed AS (
  {change}
  WHERE t.ctid = ANY (ARRAY(SELECT loc FROM found))
    AND ((t.tableoid, t.ctid, t.{column}) IN (SELECT tbl, loc, key FROM found)) IS TRUE{conditions}{unprotected}
  RETURNING {returned} AS key
),
tally AS (SELECT key, count(*) AS n FROM found GROUP BY key),
seen AS MATERIALIZED (
  SELECT f.key FROM found f
  CROSS JOIN LATERAL (SELECT FROM {child} s WHERE s.ctid = f.loc AND s.tableoid = f.tbl LIMIT 1) s
  WHERE (SELECT count(*) FROM found) > (SELECT count(*) FROM changed)
)
SELECT EXISTS (SELECT FROM guard) AND {noted},
  ARRAY(SELECT key FROM tally ORDER BY key), ARRAY(SELECT n FROM tally ORDER BY key),
  (SELECT count(*) FROM found), (SELECT count(*) FROM changed),
  ARRAY(
    SELECT DISTINCT key FROM seen
    WHERE (SELECT count(*) FROM seen) > (SELECT count(*) FROM changed))`

// Purge is one statement on a child.
type Purge struct {
	Permit
	// Keys of deleted parents, without duplicates.
	Keys []int64
	// Cap is how many rows the statement may change.
	Cap int64
	// Uncounted lets PurgeAll change the rows without counting them first. It is an error if they
	// are more than the cap. Of a child that [Child.MayKeep] rows it must not be asked: it takes all
	// that it finds for changed.
	Uncounted bool
}

// PurgeResult is what a statement did.
type PurgeResult struct {
	// Found rows, at most one more than the cap, and how many of them were Changed.
	Found, Changed int64
	// Shares counts the rows found of each key that had any; PurgeAll does not know them.
	Shares map[int64]int64
	// Kept are keys of which there are rows that the statement has locked and not changed, although
	// nobody else has changed them: triggers do that. Only PurgeShares with skipLocked knows them.
	Kept []int64
	// Removed records.
	Removed int64
}

// PurgeAll deletes or updates all rows of some keys in one transaction, or none if there are more
// than the cap. If it changes all rows it finds, it removes the given records from the queue; that
// is possible in the queue's own database only.
func (c *Child) PurgeAll(
	ctx context.Context, p Purge, q DeletedRecords, records []Record,
) (r PurgeResult, err error) {
	ending, first, args := purgeAllResultSQL, 3, []any{p.Keys, p.Cap}
	if len(records) > 0 {
		ending, first, args = purgeAllRemovalSQL, 5, append(args, recordArrays(records)...)
	}
	beginning := purgeAllSQL
	if p.Uncounted {
		beginning = purgeUncountedSQL
	}
	sql, values := c.sql(beginning+ending, first, "{queue}", q.sql)
	err = c.change(ctx, p.Permit,
		newQuery("clean "+c.Key.String(), sql, append(args, values...)...),
		&r.Found, affected{&r.Changed}, affected{&r.Removed})
	return r, err
}

// PurgeShares deletes or updates at most perKey rows of each key, and no more than the cap in all,
// in one transaction. With skipLocked it leaves locked rows out instead of waiting for them under
// Limits.Lock.
func (c *Child) PurgeShares(
	ctx context.Context, p Purge, perKey int64, skipLocked bool,
) (r PurgeResult, err error) {
	lock := ""
	if skipLocked {
		lock = c.lock
	}
	sql, values := c.sql(purgeSharesSQL, 4, "{lock}", lock)
	var keys, counts []int64
	err = c.change(ctx, p.Permit,
		newQuery("clean "+c.Key.String(), sql, append([]any{p.Keys, p.Cap, perKey}, values...)...),
		&keys, &counts, &r.Found, affected{&r.Changed}, &r.Kept)
	r.Shares = make(map[int64]int64, len(keys))
	for i, key := range keys {
		r.Shares[key] = counts[i]
	}
	return r, err
}

// change sends a statement on the child.
func (c *Child) change(ctx context.Context, p Permit, q query, into ...any) error {
	if c.unprotected != "" {
		return c.Database.changeUnprotected(ctx, p, q, c.receipt(), into...)
	}
	return c.Database.change(ctx, p, q, c.receipt(), into...)
}
