package admin

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// HasRecords reports whether a table, by its recorded name, has pending or dead records in a queue of
// our own.
func HasRecords(ctx context.Context, a Admin, recorded string) (has bool, err error) {
	q, err := lfk.NewQueue(a.database).DeletedRecords(ctx)
	if err != nil || !q.Exists || !q.Managed {
		return false, err
	}
	err = a.read(ctx, "find records of "+recorded, func(ctx context.Context, tx pgx.Tx) error {
		has, err = leftRecords(ctx, tx, q, recorded, "")
		return err
	})
	return has, err
}

// discardRecordsSQL deletes up to $3 pending records of the table $2 in the partitions $1, with
// their failures and traces.
const discardRecordsSQL = `
WITH found AS MATERIALIZED (
  SELECT pending.partition, pending.id
  FROM unnest($1::bigint[]) AS leaf (number) CROSS JOIN LATERAL (
    SELECT r.partition, r.id FROM {queue} r
    WHERE r.partition = leaf.number AND r.status = 1 AND r.fully_qualified_table_name = $2
    ORDER BY r.consume_after, r.id LIMIT $3) pending
  LIMIT $3
),
deleted AS (
  DELETE FROM {queue} q USING found f
  WHERE q.partition = f.partition AND q.id = f.id AND q.status = 1
  RETURNING q.partition, q.id
)` + forgetDiscardedSQL + `
SELECT count(*) FROM deleted`

// forgetDiscardedSQL deletes the failures and traces of deleted records.
const forgetDiscardedSQL = `,
forgotten AS (
  DELETE FROM maintenance.record_failures x USING deleted g
  WHERE x.partition = g.partition AND x.record_id = g.id
),
untraced AS (
  DELETE FROM maintenance.record_traces x USING deleted g
  WHERE x.partition = g.partition AND x.record_id = g.id
)`

// discardDeadSQL deletes up to $2 dead records of the table $1.
const discardDeadSQL = `
WITH deleted AS (
  DELETE FROM maintenance.dead_records WHERE id = ANY (ARRAY(
    SELECT id FROM maintenance.dead_records
    WHERE fully_qualified_table_name = $1 ORDER BY id LIMIT $2))
  RETURNING id
)
SELECT count(*) FROM deleted`

// Discard deletes the pending and dead records of a table, by its recorded name, from a queue of our
// own. It deletes a thousand in each transaction, and returns their number, also with an error.
func Discard(ctx context.Context, a Admin, recorded string) (n int64, err error) {
	q, err := lfk.NewQueue(a.database).DeletedRecords(ctx)
	if err != nil || !q.Exists || !q.Managed {
		return 0, err
	}
	pending := fill(discardRecordsSQL, "{queue}", quotedQueue(q))
	for deleted := int64(1); deleted > 0; n += deleted {
		err = a.write(ctx, "delete records", func(ctx context.Context, tx pgx.Tx) error {
			var dead int64
			err := tx.QueryRow(ctx, pending, q.Partitions, recorded, retryBatch).Scan(&deleted)
			if err == nil {
				err = tx.QueryRow(ctx, discardDeadSQL, recorded, retryBatch).Scan(&dead)
			}
			deleted += dead
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
