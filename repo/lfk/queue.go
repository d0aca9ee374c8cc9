package lfk

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// queueTable is GitLab's name of the table of deleted parents that every trigger can write to.
const queueTable = "loose_foreign_keys_deleted_records"

// QueueTables returns GitLab's names of the tables of deleted parents. GitLab's triggers route
// records to all but the first one by the owner of the deleted row.
func QueueTables() []string {
	return []string{
		queueTable, "loose_foreign_keys_organization_deleted_records",
		"loose_foreign_keys_namespace_deleted_records", "loose_foreign_keys_project_deleted_records",
		"loose_foreign_keys_user_deleted_records",
	}
}

// QueueTable is the state of one table of deleted parents when it was read.
type QueueTable struct {
	// Name without the schema.
	Name string
	// Exists is false if the table has not been created. Partitioned is false for a table of
	// another shape.
	Exists, Partitioned bool
	// Leaves is the number of tables that it consists of.
	Leaves int
	// Partitions are the numbers that the leaves are for, by their bounds, ascending. A leaf may
	// have several. A DEFAULT leaf adds the numbers of its pending records.
	Partitions []int64
	HasDefault bool
	// Active is the number of the partition that new records go to, 0 if the column's default names
	// none.
	Active int64
	SQL    string
}

// routed reports whether the table is a queue of GitLab's by owner, whose ids are UUIDs.
func (t *QueueTable) routed() bool { return t.Name != queueTable }

// Owner returns the column of a routed queue that names the deleted row's owner, else "".
func (t *QueueTable) Owner() string {
	owner, _ := strings.CutPrefix(t.Name, "loose_foreign_keys_")
	owner, _, ok := strings.Cut(owner, "_deleted_records")
	if !ok || !t.routed() {
		return ""
	}
	return owner + "_id"
}

// DeletedRecords is the queue of the loose foreign keys: the tables of deleted parents of one
// database, as they were when read. Every trigger can write to the embedded one.
type DeletedRecords struct {
	QueueTable
	// Routed lists GitLab's queues by owner, in the order of [QueueTables], existing or not.
	Routed []QueueTable
	// Schema is the application schema: the first existing one of the connection's search_path.
	Schema string
	// Managed means that `caretaker lfk install` made the queue. Marked means that its partitions
	// are on record, unlike after a restore of the application's schema alone.
	Managed, Marked bool
	// Wide means that caretaker manages the queue and that it has the column key_values, for keys
	// that are not one integer.
	Wide bool
	// Remembered means that runs know this queue.
	Remembered bool
	// At is the time of reading, by the clock of the database. It decides which records are due.
	At time.Time
	// leafSchema is the schema of the newest leaf, and of the next one. Before the first leaf it is
	// that of GitLab's partitions if that schema exists, else our own.
	leafSchema string
	// was is the schema of the remembered queue, path the search_path.
	was, path string
}

// Table returns the queue table that every trigger can write to.
func (q *DeletedRecords) Table() catalog.Table { return catalog.Table{Schema: q.Schema, Name: q.Name} }

// tables returns all tables of the queue, existing or not. [Record.Queue] is an index of them.
func (q *DeletedRecords) tables() []*QueueTable {
	all := []*QueueTable{&q.QueueTable}
	for i := range q.Routed {
		all = append(all, &q.Routed[i])
	}
	return all
}

// Existing returns the tables of the queue that exist, by their index.
func (q *DeletedRecords) Existing() iter.Seq2[int, *QueueTable] {
	return func(yield func(int, *QueueTable) bool) {
		for i, t := range q.tables() {
			if t.Exists && !yield(i, t) {
				return
			}
		}
	}
}

// Union joins the SQL for each existing table. {partitions} is the list of the table's partitions:
// if it were a parameter, PostgreSQL would plan the statement for each call.
func (q *DeletedRecords) Union(sql, operator string) string {
	var parts []string
	for i, t := range q.Existing() {
		parts = append(parts,
			stmt.Fill(q.Fill(i, sql), "{place}", strconv.Itoa(i), "{partitions}", t.list()))
	}
	return strings.Join(parts, operator)
}

