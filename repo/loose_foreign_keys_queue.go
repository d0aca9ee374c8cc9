package repo

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// queueTable is GitLab's name of the table of deleted parents.
const queueTable = "loose_foreign_keys_deleted_records"

// DeletedRecords is the queue of the loose foreign keys: the table of deleted parents of one
// database, as it was when it was read.
type DeletedRecords struct {
	// Schema is the application schema: the first existing one of the connection's search_path.
	Schema string
	// Exists is false where nothing has made the table yet. Partitioned is false for a table of
	// another shape.
	Exists, Partitioned bool
	// Managed by caretaker: made by `caretaker lfk install`. Marked: its partitions are on record, as
	// they are not after a restore of the application's schema alone.
	Managed, Marked bool
	// Wide: it is managed by caretaker and has the column key_values, for keys that are not one
	// integer.
	Wide bool
	// Leaves are the tables that it is made of.
	Leaves int
	// Partitions are the numbers that the leaves are for, by their bounds, ascending; a leaf may have
	// several. Besides them those of the pending records in a DEFAULT leaf, if it has one.
	Partitions []int64
	HasDefault bool
	// Active is the number of the partition that new records go to; 0 if the column's default names
	// none.
	Active int64
	// At is when it was read, by the clock of the database: what is due is decided by it.
	At time.Time
	// leafSchema is where its newest leaf lies, and the next one will; before there is any, that of
	// GitLab's partitions where there is such a schema, else our own.
	leafSchema string
	sql        string
}

// Table is where the queue is.
func (q *DeletedRecords) Table() Table { return Table{q.Schema, queueTable} }

const queueSQL = `
SELECT n.nspname, q.oid IS NOT NULL, coalesce(q.relkind = 'p', false),
  marks.marked OR keys.wide, marks.marked, keys.wide,
  (SELECT count(*) FROM pg_inherits i WHERE i.inhparent = q.oid),
  ARRAY (
    SELECT number[1]::bigint AS bound
    FROM pg_inherits i JOIN pg_class leaf ON leaf.oid = i.inhrelid
    CROSS JOIN pg_get_expr(leaf.relpartbound, leaf.oid) bounds
    CROSS JOIN LATERAL regexp_matches(bounds, '-?[0-9]+', 'g') number
    WHERE i.inhparent = q.oid AND bounds LIKE 'FOR VALUES IN (%'
    ORDER BY bound),
  EXISTS (
    SELECT FROM pg_inherits i JOIN pg_class leaf ON leaf.oid = i.inhrelid
    WHERE i.inhparent = q.oid AND pg_get_expr(leaf.relpartbound, leaf.oid) = 'DEFAULT'),
  coalesce((
    SELECT substring(pg_get_expr(d.adbin, d.adrelid) FROM '^''?(-?[0-9]+)')::bigint
    FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = q.oid AND a.attname = 'partition'), 0),
  coalesce((
    SELECT home.nspname
    FROM pg_inherits i JOIN pg_class leaf ON leaf.oid = i.inhrelid
    JOIN pg_namespace home ON home.oid = leaf.relnamespace
    CROSS JOIN pg_get_expr(leaf.relpartbound, leaf.oid) bounds
    WHERE i.inhparent = q.oid AND bounds LIKE 'FOR VALUES IN (%'
    ORDER BY substring(bounds FROM '-?[0-9]+')::bigint DESC LIMIT 1),
    (SELECT nspname FROM pg_namespace WHERE nspname = 'gitlab_partitions_dynamic'),
    'maintenance'),
  clock_timestamp()
FROM pg_namespace n
LEFT JOIN pg_class q
  ON q.relnamespace = n.oid AND q.relname = $1 AND q.relkind IN ('r', 'p', 'v', 'm', 'f')
CROSS JOIN (SELECT EXISTS (SELECT FROM maintenance.queue_partitions) AS marked) marks
CROSS JOIN LATERAL (
  SELECT EXISTS (
    SELECT FROM pg_attribute a WHERE a.attrelid = q.oid AND a.attname = 'key_values'
      AND a.atttypid = 'text[]'::regtype AND NOT a.attisdropped) AS wide) keys
WHERE n.nspname = current_schema()`

