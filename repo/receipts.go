package repo

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Receipts: whatever changes rows of the application leaves a row in maintenance.receipts of their
// database, in the same transaction. The rows are a chain: the hash of each covers the one before.
//
// The head of the chain is one row, which those who write receipts lock one after the other. It is
// locked last, by a statement of its own behind all others of its transaction and their triggers:
// whoever holds it waits for nobody, so there are no deadlocks, and it is held for hardly more than
// the commit. (Constraints of the application that are deferred to the commit may wait then; should
// that be a deadlock, PostgreSQL ends one of the two, which is tried again.)

// Source is who changes rows, as receipts have it.
type Source struct {
	// RunID is the run's, JobID the job's: one of them is empty.
	RunID string
	JobID int64
	// Worker is the worker, or the kind of the job.
	Worker string
	// RequestedBy is who asked for the run, or for the one that queued the job.
	RequestedBy string
}

// ids are those of the run and the job, nil for the one that there is not.
func (s Source) ids() (run *string, job *int64) {
	if s.RunID != "" {
		run = &s.RunID
	}
	if s.JobID != 0 {
		job = &s.JobID
	}
	return run, job
}

// Actions of receipts.
const (
	receiptDeleted   = "deleted"
	receiptUpdated   = "updated"
	receiptNullified = "nullified"
)

// receipt is of what one statement changes.
type receipt struct {
	table, action, rule string
}

// keyOfSQL is SQL for the primary key of the table c as the statement that changes t can return it:
// an integer, or else text. "" if there is none.
const keyOfSQL = `coalesce((
    SELECT CASE
      WHEN count(*) > 1 THEN 'ROW(' || string_agg(format('t.%I', k.attname), ', ' ORDER BY u.place) || ')::text'
      WHEN bool_and(k.atttypid IN ('bigint'::regtype, 'integer'::regtype, 'smallint'::regtype))
        THEN min(format('t.%I', k.attname))
      ELSE min(format('t.%I::text', k.attname)) END
    FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY u (n, place)
    CROSS JOIN LATERAL (
      SELECT a.attname, a.atttypid FROM pg_attribute a
      WHERE a.attrelid = i.indrelid AND a.attnum = u.n OFFSET 0) k
    WHERE i.indrelid = c.oid AND i.indisprimary AND u.place <= i.indnkeyatts
    HAVING count(*) > 0), '')`

// summarySQL sums up the rows of the CTE changed, whose keys are key: their number, the lowest and
// the highest key, and the digest over all of them in their order, as PostgreSQL writes a list of
// them. It is NULL if there are none.
const summarySQL = `(
  SELECT ARRAY[
    cardinality(k.keys)::text, k.keys[1]::text, k.keys[cardinality(k.keys)]::text,
    encode(sha256(convert_to(k.keys::text, getdatabaseencoding())), 'hex'), {kept}]
  FROM (SELECT array_agg(key ORDER BY {order}) AS keys FROM changed WHERE {counted}) k
  WHERE k.keys IS NOT NULL)`

// receiptSQL hands the summary to the statement that writes the receipt, and is true.
const receiptSQL = `length(set_config('caretaker.receipt', coalesce(` + summarySQL + `::text, ''), true)) >= 0`

// summary puts the key that changed returns, and a condition on its rows, into a statement that
// has one of the two above.
func (d *Database) summary(sql, key, counted string) string {
	// Not NULL: with array_nulls off its text form is no NULL any more.
	kept, order := "''", "key"
	if d.KeepKeys {
		kept = "k.keys::text"
	}
	if strings.HasSuffix(key, "::text") {
		order = `key COLLATE "C"`
	}
	return fill(sql, "{kept}", kept, "{order}", order, "{counted}", counted)
}

// receiptFieldsSQL is what a hash covers of the receipt d besides the hash before it. The text form
// of a list quotes what must be, and tells NULL from a text: no two receipts have the same.
const receiptFieldsSQL = `convert_to(ARRAY[
    {next}::text, extract(epoch FROM d.at)::text, d.run_id::text,
    d.job_id::text, d.worker, d."table", d.action, d.rule, d.rows::text, d.lowest_key,
    d.highest_key, encode(d.keys_digest, 'hex'), (d.keys IS NOT NULL)::text, d.requested_by
  ]::text, getdatabaseencoding())`