// list returns the array of the table's partitions in SQL.
func (t *QueueTable) list() string {
	return stmt.Fill(fmt.Sprint(t.Partitions), "[", "'{", " ", ",", "]", "}'::bigint[]")
}

// queueSQL has no parameters, so that a connection plans it once. It reads each table with
// subqueries that PostgreSQL cannot hash. Otherwise PostgreSQL may read the bounds of all
// partitions of the database, and wait for a transaction that has locked one.
const queueSQL = `
SELECT n.nspname, w.name, q.oid IS NOT NULL, coalesce(q.relkind = 'p', false),
  EXISTS (SELECT FROM maintenance.queue_partitions),
  ARRAY (
    SELECT ARRAY[home.nspname::text, coalesce(pg_get_expr(leaf.relpartbound, leaf.oid), '')]
    FROM pg_inherits i JOIN pg_class leaf ON leaf.oid = i.inhrelid
    JOIN pg_namespace home ON home.oid = leaf.relnamespace
    WHERE i.inhparent = q.oid),
  ARRAY (
    SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL), coalesce(pg_get_expr(d.adbin, d.adrelid), '')]
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = q.oid AND a.attname IN ('partition', 'key_values')),
  to_regnamespace('` + leavesOfGitLab + `') IS NOT NULL,
  clock_timestamp(), coalesce(home.was, n.nspname), coalesce(home.remembered, false), current_setting('search_path')
FROM pg_namespace n
CROSS JOIN (VALUES {queues}) AS w (place, name)
LEFT JOIN pg_class q
  ON q.relnamespace = n.oid AND q.relname = w.name AND q.relkind IN ('r', 'p', 'v', 'm', 'f')
LEFT JOIN (` + queueLocationSQL + `) AS home (was, remembered) ON true
WHERE n.nspname = current_schema()
ORDER BY w.place`

// readQueueSQL returns queueSQL for [QueueTables].
func readQueueSQL() string {
	names := QueueTables()
	for i, name := range names {
		names[i] = fmt.Sprintf("(%d, '%s')", i, name)
	}
	return stmt.Fill(queueSQL, "{queues}", strings.Join(names, ", "))
}

// scanQueue reads a row of queueSQL.
func scanQueue(row pgx.CollectableRow) (q DeletedRecords, err error) {
	var leaves, columns [][]string
	var ofGitLab bool
	err = row.Scan(
		&q.Schema, &q.Name, &q.Exists, &q.Partitioned, &q.Marked, &leaves, &columns, &ofGitLab,
		&q.At, &q.was, &q.Remembered, &q.path,
	)
	q.SQL = stmt.Quote(q.Schema, q.Name)
	q.leafSchema = "maintenance"
	if ofGitLab {
		q.leafSchema = leavesOfGitLab
	}
	q.addLeaves(leaves)
	for _, c := range columns {
		switch c[0] {
		case "key_values":
			q.Wide = c[1] == "text[]"
		case "partition":
			number, _, _ := strings.Cut(strings.TrimPrefix(c[2], "'"), "'")
			q.Active, _ = strconv.ParseInt(number, 10, 64) // of another default it is 0
		}
	}
	q.Managed = q.Marked || q.Wide
	return q, err
}

// DeletedRecords reads the queue and its partitions. Without an application schema the error is a
// [*dberr.NoSchemaError]. If the search_path leads to another queue, or to none, the error is a
// [*QueueMovedError].
func (d Queue) DeletedRecords(ctx context.Context) (DeletedRecords, error) {
	q, err := d.DeletedRecordsShape(ctx)
	if err == nil {
		err = d.ReadDefault(ctx, &q)
	}
	return q, err
}