// row are the fields in the order of queueSQL.
func (q *DeletedRecords) row() []any {
	return []any{
		&q.Schema, &q.Exists, &q.Partitioned, &q.Managed, &q.Marked, &q.Wide,
		&q.Leaves, &q.Partitions, &q.HasDefault, &q.Active, &q.leafSchema, &q.At,
	}
}

// DeletedRecords reads the queue and its partitions. Without an application schema the error is a
// [*NoSchemaError].
func (d *Database) DeletedRecords(ctx context.Context) (DeletedRecords, error) {
	q, err := d.DeletedRecordsShape(ctx)
	if err != nil || !q.HasDefault {
		return q, err
	}
	l := Limits{Statement: 5 * time.Second, Lock: time.Second}
	others, err := readRows(ctx, d, l, newQuery("read the queue's default partition", q.othersSQL()),
		pgx.RowTo[int64])
	q.addPartitions(others)
	return q, err
}

// ReadDeletedRecords is [Database.DeletedRecordsShape] within a transaction. Without an application schema the error
// is [pgx.ErrNoRows].
func ReadDeletedRecords(ctx context.Context, tx pgx.Tx) (q DeletedRecords, err error) {
	err = tx.QueryRow(ctx, queueSQL, queueTable).Scan(q.row()...)
	q.sql = quote(q.Schema, queueTable)
	return q, err
}

// DeletedRecordsShape is DeletedRecords without the numbers of the records in a DEFAULT leaf: it
// reads the catalogue alone. Its errors are those of DeletedRecords.
func (d *Database) DeletedRecordsShape(ctx context.Context) (q DeletedRecords, err error) {
	err = d.queryRow(ctx, "read the queue", q.row(), queueSQL, queueTable)
	if errors.Is(err, ErrNotFound) {
		_, err = d.ApplicationSchema(ctx)
	}
	q.sql = quote(q.Schema, queueTable)
	return q, err
}

// otherPartitionsSQL are the numbers of pending records in the DEFAULT leaf, by a skip scan of its
// index: the condition {others} excludes all other leaves. The limit bounds the statement; the next
// run finds what follows.
const otherPartitionsSQL = `
WITH RECURSIVE found (partition) AS (
  SELECT '-9223372036854775808'::bigint
  UNION ALL
  SELECT (
    SELECT q.partition FROM {queue} q WHERE q.status = 1 {others} AND q.partition > f.partition
    ORDER BY q.partition LIMIT 1)
  FROM found f WHERE f.partition IS NOT NULL
)
SELECT partition FROM found WHERE partition > '-9223372036854775808'::bigint LIMIT 1000`

func (q *DeletedRecords) othersSQL() string {
	numbers := make([]string, len(q.Partitions))
	for i, n := range q.Partitions {
		numbers[i] = strconv.FormatInt(n, 10)
	}
	others := ""
	if len(numbers) > 0 {
		others = "AND partition NOT IN (" + strings.Join(numbers, ", ") + ")"
	}
	return fill(otherPartitionsSQL, "{queue}", q.sql, "{others}", others)
}

func (q *DeletedRecords) addPartitions(others []int64) {
	q.Partitions = append(q.Partitions, others...)
	slices.Sort(q.Partitions)
}

// ActiveMissing says that new records are sent to a partition that does not exist: every deletion
// from a tracked table fails.
func (q *DeletedRecords) ActiveMissing() bool {
	return !q.HasDefault && !slices.Contains(q.Partitions, q.Active)
}

// Repairable reports whether the active partition is missing and known, so that it can be created.
func (q *DeletedRecords) Repairable() bool { return q.Active != 0 && q.ActiveMissing() }

