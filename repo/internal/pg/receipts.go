package pg

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Receipts: whatever changes rows of the application leaves a row in maintenance.receipts of their
// database, in the same transaction. The rows are a chain: the hash of each covers the one before.
//
// The head of the chain is one row, which those who write receipts lock one after the other. It is
// locked last, by a statement of its own behind all others of its transaction and their triggers:
// whoever holds it waits for nobody, so there are no deadlocks, and it is held for hardly more than
// the commit. (Constraints of the application that are deferred to the commit may wait then; should
// that be a deadlock, PostgreSQL ends one of the two, which is tried again.)

// Actions of receipts.
const (
	ReceiptDeleted   = "deleted"
	ReceiptUpdated   = "updated"
	ReceiptNullified = "nullified"
)

// Receipt is of what one statement changes.
type Receipt struct {
	Table, Action, Rule string
}

// KeyOfSQL is SQL for the primary key of the table c as the statement that changes t can return it:
// an integer, or else text. "" if there is none.
const KeyOfSQL = `coalesce((
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

// SummarySQL sums up the rows of the CTE changed, whose keys are key: their number, the lowest and
// the highest key, and the digest over all of them in their order, as PostgreSQL writes a list of
// them. It is NULL if there are none.
const SummarySQL = `(
  SELECT ARRAY[
    cardinality(k.keys)::text, k.keys[1]::text, k.keys[cardinality(k.keys)]::text,
    encode(sha256(convert_to(k.keys::text, getdatabaseencoding())), 'hex'), {kept}]
  FROM (SELECT array_agg(key ORDER BY {order}) AS keys FROM changed WHERE {counted}) k
  WHERE k.keys IS NOT NULL)`

// ReceiptSQL hands the summary to the statement that writes the receipt, and is true.
const ReceiptSQL = `length(set_config('caretaker.receipt', coalesce(` + SummarySQL + `::text, ''), true)) >= 0`

// Summary puts the key that changed returns, and a condition on its rows, into a statement that
// has one of the two above.
func Summary(d *Database, sql, key, counted string) string {
	// Not NULL: with array_nulls off its text form is no NULL any more.
	kept, order := "''", "key"
	if d.KeepKeys {
		kept = "k.keys::text"
	}
	if strings.HasSuffix(key, "::text") {
		order = `key COLLATE "C"`
	}
	return stmt.Fill(sql, "{kept}", kept, "{order}", order, "{counted}", counted)
}

// ReceiptFieldsSQL is what a hash covers of the receipt d besides the hash before it. The text form
// of a list quotes what must be, and tells NULL from a text: no two receipts have the same.
const ReceiptFieldsSQL = `convert_to(ARRAY[
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

// Write is the statement that writes a receipt of a summary; nil: that of the statement before.
func (r Receipt) Write(by fencing.Source, summary []*string) stmt.Statement {
	run, job := by.IDs()
	sql := stmt.Fill(writeReceiptSQL, "{fields}", stmt.Fill(ReceiptFieldsSQL, "{next}", "(h.sequence + 1)"))
	return stmt.Statement{SQL: sql, Args: []any{
		run, job, by.Worker, r.Table, r.Action, r.Rule, by.RequestedBy, summary,
	}}
}

// Changing is a transaction of several statements that notes what they change. The receipts are
// written at its end.
type Changing struct {
	pgx.Tx
	Database *Database
	rule     string
	noted    []noted
	// changed are the tables in which rows were to change.
	changed []string
	journal
}

// noted is what a statement has changed.
type noted struct {
	Receipt
	summary []*string
}

// RowChange is a statement of a transaction that changes rows of a table.
type RowChange struct {
	Table, Action string
	// sql changes rows, and has no RETURNING; key is what it can return of each row.
	SQL, Key string
	Args     []any
}

const changedRowsSQL = `
WITH changed AS ({change} RETURNING {returned} AS key)
SELECT (SELECT count(*) FROM changed), {summary}`

// Change changes rows, says how many, and notes them.
func (tx *Changing) Change(ctx context.Context, c RowChange) (rows int64, err error) {
	sql := stmt.Fill(changedRowsSQL, "{change}", c.SQL, "{returned}", c.Key, "{summary}", SummarySQL)
	var summary []*string
	err = tx.QueryRow(ctx, Summary(tx.Database, sql, c.Key, "true"), c.Args...).Scan(&rows, &summary)
	tx.Note(c.Table, c.Action, summary)
	return rows, err
}

// Note notes the summary of a statement; nil: it has changed nothing.
func (tx *Changing) Note(table, action string, summary []*string) {
	tx.Touches(table)
	if summary != nil {
		tx.noted = append(tx.noted, noted{Receipt{table, action, tx.rule}, summary})
	}
}

// queueReceipts also queues the journal of counts.
func (tx *Changing) queueReceipts(batch *pgx.Batch, by fencing.Source) {
	tx.queue(batch, by)
	for _, n := range tx.noted {
		s := n.Write(by, n.summary)
		batch.Queue(s.SQL, s.Args...)
	}
}