// ReadDefault adds the numbers of the records in DEFAULT leaves to the shape of a queue.
func (d Queue) ReadDefault(ctx context.Context, q *DeletedRecords) error {
	l := fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
	for _, t := range q.Existing() {
		if !t.HasDefault {
			continue
		}
		sql := stmt.Fill(otherPartitionsSQL, "{queue}", t.SQL, "{partitions}", t.list())
		find := pg.NewQuery("read the queue's default partition", sql)
		others, err := pg.ReadRows(ctx, d.db, l, find, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		t.Partitions = slices.Sorted(slices.Values(append(t.Partitions, others...)))
	}
	return nil
}

// ReadDeletedRecords is [Queue.DeletedRecordsShape] within a transaction. Without an application
// schema the error is [pgx.ErrNoRows].
func (d Queue) ReadDeletedRecords(ctx context.Context, tx pgx.Tx) (DeletedRecords, error) {
	rows, _ := tx.Query(ctx, readQueueSQL())
	read, err := pgx.CollectRows(rows, scanQueue)
	if err != nil {
		return DeletedRecords{}, err
	}
	q, err := joinQueue(read)
	if err == nil {
		err = q.checkLocation(d.db.Name)
	}
	return q, err
}

// DeletedRecordsShape is [Queue.DeletedRecords] without the numbers of the records in a DEFAULT
// leaf: it reads only the catalogue. The errors are the same.
func (d Queue) DeletedRecordsShape(ctx context.Context) (DeletedRecords, error) {
	read, err := pg.Collect(ctx, d.db, pg.NewQuery("read the queue", readQueueSQL()), scanQueue)
	if err != nil {
		return DeletedRecords{}, err
	}
	q, err := joinQueue(read)
	if err != nil {
		_, err = d.db.ApplicationSchema(ctx)
		return q, err
	}
	err = q.checkLocation(d.db.Name)
	return q, err
}

// joinQueue joins the rows of queueSQL to one queue. Without rows the error is [pgx.ErrNoRows].
func joinQueue(read []DeletedRecords) (DeletedRecords, error) {
	if len(read) == 0 {
		return DeletedRecords{}, pgx.ErrNoRows
	}
	q := read[0]
	for _, r := range read[1:] {
		q.Routed = append(q.Routed, r.QueueTable)
	}
	return q, nil
}

// otherPartitionsSQL reads the numbers of pending records in the DEFAULT leaf, by a skip scan of
// its index. The list of the others excludes all other leaves. The limit bounds the statement. The
// next run finds later numbers.
const otherPartitionsSQL = `
WITH RECURSIVE found (partition) AS (
  SELECT '-9223372036854775808'::bigint
  UNION ALL
  SELECT (
    SELECT q.partition FROM {queue} q
    WHERE q.status = 1 AND q.partition <> ALL ({partitions}) AND q.partition > f.partition
    ORDER BY q.partition LIMIT 1)
  FROM found f WHERE f.partition IS NOT NULL
)
SELECT partition FROM found WHERE partition > '-9223372036854775808'::bigint LIMIT 1000`

// ActiveMissing reports whether new records are sent to a partition that does not exist. Then every
// deletion from a tracked table fails.
func (t *QueueTable) ActiveMissing() bool {
	return !t.HasDefault && !slices.Contains(t.Partitions, t.Active)
}

// Repairable reports whether the active partition is missing and known, so that it can be created.
func (t *QueueTable) Repairable() bool { return t.Active != 0 && t.ActiveMissing() }

// queueBacklogSQL reads in the order of the queue's index, so that it stops at the bound. Otherwise
// PostgreSQL may first build a bitmap of all pending records.
const queueBacklogSQL = `
SELECT count(*), count(*) FILTER (WHERE consume_after IS NULL OR consume_after <= now()),
  min(created_at),
  (SELECT count(*) FROM (SELECT FROM maintenance.dead_records LIMIT $1) d), clock_timestamp()
FROM ({pending}) pending`

const pendingRecordsSQL = `
  (SELECT consume_after, created_at FROM {queue} WHERE status = 1
   ORDER BY partition, fully_qualified_table_name, consume_after, id LIMIT $1)`

// QueueBacklog counts the pending and the dead records.
func (d Queue) QueueBacklog(ctx context.Context, queue DeletedRecords, l fencing.Limits) (control.Backlog, error) {
	var b control.Backlog
	var pending []string
	for i := range queue.Existing() {
		pending = append(pending, queue.Fill(i, pendingRecordsSQL))
	}
	q := pg.NewQuery("count the backlog",
		stmt.Fill(queueBacklogSQL, "{pending}", strings.Join(pending, "\n  UNION ALL")), control.BacklogCap+1)
	_, err := pg.ReplicaRow(ctx, d.db, l, q, &b.Pending, &b.Due, &b.OldestAt, &b.Dead, &b.ReadAt)
	return b.Capped(), err
}
