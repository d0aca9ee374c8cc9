package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Spans that are kept beside what they have caused, so that who works on that can link to them. Looking for them makes
// no spans.

const hasRecordTracesSQL = `SELECT EXISTS (SELECT FROM maintenance.record_traces)`

// HasRecordTraces says whether any record was noted with its span.
func (d *Database) HasRecordTraces(ctx context.Context) (has bool, err error) {
	err = d.queryRow(untraced(ctx), "look for traces of records", []any{&has}, hasRecordTracesSQL)
	return has, err
}

const recordTracesSQL = `
SELECT DISTINCT t.traceparent
FROM unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
JOIN maintenance.record_traces t ON t.partition = r.partition AND t.record_id = r.id
LIMIT $3`

// RecordTraces are the spans (W3C) in which the rows of some records were deleted, each once, at most limit.
func (d *Database) RecordTraces(ctx context.Context, records []Record, limit int, l Limits) ([]string, error) {
	return readRows(untraced(ctx), d, l, newQuery("read traces of records", recordTracesSQL, append(recordArrays(records), limit)...), pgx.RowTo[string])
}

// ProcessedByKey is the key, in the metadata of a finished job, of the span (W3C) that has worked it.
const ProcessedByKey = "processed_by"

// deletionTracesSQL: materialized, so that the index of arguments is read, and not all jobs from the newest on.
const deletionTracesSQL = `
WITH found AS MATERIALIZED (
  SELECT id, metadata ->> 'processed_by' AS span FROM maintenance.river_job
  WHERE kind = 'delete_user' AND args @> jsonb_build_object('user_id', $1::bigint) AND metadata ->> 'processed_by' IS NOT NULL
    AND metadata ->> 'outcome' = 'succeeded'
)
SELECT span FROM found ORDER BY id DESC LIMIT 3`

// DeletionTraces are the spans (W3C) of the last jobs that have sent a user to the ghost migration, as long as the queue
// remembers them.
func (d *Database) DeletionTraces(ctx context.Context, user int64, l Limits) ([]string, error) {
	return readRows(untraced(ctx), d, l, newQuery("read traces of deletions", deletionTracesSQL, user), pgx.RowTo[string])
}