// writeReceiptSQL writes the receipt of a summary: $8, or that of the statement before. Whoever
// waits for the head goes on from the newest one. Without a head it fails, for want of a sequence.
const writeReceiptSQL = `
WITH summary AS MATERIALIZED (
  SELECT coalesce($8::text[], nullif(current_setting('caretaker.receipt', true), '')::text[]) AS of
),
d AS MATERIALIZED (
  SELECT clock_timestamp() AS at, $1::uuid AS run_id, $2::bigint AS job_id, $3::text AS worker,
    $4::text AS "table", $5::text AS action, $6::text AS rule, $7::text AS requested_by,
    of[1]::bigint AS rows, of[2] AS lowest_key, of[3] AS highest_key,
    decode(of[4], 'hex') AS keys_digest, nullif(of[5], '')::text[] AS keys
  FROM summary
  WHERE of IS NOT NULL AND set_config('lock_timeout', '0', true) = '0'
),
head AS (
  UPDATE maintenance.receipt_head h
  SET sequence = h.sequence + 1, hash = sha256(h.hash || {fields})
  FROM d WHERE h.only_row
  RETURNING h.sequence, h.hash
)
INSERT INTO maintenance.receipts (
  sequence, at, run_id, job_id, worker, "table", action, rule, rows, lowest_key, highest_key,
  keys_digest, keys, requested_by, hash)
SELECT head.sequence, d.at, d.run_id, d.job_id, d.worker, d."table", d.action, d.rule, d.rows,
  d.lowest_key, d.highest_key, d.keys_digest, d.keys, d.requested_by, head.hash
FROM d LEFT JOIN head ON true`

// write is the statement that writes a receipt of a summary; nil: that of the statement before.
func (r receipt) write(by Source, summary []*string) statement {
	run, job := by.ids()
	sql := fill(writeReceiptSQL, "{fields}", fill(receiptFieldsSQL, "{next}", "(h.sequence + 1)"))
	return statement{sql, []any{
		run, job, by.Worker, r.table, r.action, r.rule, by.RequestedBy, summary,
	}}
}

// changing is a transaction of several statements that notes what they change. The receipts are
// written at its end.
type changing struct {
	pgx.Tx
	database *Database
	rule     string
	noted    []noted
	// changed are the tables in which rows were to change.
	changed []string
	journal
}

// noted is what a statement has changed.
type noted struct {
	receipt
	summary []*string
}

// rowChange is a statement of a transaction that changes rows of a table.
type rowChange struct {
	table, action string
	// sql changes rows, and has no RETURNING; key is what it can return of each row.
	sql, key string
	args     []any
}

const changedRowsSQL = `
WITH changed AS ({change} RETURNING {returned} AS key)
SELECT (SELECT count(*) FROM changed), {summary}`

// change changes rows, says how many, and notes them.
func (tx *changing) change(ctx context.Context, c rowChange) (rows int64, err error) {
	sql := fill(changedRowsSQL, "{change}", c.sql, "{returned}", c.key, "{summary}", summarySQL)
	var summary []*string
	err = tx.QueryRow(ctx, tx.database.summary(sql, c.key, "true"), c.args...).Scan(&rows, &summary)
	tx.note(c.table, c.action, summary)
	return rows, err
}

// note notes the summary of a statement; nil: it has changed nothing.
func (tx *changing) note(table, action string, summary []*string) {
	tx.touches(table)
	if summary != nil {
		tx.noted = append(tx.noted, noted{receipt{table, action, tx.rule}, summary})
	}
}

// queueReceipts also queues the journal of counts.
func (tx *changing) queueReceipts(batch *pgx.Batch, by Source) {
	tx.queue(batch, by)
	for _, n := range tx.noted {
		s := n.write(by, n.summary)
		batch.Queue(s.sql, s.args...)
	}
}
