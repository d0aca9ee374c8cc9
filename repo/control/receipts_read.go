package control

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Receipt is the record of one statement that has changed rows of one table.
type Receipt struct {
	Sequence int64
	At       time.Time
	// Source is the run or job that changed them.
	fencing.Source
	Table, Action, Rule string
	Rows                int64
	// LowestKey and HighestKey are "" if the table has no key. Keys are empty unless they were stored.
	// KeysDigest and Hash are hexadecimal.
	LowestKey, HighestKey, KeysDigest string
	Keys                              []string
	Hash                              string
}

// ReceiptFilter selects receipts.
type ReceiptFilter struct {
	// Table, Key and RunID are "" for all, JobID is 0 for all. Key selects the receipts that name it
	// or, if keys are not stored, those whose range of keys contains it.
	Table, Key, RunID string
	JobID             int64
	// Worker is a worker or the kind of a job, "" for all.
	Worker string
	// Since and Until bound the times: Since inclusive, Until exclusive. Zero means no bound.
	Since, Until time.Time
	// Before is the sequence at which the page ends, exclusive. 0 starts at the newest.
	Before int64
	// Limit is the maximum number of receipts.
	Limit int
}

// receiptScan is the number of receipts that one search for a key examines.
const receiptScan = 10_000

// pageKeys is the maximum number of keys of a page, apart from those of its first receipt.
const pageKeys = 100_000

// receiptSlack is how much later the time of a receipt may be than that of the next one.
const receiptSlack = time.Minute

// listReceiptsSQL compares numbers as numbers, and other keys by their bytes, as receipts store them.
// If the lowest key is the greater number, the keys are texts. The first columns return how far it has
// searched, and how many receipts it has found.
const listReceiptsSQL = `
WITH page AS MATERIALIZED (
  SELECT sequence, at, run_id, job_id, worker, "table", action, rule, rows, lowest_key, highest_key,
    keys_digest, keys, requested_by, hash
  FROM maintenance.receipts
  WHERE ($1 = '' OR "table" = $1) AND ($2 = '' OR run_id = nullif($2, '')::uuid)
    AND ($3::bigint = 0 OR job_id = $3) AND sequence < $4 AND ($9 = '' OR worker = $9)
    AND ($10::timestamptz IS NULL OR at >= $10 AND sequence > coalesce(
      (SELECT r.sequence FROM maintenance.receipts r WHERE r.at < $10 - $12::interval ORDER BY r.at DESC LIMIT 1), 0))
    AND ($11::timestamptz IS NULL OR at < $11 AND sequence < coalesce(
      (SELECT r.sequence FROM maintenance.receipts r WHERE r.at >= $11 + $12::interval ORDER BY r.at LIMIT 1), 9223372036854775807))
  ORDER BY sequence DESC LIMIT $5
),
found AS (
  SELECT sequence, at, run_id, job_id, worker, "table", action, rule, rows, lowest_key, highest_key,
    keys_digest, keys, requested_by, hash,
    sum(coalesce(cardinality(keys), 0)) OVER (ORDER BY sequence DESC)
      - coalesce(cardinality(keys), 0) AS keys_before
  FROM page
  WHERE $6 = '' OR CASE
    WHEN $6 ~ '^-?[0-9]+$' AND CASE WHEN lowest_key ~ '^-?[0-9]+$' AND highest_key ~ '^-?[0-9]+$' THEN lowest_key::numeric <= highest_key::numeric END
      THEN nullif($6, '')::text::numeric BETWEEN lowest_key::numeric AND highest_key::numeric
    ELSE $6 COLLATE "C" BETWEEN lowest_key AND highest_key END
    AND (keys IS NULL OR $6 = ANY (keys))
  ORDER BY sequence DESC LIMIT $7
)
SELECT looked.last, looked.n, (SELECT count(*) FROM found), f.sequence, coalesce(f.at, now()),
  coalesce(f.run_id::text, ''), coalesce(f.job_id, 0), coalesce(f.worker, ''), coalesce(f."table", ''), coalesce(f.action, ''),
  coalesce(f.rule, ''), coalesce(f.rows, 0), coalesce(f.lowest_key, ''),
  coalesce(f.highest_key, ''), coalesce(encode(f.keys_digest, 'hex'), ''), f.keys,
  coalesce(f.requested_by, ''), coalesce(encode(f.hash, 'hex'), '')
FROM (SELECT coalesce(min(sequence), 0) AS last, count(*) AS n FROM page) looked
LEFT JOIN found f ON f.keys_before < $8
ORDER BY f.sequence DESC`

// ListReceipts reads receipts, the newest first. before is for the next page, else 0. A page of a
// key examines 10,000 receipts and may be empty even if a next page exists. A page of receipts with
// very many keys is shorter.
func (d Receipts) ListReceipts(
	ctx context.Context, f ReceiptFilter,
) (receipts []Receipt, before int64, err error) {
	scan := f.Limit
	if f.Key != "" {
		scan = max(f.Limit, receiptScan)
	}
	var last int64
	var inspected, found int
	_, err = pg.Collect(ctx, d.db, pg.NewQuery("list receipts", listReceiptsSQL, stmt.CustomPlan, f.Table, f.RunID, f.JobID,
		cmp.Or(f.Before, int64(math.MaxInt64)), scan, f.Key, f.Limit, pageKeys,
		f.Worker, orNull(f.Since), orNull(f.Until), receiptSlack),
		func(row pgx.CollectableRow) (none struct{}, err error) {
			var r Receipt
			var sequence *int64
			err = row.Scan(&last, &inspected, &found, &sequence, &r.At, &r.RunID, &r.JobID, &r.Worker,
				&r.Table, &r.Action, &r.Rule, &r.Rows, &r.LowestKey, &r.HighestKey, &r.KeysDigest, &r.Keys,
				&r.RequestedBy, &r.Hash)
			if err == nil && sequence != nil {
				r.Sequence = *sequence
				receipts = append(receipts, r)
			}
			return none, err
		})
	switch {
	case err != nil:
		return nil, 0, err
	case len(receipts) == f.Limit || len(receipts) < found:
		before = receipts[len(receipts)-1].Sequence
	case inspected == scan:
		before = last
	}
	return receipts, before, nil
}