// leafParentsSQL are the recorded table names with pending records in one leaf, by a skip scan of
// its partial index: the cost grows with the names it finds, not with the records.
const leafParentsSQL = `
  WITH RECURSIVE parents (name) AS (
    (SELECT fully_qualified_table_name FROM {queue} WHERE partition = leaf.number AND status = 1
     ORDER BY fully_qualified_table_name LIMIT 1)
    UNION ALL
    SELECT (SELECT q.fully_qualified_table_name FROM {queue} q
            WHERE q.partition = leaf.number AND q.status = 1
              AND q.fully_qualified_table_name > p.name
            ORDER BY q.fully_qualified_table_name LIMIT 1)
    FROM parents p WHERE p.name IS NOT NULL
  )`

// dueParentsSQL: a time that is NULL sorts last and is due. LIMIT 1 keeps the planner from reading
// all records at once, which it may for EXISTS.
const dueParentsSQL = `
SELECT DISTINCT due.name
FROM unnest($1::bigint[]) AS leaf (number)
CROSS JOIN LATERAL (` + leafParentsSQL + `
  SELECT p.name FROM parents p
  CROSS JOIN LATERAL (
    SELECT q.consume_after FROM {queue} q
    WHERE q.partition = leaf.number AND q.status = 1 AND q.fully_qualified_table_name = p.name
    ORDER BY q.consume_after LIMIT 1
  ) oldest
  WHERE oldest.consume_after <= now() OR oldest.consume_after IS NULL OR (
    SELECT true FROM {queue} q
    WHERE q.partition = leaf.number AND q.status = 1 AND q.fully_qualified_table_name = p.name
      AND q.consume_after IS NULL
    ORDER BY q.id LIMIT 1)
) due
ORDER BY due.name`

// DueParents are the recorded table names that have pending records due now.
func (d *Database) DueParents(ctx context.Context, q DeletedRecords, l Limits) ([]string, error) {
	return q.parents(ctx, d, l, newQuery("find parents with due records", dueParentsSQL))
}

const pendingParentsSQL = `
SELECT DISTINCT pending.name
FROM unnest($1::bigint[]) AS leaf (number)
CROSS JOIN LATERAL (` + leafParentsSQL + `
  SELECT p.name FROM parents p WHERE p.name IS NOT NULL
) pending
ORDER BY pending.name`

// PendingParents are the recorded table names that have pending records, due or not.
func (d *Database) PendingParents(ctx context.Context, q DeletedRecords, l Limits) ([]string, error) {
	return q.parents(ctx, d, l, newQuery("find parents with pending records", pendingParentsSQL))
}

func (q *DeletedRecords) parents(ctx context.Context, d *Database, l Limits, find query) ([]string, error) {
	find.sql, find.args = fill(find.sql, "{queue}", q.sql), []any{q.Partitions}
	return readRows(ctx, d, l, find, pgx.RowTo[string])
}

// Record is one deleted parent row, whose key is Key.
type Record struct {
	Partition, ID int64
	Key           Key
}

// Position is where loading goes on: behind this record. The zero value is the beginning of the
// queue.
type Position struct {
	begun         bool
	partition, id int64
	consumeAfter  pgtype.Timestamptz
}

// loadRecordsSQL names the partition: without it the index's first column is unused. Records
// without a time are due, and come last. A record that nobody has tried since then has the time at
// which it was recorded; who postpones one gives it a later one, so that it does not come back to
// the run that has done so, however soon it is due again. Keys are as keySQL has them.
const loadRecordsSQL = `
(SELECT id, {key_number} AS number, {key_values} AS key_values, consume_after FROM {queue}
 WHERE partition = $1 AND fully_qualified_table_name = $2 AND status = 1
   AND consume_after <= now() AND (consume_after, id) > ($3::timestamptz, $4::bigint)
   AND (consume_after <= $7 OR $8 AND consume_after = created_at)
 ORDER BY consume_after, id LIMIT $6)
UNION ALL
(SELECT id, {key_number} AS number, {key_values} AS key_values, consume_after FROM {queue}
 WHERE partition = $1 AND fully_qualified_table_name = $2 AND status = 1
   AND consume_after IS NULL AND id > $5::bigint
 ORDER BY id LIMIT $6)
LIMIT $6`

