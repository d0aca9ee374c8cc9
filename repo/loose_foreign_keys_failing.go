package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// FailingRecord is a deleted parent in the queue whose children could not be cleaned, and which is tried again.
type FailingRecord struct {
	Partition int64 `json:"partition"`
	ID        int64 `json:"id"`
	// Table is the recorded name, with its schema; Key that of the deleted row.
	Table string `json:"table"`
	Key   int64  `json:"key"`
	// Definition and SQLState of the last failure; the latter is empty if a database did not answer, "absent" if no
	// configured database has the child, and [ReasonKeptByTrigger] if a trigger or rule keeps the rows.
	Definition string `json:"definition"`
	SQLState   string `json:"sqlstate"`
	// Failures are those known to be this record's own: the tenth makes it a dead one. Setbacks are all, also those of
	// statements that others shared, locks that were waited for too long, and absent children.
	Failures int `json:"failures"`
	Setbacks int `json:"setbacks"`
	// FailedAt is when it failed last. It is due again from NextTry on: nil is now.
	FailedAt time.Time  `json:"failed_at"`
	NextTry  *time.Time `json:"next_try"`
}

// failingRecordsSQL begins at the failures, which are few, and finds their records by the queue's primary key.
const failingRecordsSQL = `
SELECT q.partition, q.id, q.fully_qualified_table_name, q.primary_key_value, x.last_definition, x.sqlstate, x.failures, x.setbacks,
  x.failed_at, q.consume_after
FROM maintenance.record_failures x JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
WHERE (x.partition, x.record_id) > ($1, $2) AND q.status = 1
  AND ($3::text = '' OR q.fully_qualified_table_name IN ($3, current_schema() || '.' || $3))
ORDER BY x.partition, x.record_id LIMIT $4`

// FailingRecords reads up to limit records of the queue that have failed, behind the one given, by partition and id: all, or
// those of a table, with or without the application schema. Where there is no queue there are none.
func (d *Database) FailingRecords(ctx context.Context, table string, after FailingRecord, limit int) ([]FailingRecord, error) {
	queue, err := d.Queue(ctx)
	if err != nil || !queue.Exists {
		return nil, err
	}
	q := newQuery("list failing records", fill(failingRecordsSQL, "{queue}", queue.sql),
		after.Partition, after.ID, table, limit)
	return collect(ctx, d, q, pgx.RowToStructByPos[FailingRecord])
}

const failingDefinitionsSQL = `
SELECT d.name FROM unnest($1::text[]) AS d (name)
WHERE EXISTS (
  SELECT FROM maintenance.record_failures x JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
  WHERE x.last_definition = d.name AND x.failures > 0 AND q.status = 1)`

// FailingDefinitions are those of some definitions that records have failed of by themselves, which are tried again.
func (d *Database) FailingDefinitions(ctx context.Context, q Queue, definitions []string, l Limits) ([]string, error) {
	return readRows(ctx, d, l, newQuery("look for failing definitions", fill(failingDefinitionsSQL, "{queue}", q.sql), definitions), pgx.RowTo[string])
}
