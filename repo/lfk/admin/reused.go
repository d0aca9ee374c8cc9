package admin

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// reusedRecordsSQL finds the records of a table whose key is reused, in the states $2: held or
// released.
const reusedRecordsSQL = `
reused AS MATERIALIZED (
  SELECT q.partition, q.id FROM {failures} x
  JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
  WHERE x.sqlstate = ANY ($2::text[]) AND q.status = 1
    AND q.fully_qualified_table_name = ANY ($1::text[])
  FOR UPDATE OF q
)`

// cleanReusedSQL makes the records due now, and marks their failures as approved by the operator.
const cleanReusedSQL = `
WITH ` + reusedRecordsSQL + `,
due AS (
  UPDATE {queue} q SET consume_after = now() FROM reused r
  WHERE q.partition = r.partition AND q.id = r.id
)
UPDATE {failures} x SET sqlstate = '` + reasons.KeyApproved + `' FROM reused r
WHERE x.partition = r.partition AND x.record_id = r.id`

// CleanReused lets the next run clean the children of a table's reused keys. It returns the number
// of records that become due.
func (a Admin) CleanReused(ctx context.Context, table string) (int64, error) {
	return a.decideReused(ctx, "release reused keys", cleanReusedSQL, table, reasons.KeyReused)
}

// keepReusedSQL deletes the records and, by {forget}, the failures and traces stored beside them.
const keepReusedSQL = `
WITH ` + reusedRecordsSQL + `,
deleted AS (
  DELETE FROM {queue} q USING reused r WHERE q.partition = r.partition AND q.id = r.id
  RETURNING q.partition, q.id
){forget}
SELECT FROM deleted`

// KeepReused closes the records of a table whose keys are reused, also released ones, so that the
// children stay. It returns the number of closed records.
func (a Admin) KeepReused(ctx context.Context, table string) (int64, error) {
	return a.decideReused(ctx, "close records of reused keys", keepReusedSQL, table,
		reasons.KeyReused, reasons.KeyApproved)
}

// decideReused runs sql for each existing table of the queue, all in one transaction. It returns
// the number of changed records, 0 without a queue.
func (a Admin) decideReused(
	ctx context.Context, operation, sql, table string, states ...string,
) (n int64, err error) {
	q, err := lfk.NewQueue(a.database).DeletedRecordsShape(ctx)
	if err != nil || !q.Exists {
		return 0, err
	}
	err = a.write(ctx, operation, func(ctx context.Context, tx pgx.Tx) error {
		n = 0
		for queue := range q.Existing() {
			tag, err := tx.Exec(ctx, q.Fill(queue, sql), catalog.RecordedNames(table, q.Schema), states)
			if err != nil {
				return err
			}
			n += tag.RowsAffected()
		}
		return nil
	})
	return n, err
}