// RecordPage says which records are wanted: up to Limit pending ones of Parent behind After that
// were due when the queue was read, and if Since those, too, that were recorded since and never
// tried.
type RecordPage struct {
	Parent string
	After  Position
	Limit  int
	Since  bool
}

// LoadRecords reads records in numeric order of the partitions, then by consume_after, then by id.
// The position returned is that of the last one.
func (d *Database) LoadRecords(
	ctx context.Context, q DeletedRecords, want RecordPage, l Limits,
) ([]Record, Position, error) {
	var records []Record
	after := want.After
	for _, partition := range q.Partitions {
		if after.begun && partition < after.partition || len(records) >= want.Limit {
			continue
		}
		time, id, nullID := after.keyset(partition)
		load := newQuery("load records", q.fill(loadRecordsSQL), partition, want.Parent,
			time, id, nullID, want.Limit-len(records), q.At, want.Since)
		rows, err := readRows(ctx, d, l, load, pgx.RowToStructByPos[queueRow])
		if err != nil {
			return nil, after, err
		}
		for _, r := range rows {
			records = append(records, Record{Partition: partition, ID: r.ID, Key: r.Key()})
			after = Position{begun: true, partition: partition, id: r.ID, consumeAfter: r.ConsumeAfter}
		}
	}
	return records, after, nil
}

type queueRow struct {
	ID int64
	RecordKey
	ConsumeAfter pgtype.Timestamptz
}

// fill puts the queue, and the number or the values of a record's key, into a statement. Only a
// queue that is Wide has values: NULL for one integer, which is in primary_key_value then.
func (q *DeletedRecords) fill(sql string) string {
	number, values := "primary_key_value", "NULL::text[]"
	if q.Wide {
		number = "CASE WHEN key_values IS NULL THEN primary_key_value END"
		values = "array_remove(key_values, NULL)"
	}
	return fill(sql, "{queue}", q.sql, "{key_number}", number, "{key_values}", values)
}

// keyset is where to begin in a partition: behind (time, id) among the records with a time, behind
// nullID among those without.
func (p Position) keyset(partition int64) (after pgtype.Timestamptz, id, nullID int64) {
	const first = -1 << 63
	switch {
	case !p.begun || partition != p.partition:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, first, first
	case p.consumeAfter.Valid:
		return p.consumeAfter, p.id, first
	}
	return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, 0, p.id
}

// queueBacklogSQL reads in the order of the queue's index, so that it ends where the bound is: else
// PostgreSQL may first make a bitmap of all that is pending.
const queueBacklogSQL = `
SELECT count(*), count(*) FILTER (WHERE consume_after IS NULL OR consume_after <= now()),
  min(created_at),
  (SELECT count(*) FROM (SELECT FROM maintenance.dead_records LIMIT $1) d), clock_timestamp()
FROM (
  SELECT consume_after, created_at FROM {queue} WHERE status = 1
  ORDER BY partition, fully_qualified_table_name, consume_after, id LIMIT $1
) pending`

// QueueBacklog counts the pending and the dead records.
func (d *Database) QueueBacklog(ctx context.Context, queue DeletedRecords, l Limits) (Backlog, error) {
	var b Backlog
	var oldest *time.Time
	q := newQuery("count the backlog", fill(queueBacklogSQL, "{queue}", queue.sql), backlogCap+1)
	_, err := d.candidateRow(ctx, l, q, &b.Pending, &b.Due, &oldest, &b.Dead, &b.ReadAt)
	if oldest != nil {
		b.OldestAt = *oldest
	}
	return b.capped(), err
}
