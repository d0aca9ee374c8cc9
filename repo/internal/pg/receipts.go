package pg

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Receipts: every change of the application's rows leaves a row in maintenance.receipts of the same
// database, in the same transaction. The rows are a chain: the hash of each covers the previous
// one.
//
// The head of the chain is one row, which writers of receipts lock one after the other. A separate
// statement locks it last, after all others of its transaction and their triggers. Its holder waits
// for no transaction, so no deadlock is possible, and holds it little longer than the commit.
// (Constraints of the application that are deferred to the commit may wait then. On a deadlock
// PostgreSQL ends one of the two transactions, which is retried.)

// Actions of receipts.
const (
	ReceiptDeleted   = "deleted"
	ReceiptUpdated   = "updated"
	ReceiptNullified = "nullified"
)

// Receipt describes the change of one statement.
type Receipt struct {
	Table, Action, Rule string
}

// KeyOfSQL is SQL for the primary key of the table c as the statement that changes t can return it:
// an integer, or else text. It is "" without a primary key.
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

// SummarySQL summarizes the rows of the CTE changed, whose keys are key. It returns their number,
// the lowest and highest key, the digest of all keys, and the keys if they are kept. It is NULL
// without rows.
//
// The digest of kept keys covers the sorted keys as PostgreSQL writes a list. Otherwise it covers
// the sum of the keys' hashes, which needs no sort.
const SummarySQL = summaryOfSQL + `(SELECT ` + summedSQL + ` FROM changed) k WHERE k.n > 0)`

const summaryOfSQL = `(
  SELECT ARRAY[k.n::text, k.low::text, k.high::text,
    encode(sha256(convert_to(k.covered, getdatabaseencoding())), 'hex'), {kept}]
  FROM `

// summedSQL are the aggregates of a summary. {summed} adds them to a CTE tally that counts the rows
// anyway.
const summedSQL = `count(*) FILTER (WHERE {counted}) AS n,
    min({order}) FILTER (WHERE {counted}) AS low, max({order}) FILTER (WHERE {counted}) AS high,
    {covered} AS covered`

// ReceiptSQL passes the summary to the statement that writes the receipt, and is true.
const ReceiptSQL = `length(set_config('caretaker.receipt', coalesce(` + SummarySQL + `::text, ''), true)) >= 0`

// talliedSQL is ReceiptSQL for such a CTE. {tallied} stands for it.
const talliedSQL = `length(set_config('caretaker.receipt', coalesce(` +
	summaryOfSQL + `tally k WHERE k.n > 0)::text, ''), true)) >= 0`

// Summary puts the key that changed returns, and a condition on its rows, into a statement with
// one of these constants.
func Summary(d *Database, sql, key, counted string) string {
	// Not NULL: with array_nulls off its text form no longer means NULL.
	order, hash := "key", "hashint8extended(key, 0)"
	if strings.HasSuffix(key, "::text") {
		order, hash = `key COLLATE "C"`, `hashtextextended(key COLLATE "C", 0)`
	}
	filter := " FILTER (WHERE " + counted + ")"
	kept, covered := "''", "coalesce(sum("+hash+")"+filter+", 0)::text"
	if d.KeepKeys {
		kept, covered = "k.covered", "(array_agg(key ORDER BY "+order+")"+filter+")::text"
	}
	sql = stmt.Fill(sql, "{summed}", summedSQL, "{tallied}", talliedSQL)
	return stmt.Fill(sql, "{kept}", kept, "{covered}", covered, "{order}", order, "{counted}", counted)
}

// ReceiptFieldsSQL is the part of the receipt d that a hash covers besides the previous hash. The
// text form of a list quotes where necessary, and separates NULL from a text, so
// different receipts have different texts.
const ReceiptFieldsSQL = `convert_to(ARRAY[
    {next}::text, extract(epoch FROM d.at)::text, d.run_id::text,
    d.job_id::text, d.worker, d."table", d.action, d.rule, d.rows::text, d.lowest_key,
    d.highest_key, encode(d.keys_digest, 'hex'), (d.keys IS NOT NULL)::text, d.requested_by
  ]::text, getdatabaseencoding())`

// writeReceiptSQL writes the receipt of a summary: $8, or that of the previous statement. A
// statement that waits for the head continues from the newest one. Without a head it fails: no
// sequence.
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

// Write returns the statement that writes a receipt of a summary. nil means that of the previous
// statement.
func (r Receipt) Write(by fencing.Source, summary []*string) stmt.Statement {
	run, job := by.IDs()
	sql := stmt.Fill(writeReceiptSQL, "{fields}", stmt.Fill(ReceiptFieldsSQL, "{next}", "(h.sequence + 1)"))
	return stmt.Statement{SQL: sql, Args: []any{
		run, job, by.Worker, r.Table, r.Action, r.Rule, by.RequestedBy, summary,
	}}
}

// Changing is a transaction of several statements that records what they change. It writes the
// receipts at its end.
type Changing struct {
	pgx.Tx
	Database *Database
	rule     string
	changes  []recordedChange
	// changed are the tables whose rows the transaction is to change.
	changed []string
	journal
}

// recordedChange is the change of one statement.
type recordedChange struct {
	Receipt
	summary []*string
}

// RowChange is a statement of a transaction that changes rows of a table.
type RowChange struct {
	Table, Action string
	// SQL changes rows, without RETURNING. Key is the expression that it can return for each row.
	SQL, Key string
	Args     []any
}

const changedRowsSQL = `
WITH changed AS ({change} RETURNING {returned} AS key)
SELECT (SELECT count(*) FROM changed), {summary}`

// Change changes rows, records them, and returns their number.
func (tx *Changing) Change(ctx context.Context, c RowChange) (rows int64, err error) {
	sql := stmt.Fill(changedRowsSQL, "{change}", c.SQL, "{returned}", c.Key, "{summary}", SummarySQL)
	var summary []*string
	err = tx.QueryRow(ctx, Summary(tx.Database, sql, c.Key, "true"), c.Args...).Scan(&rows, &summary)
	tx.Record(c.Table, c.Action, summary)
	return rows, err
}

// Record records the summary of a statement. nil means no change.
func (tx *Changing) Record(table, action string, summary []*string) {
	tx.Touches(table)
	if summary != nil {
		tx.changes = append(tx.changes, recordedChange{Receipt{table, action, tx.rule}, summary})
	}
}

// queueReceipts also queues the journal of counts.
func (tx *Changing) queueReceipts(batch *pgx.Batch, by fencing.Source) {
	tx.queue(batch, by)
	for _, n := range tx.changes {
		s := n.Write(by, n.summary)
		batch.Queue(s.SQL, s.Args...)
	}
}
