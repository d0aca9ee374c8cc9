package lfk

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// The spans (W3C) in which the application has deleted rows are stored beside the records, so that
// batches link to the spans of their records. Reading them creates no spans.

const hasRecordTracesSQL = `SELECT EXISTS (SELECT FROM maintenance.record_traces)`

// HasRecordTraces reports whether any record was recorded with its span.
func (d Queue) HasRecordTraces(ctx context.Context) (has bool, err error) {
	err = pg.QueryRow(spans.Untraced(ctx), d.db, "find trace IDs of records", []any{&has}, hasRecordTracesSQL)
	return has, err
}

const recordTracesSQL = `
SELECT DISTINCT t.traceparent
FROM unnest($1::bigint[], $2::text[]::bigint[]) AS r (partition, id)
JOIN maintenance.record_traces t ON t.partition = r.partition AND t.record_id = r.id
LIMIT $3`

// RecordTraces returns the spans (W3C) in which the rows of some records were deleted, each once,
// at most limit.
func (d Queue) RecordTraces(
	ctx context.Context, records []Record, limit int, l fencing.Limits,
) ([]string, error) {
	read := pg.NewQuery("read trace IDs of records", recordTracesSQL,
		append(recordArrays(byQueue(records, queueOf)[0]), limit)...)
	return pg.ReadRows(spans.Untraced(ctx), d.db, l, read, pgx.RowTo[string])
}
