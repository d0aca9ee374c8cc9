package lfkadmin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// DeadRecord is a deleted parent whose children could not be cleaned: a row of
// maintenance.dead_records.
type DeadRecord struct {
	ID int64 `json:"id"`
	// Table is the recorded name, with its schema; Key that of the deleted row.
	Table string `json:"table"`
	Key   int64  `json:"key"`
	// Definition, SQLState and Message of the last failure.
	Definition string `json:"definition"`
	SQLState   string `json:"sqlstate"`
	Message    string `json:"message"`
	Failures   int    `json:"failures"`
	// RecordedAt is when the row was deleted, DeadAt when its record was given up.
	RecordedAt time.Time `json:"recorded_at"`
	DeadAt     time.Time `json:"dead_at"`
}

// deadRecordMatchSQL: all, one by its id ($2), or those of a table ($3) with or without the
// application schema.
const deadRecordMatchSQL = `($2::bigint IS NULL OR id = $2)
  AND ($3::text = '' OR fully_qualified_table_name IN ($3, current_schema() || '.' || $3))`

// DeadRecordFilter chooses dead records; the zero value is all of them.
type DeadRecordFilter struct {
	// ID of one record; nil: any.
	ID *int64
	// Table they were recorded for, with or without the application schema; "": any.
	Table string
}

const deadRecordsSQL = `
SELECT id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures,
  recorded_at, dead_at
FROM maintenance.dead_records
WHERE id > $1 AND ` + deadRecordMatchSQL + ` ORDER BY id LIMIT $4`

// DeadRecords reads up to limit dead records with an id above after, by their ids.
func (a Admin) DeadRecords(
	ctx context.Context, filter DeadRecordFilter, after int64, limit int,
) (records []DeadRecord, err error) {
	err = a.read(ctx, "list dead records", func(ctx context.Context, tx pgx.Tx) error {
		records, err = list(ctx, tx, pgx.RowToStructByPos[DeadRecord], deadRecordsSQL,
			after, filter.ID, filter.Table, limit)
		return err
	})
	return records, err
}

// retryBatch bounds the records of one transaction.
const retryBatch = 1000

const newestDeadRecordSQL = `SELECT coalesce(max(id), 0) FROM maintenance.dead_records`

// retryRecordsSQL puts records back as if the rows had just been deleted: table and key only.
const retryRecordsSQL = `
WITH back AS (
  DELETE FROM maintenance.dead_records WHERE id = ANY (ARRAY(
    SELECT id FROM maintenance.dead_records
    WHERE id <= $1 AND ` + deadRecordMatchSQL + ` ORDER BY id LIMIT $4 FOR UPDATE))
  RETURNING fully_qualified_table_name, primary_key_value
)
INSERT INTO {queue} (fully_qualified_table_name, primary_key_value)
SELECT fully_qualified_table_name, primary_key_value FROM back`

// RetryDeadRecords puts dead records back into the queue and returns how many, also with an error.
// Each is moved in one transaction, a thousand at a time; one that dies again meanwhile stays dead.
func (a Admin) RetryDeadRecords(ctx context.Context, filter DeadRecordFilter) (n int64, err error) {
	q, err := a.database.DeletedRecordsShape(ctx)
	if err != nil {
		return 0, err
	}
	if !q.Exists {
		return 0, a.refuse("there is no queue of deleted records: make it with `caretaker lfk install`")
	}
	var newest int64
	err = a.read(ctx, "find the newest dead record", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, newestDeadRecordSQL).Scan(&newest)
	})
	for moved := int64(1); moved > 0 && err == nil; n += moved {
		moved = 0
		err = a.write(ctx, "put dead records back", func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, fill(retryRecordsSQL, "{queue}", quotedQueue(q)),
				newest, filter.ID, filter.Table, retryBatch)
			moved = tag.RowsAffected()
			return err
		})
		if err != nil {
			moved = 0
		}
	}
	return n, err
}