// ReceiptHead holds both ends of a database's chain.
type ReceiptHead struct {
	// Sequence and Hash (hexadecimal) belong to the last written receipt, according to the head's own
	// row. They are 0 and "" before the first receipt.
	Sequence int64
	Hash     string
	// At is when the newest receipt was written, zero if none remains.
	At time.Time
	// PrunedSequence and PrunedHash belong to the newest pruned receipt.
	PrunedSequence int64
	PrunedHash     string
	// Newest is the highest existing sequence. It equals Sequence unless receipts were cut off.
	// Without receipts it is PrunedSequence.
	Newest int64
}

const receiptHeadSQL = `
SELECT h.sequence, encode(h.hash, 'hex'), h.pruned_sequence, encode(h.pruned_hash, 'hex'),
  coalesce((SELECT max(r.sequence) FROM maintenance.receipts r), h.pruned_sequence),
  (SELECT r.at FROM maintenance.receipts r WHERE r.sequence = h.sequence)
FROM maintenance.receipt_head h WHERE h.only_row`

// ReceiptHead reads the head of the chain, or returns [dberr.ErrNotFound].
func (d Receipts) ReceiptHead(ctx context.Context) (h ReceiptHead, err error) {
	into := []any{&h.Sequence, &h.Hash, &h.PrunedSequence, &h.PrunedHash, &h.Newest, &h.At}
	err = pg.QueryRow(ctx, d.db, "read the receipt head", into, receiptHeadSQL)
	return h, err
}

// CheckedReceipt is the result of checking one receipt together with the previous one.
type CheckedReceipt struct {
	Sequence int64
	Hash     string
	// Intact: the hash matches the fields and the previous hash. KeysIntact: the stored keys, if any,
	// match the digest.
	Intact, KeysIntact bool
}

const checkReceiptsSQL = `
SELECT d.sequence, coalesce(encode(d.hash, 'hex'), ''),
  coalesce(d.hash = sha256(d.previous || {fields}), false),
  d.keys IS NULL OR coalesce(cardinality(d.keys) = d.rows
    AND d.keys_digest = sha256(convert_to(d.keys::text, getdatabaseencoding())), false)
FROM (
  SELECT r.sequence, r.at, r.run_id, r.job_id, r.worker, r."table", r.action, r.rule, r.rows,
    r.lowest_key, r.highest_key, r.keys_digest, r.keys, r.requested_by, r.hash,
    lag(r.hash, 1, decode($2, 'hex')) OVER (ORDER BY r.sequence) AS previous
  FROM (
    SELECT sequence, at, run_id, job_id, worker, "table", action, rule, rows, lowest_key,
      highest_key, keys_digest, keys, requested_by, hash
    FROM maintenance.receipts WHERE sequence >= $1 ORDER BY sequence LIMIT $3
  ) r
) d
ORDER BY d.sequence`

// receiptPage is the number of receipts that one statement of CheckReceipts reads.
const receiptPage = 1000

// CheckReceipts reads up to 1000 receipts from a sequence on, and recomputes their hashes. hash is
// the hexadecimal hash of the receipt before the first of them.
func (d Receipts) CheckReceipts(
	ctx context.Context, from int64, hash string,
) ([]CheckedReceipt, error) {
	sql := stmt.Fill(checkReceiptsSQL, "{fields}", stmt.Fill(pg.ReceiptFieldsSQL, "{next}", "d.sequence"))
	q := pg.NewQuery("verify receipts", sql, from, hash, receiptPage)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[CheckedReceipt])
}

// pruneReceiptsSQL deletes only from the beginning of the chain, up to the first kept receipt,
// regardless of the times of later ones. It locks the head last.
const pruneReceiptsSQL = `
WITH page AS MATERIALIZED (
  SELECT sequence, at < clock_timestamp() - $1::interval AS old
  FROM maintenance.receipts ORDER BY sequence LIMIT $2
),
gone AS (
  DELETE FROM maintenance.receipts WHERE sequence = ANY (ARRAY(
    SELECT sequence FROM page WHERE sequence < coalesce(
      (SELECT min(sequence) FROM page WHERE NOT old), 9223372036854775807)))
  RETURNING sequence, hash
),
newest AS MATERIALIZED (SELECT sequence, hash FROM gone ORDER BY sequence DESC LIMIT 1),
head AS (
  UPDATE maintenance.receipt_head h SET pruned_sequence = n.sequence, pruned_hash = n.hash
  FROM newest n WHERE h.only_row AND h.pruned_sequence < n.sequence
)
SELECT (SELECT count(*) FROM gone) = $2`

// PruneReceipts deletes up to 1000 receipts older than keep from the beginning of the chain. It
// stores the hash of the last of them, and reports whether more may exist.
func (d Receipts) PruneReceipts(
	ctx context.Context, keep time.Duration,
) (more bool, err error) {
	err = pg.QueryRow(ctx, d.db, "prune receipts", []any{&more}, pruneReceiptsSQL, keep, PruneBatch)
	return more, err
}
