package admin

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// DeadRecord is a deleted parent whose children could not be cleaned: a row of
// maintenance.dead_records.
type DeadRecord struct {
	ID int64 `json:"id"`
	// Queue is the table that the record came from. Owner is the organization, namespace, project
	// or user that the record belonged to, nil if the queue has none.
	Queue lfk.QueueName `json:"queue,omitzero"`
	Owner *int64        `json:"owner,omitempty"`
	// Table is the recorded name, with its schema. The key is that of the deleted row.
	Table string `json:"table"`
	lfk.RecordKey
	// Definition, SQLState and Message of the last failure.
	Definition string `json:"definition"`
	SQLState   string `json:"sqlstate"`
	Message    string `json:"message"`
	Failures   int    `json:"failures"`
	// RecordedAt is the time of the deletion, DeadAt the time when the record was declared dead.
	RecordedAt time.Time `json:"recorded_at"`
	DeadAt     time.Time `json:"dead_at"`
}

// deadRecordMatchSQL matches all records, one by its id ($2), or those of a table under one of its
// names ($3).
const deadRecordMatchSQL = `($2::bigint IS NULL OR id = $2)
  AND ($3::text[] IS NULL OR fully_qualified_table_name = ANY ($3))`

// DeadRecordFilter selects dead records. The zero value selects all.
type DeadRecordFilter struct {
	// ID of one record, nil for any.
	ID *int64
	// Table of the records, named as [catalog.ParseTable] reads it, "" for any.
	Table string
}

const deadRecordsSQL = `
SELECT id, queue, owner, fully_qualified_table_name, CASE WHEN key_values IS NULL THEN primary_key_value END,
  key_values, definition, sqlstate, message, failures, recorded_at, dead_at
FROM maintenance.dead_records
WHERE id > $1 AND ` + deadRecordMatchSQL + ` ORDER BY id LIMIT $4`

// DeadRecords reads up to limit dead records with an id above after, by their ids.
func (a Admin) DeadRecords(
	ctx context.Context, filter DeadRecordFilter, after int64, limit int,
) (records []DeadRecord, err error) {
	var schema string
	if filter.Table != "" {
		if schema, err = a.database.ApplicationSchema(ctx); err != nil {
			return nil, err
		}
	}
	err = a.read(ctx, "list dead records", func(ctx context.Context, tx pgx.Tx) error {
		records, err = list(ctx, tx, pgx.RowToStructByPos[DeadRecord], deadRecordsSQL,
			after, filter.ID, catalog.RecordedNames(filter.Table, schema), limit)
		return err
	})
	return records, err
}

// retryBatch bounds the records of one transaction.
const retryBatch = 1000

const newestDeadRecordSQL = `SELECT coalesce(max(id), 0) FROM maintenance.dead_records`

// retryRecordsSQL returns records to their queue with the time of the deletion, so that a row that
// has reused the key counts as newer. {fits} excludes records that the queue cannot take.
const retryRecordsSQL = `
WITH back AS (
  DELETE FROM maintenance.dead_records WHERE id = ANY (ARRAY(
    SELECT id FROM maintenance.dead_records
    WHERE id <= $1 AND ` + deadRecordMatchSQL + ` AND queue = {queue_name}{fits} ORDER BY id LIMIT $4 FOR UPDATE))
  RETURNING fully_qualified_table_name, primary_key_value, key_values, recorded_at, owner
)
INSERT INTO {queue} (fully_qualified_table_name, primary_key_value, created_at{retried_columns})
SELECT fully_qualified_table_name, primary_key_value, recorded_at{retried_values} FROM back`

// retrySQL is retryRecordsSQL for a table of the queue. Only a Wide queue takes keys of values.
func retrySQL(q lfk.DeletedRecords, i int, t *lfk.QueueTable) string {
	fits, columns, values := "", "", ""
	switch {
	case t.Owner() != "":
		fits, columns, values = " AND owner IS NOT NULL", ", "+t.Owner(), ", owner"
	case q.Wide:
		columns, values = ", key_values", ", key_values"
	default:
		fits = " AND key_values IS NULL"
	}
	return fill(q.Fill(i, retryRecordsSQL),
		"{fits}", fits, "{retried_columns}", columns, "{retried_values}", values)
}

// leftDeadSQL counts the dead records that no queue ($4) of the database can take.
const leftDeadSQL = `
SELECT queue, count(*), NOT queue = ANY ($4::text[]) FROM maintenance.dead_records
WHERE id <= $1 AND ` + deadRecordMatchSQL + ` GROUP BY queue ORDER BY queue LIMIT 1`

// left refuses if dead records stay because their queue is missing or cannot take their keys.
func (a Admin) left(ctx context.Context, q lfk.DeletedRecords, args ...any) error {
	var names []string
	for _, t := range q.Existing() {
		names = append(names, t.Name)
	}
	return a.read(ctx, "count dead records that cannot be retried", func(ctx context.Context, tx pgx.Tx) error {
		var queue string
		var n int64
		var missing bool
		err := tx.QueryRow(ctx, leftDeadSQL, append(args, names)...).Scan(&queue, &n, &missing)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil && missing:
			return a.refuse("%d dead records were not queued again, because their queue %s does not exist: create the "+
				"queue as GitLab's migrations do, or move the records to %s with UPDATE maintenance.dead_records SET "+
				"queue = DEFAULT WHERE queue = %s", n, queue, q.Table().Name, capture.Literal(queue))
		case err == nil:
			return a.refuse("%d dead records were not queued again, because the queue %s does "+
				"not accept their keys: run "+
				"`caretaker lfk lint`", n, queue)
		}
		return err
	})
}

// RetryDeadRecords returns dead records to the queue. It returns their number, also with an error.
// It moves a thousand in each transaction. A record that dies again meanwhile stays dead. Records
// that no queue takes are a [*RefusedError].
func (a Admin) RetryDeadRecords(ctx context.Context, filter DeadRecordFilter) (n int64, err error) {
	q, err := lfk.NewQueue(a.database).DeletedRecordsShape(ctx)
	if err != nil {
		return 0, err
	}
	if !q.Exists {
		return 0, a.refuse("no queue of deleted parents found: run `caretaker lfk install`")
	}
	var newest int64
	err = a.read(ctx, "find the newest dead record", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, newestDeadRecordSQL).Scan(&newest)
	})
	names := catalog.RecordedNames(filter.Table, q.Schema)
	for i, t := range q.Existing() {
		sql := retrySQL(q, i, t)
		for moved := int64(1); moved > 0 && err == nil; n += moved {
			moved = 0
			err = a.write(ctx, "queue dead records again", func(ctx context.Context, tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, sql, newest, filter.ID, names, retryBatch)
				moved = tag.RowsAffected()
				return err
			})
			if err != nil {
				moved = 0
			}
		}
	}
	if err == nil {
		err = a.left(ctx, q, newest, filter.ID, names)
	}
	return n, err
}
