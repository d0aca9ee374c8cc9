package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The fates of records. Each names records by (partition, id) and touches pending ones only: a
// record with another status belongs to another system. IS TRUE keeps the planner to the primary
// key: without statistics it takes the index of the pending ones for a small one and reads all of
// it. All return how many records they changed.

// recordArrays are the parameters partitions, ids.
func recordArrays(records []Record) []any {
	partitions, ids := make([]int64, len(records)), make([]int64, len(records))
	for i, r := range records {
		partitions[i], ids[i] = r.Partition, r.ID
	}
	return []any{partitions, ids}
}

// ForgetSQL follows a CTE named deleted, with the partition and id of deleted records, and removes what
// is kept beside them.
const ForgetSQL = `,
cleaned AS (
  DELETE FROM maintenance.record_failures x USING deleted g
  WHERE x.partition = g.partition AND x.record_id = g.id
),
untraced AS (
  DELETE FROM maintenance.record_traces x USING deleted g
  WHERE x.partition = g.partition AND x.record_id = g.id
)`

const removeRecordsSQL = `
WITH {guard},
deleted AS (
  DELETE FROM {queue} q USING guard, unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.partition, q.id
)` + ForgetSQL + `
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM deleted)`

// RemoveRecords deletes records all of whose definitions are complete.
func (d *Database) RemoveRecords(
	ctx context.Context, p Permit, q DeletedRecords, records []Record,
) (n int64, err error) {
	err = d.write(ctx, p, q.change("remove records", removeRecordsSQL, records), affected{&n})
	return n, err
}

const postponeRecordsSQL = `
WITH {guard},
changed AS (
  UPDATE {queue} q SET consume_after = now() + interval '1 minute'
  FROM guard, unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING 1
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM changed)`

// PostponeRecords postpones records by a minute whose rows somebody else holds.
func (d *Database) PostponeRecords(
	ctx context.Context, p Permit, q DeletedRecords, records []Record,
) (n int64, err error) {
	err = d.write(ctx, p, q.change("postpone records", postponeRecordsSQL, records), affected{&n})
	return n, err
}

func (q *DeletedRecords) change(operation, sql string, records []Record) query {
	return newQuery(operation, fill(sql, "{queue}", q.sql), recordArrays(records)...)
}

const chargeRecordsSQL = `
WITH {guard},
changed AS (
  UPDATE {queue} q
  SET cleanup_attempts = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3
        THEN coalesce(q.cleanup_attempts, 0) + 1 ELSE 0 END,
      consume_after = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3
        THEN q.consume_after ELSE now() + interval '5 minutes' END
  FROM guard, unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.cleanup_attempts
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM changed WHERE cleanup_attempts > 0),
  (SELECT count(*) FROM changed WHERE cleanup_attempts = 0)`

// ChargeRecords counts an attempt for records that a limit left incomplete; the fourth postpones
// the record by five minutes and starts again at 0.
func (d *Database) ChargeRecords(
	ctx context.Context, p Permit, q DeletedRecords, records []Record,
) (incremented, rescheduled int64, err error) {
	err = d.write(ctx, p, q.change("count attempts", chargeRecordsSQL, records),
		affected{&incremented}, affected{&rescheduled})
	return incremented, rescheduled, err
}

// RecordFailure is a record that a definition failed for.
type RecordFailure struct {
	Record
	// Isolated failures are known to be this record's own; only they count towards dead.
	Isolated bool
	// Definition, SQLState and Message of the failure.
	Definition, SQLState, Message string
}

// DeadAfter is the number of isolated failures that moves a record to maintenance.dead_records.
const DeadAfter = 10

const failRecordsSQL = `
WITH {guard},
failed AS MATERIALIZED (
  SELECT r.partition, r.id, r.definition, r.sqlstate, r.message, coalesce(x.setbacks, 0) + 1 AS setbacks,
    coalesce(x.failures, 0) + r.isolated::int AS failures
  FROM guard, unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::text[], $5::text[], $6::text[])
    AS r (partition, id, isolated, definition, sqlstate, message)
  LEFT JOIN maintenance.record_failures x ON x.partition = r.partition AND x.record_id = r.id
),
postponed AS (
  UPDATE {queue} q
  SET consume_after =
    now() + least(interval '1 minute' * 2 ^ least(r.setbacks - 1, 10), interval '1 hour')
  FROM failed r
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE AND r.failures < $7
  RETURNING q.partition, q.id
),
noted AS (
  INSERT INTO maintenance.record_failures AS x
    (partition, record_id, failures, setbacks, last_definition, sqlstate, failed_at)
  SELECT r.partition, r.id, r.failures, r.setbacks, r.definition, r.sqlstate, now()
  FROM failed r JOIN postponed USING (partition, id)
  ON CONFLICT (partition, record_id) DO UPDATE
  SET failures = EXCLUDED.failures, setbacks = EXCLUDED.setbacks,
      -- The operator's decision outlasts failures.
      sqlstate = CASE x.sqlstate WHEN '` + ReasonKeyApproved + `' THEN x.sqlstate ELSE EXCLUDED.sqlstate END,
      last_definition = EXCLUDED.last_definition, failed_at = EXCLUDED.failed_at
),
deleted AS (
  DELETE FROM {queue} q USING failed r
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE AND r.failures >= $7
  RETURNING q.partition, q.id, q.fully_qualified_table_name, q.primary_key_value,
    {key_values} AS key_values, q.created_at
),
moved_to_dead AS (
  INSERT INTO maintenance.dead_records
    (fully_qualified_table_name, primary_key_value, key_values, definition, sqlstate, message,
     failures, recorded_at)
  SELECT d.fully_qualified_table_name, d.primary_key_value, d.key_values, r.definition,
    r.sqlstate, r.message, r.failures, d.created_at
  FROM deleted d JOIN failed r USING (partition, id)
)` + ForgetSQL + `
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM postponed), (SELECT count(*) FROM deleted)`

// FailRecords records failures: the record is postponed by a minute, doubled with every setback up
// to an hour; the tenth isolated failure moves it to maintenance.dead_records.
func (d *Database) FailRecords(
	ctx context.Context, p Permit, q DeletedRecords, failures []RecordFailure,
) (rescheduled, dead int64, err error) {
	var partitions, ids []int64
	var isolated []bool
	var definitions, states, messages []string
	for _, x := range failures {
		partitions, ids = append(partitions, x.Partition), append(ids, x.ID)
		isolated = append(isolated, x.Isolated)
		definitions = append(definitions, x.Definition)
		states, messages = append(states, x.SQLState), append(messages, x.Message)
	}
	fail := newQuery("record failures", q.fill(failRecordsSQL),
		partitions, ids, isolated, definitions, states, messages, DeadAfter)
	err = d.write(ctx, p, fail, affected{&rescheduled}, affected{&dead})
	return rescheduled, dead, err
}

// FailingRecord is a deleted parent in the queue whose children could not be cleaned, and which is
// tried again.
type FailingRecord struct {
	Partition int64 `json:"partition"`
	ID        int64 `json:"id"`
	// Table is the recorded name, with its schema; the key is that of the deleted row.
	Table string `json:"table"`
	RecordKey
	// Definition and SQLState of the last failure; the latter is empty if a database did not answer,
	// "absent" if no configured database has the child, [ReasonKeptByTrigger] if a trigger or rule
	// keeps the rows, and [ReasonKeyMismatch] if the definition has another key.
	Definition string `json:"definition"`
	SQLState   string `json:"sqlstate"`
	// Failures are those known to be this record's own: the tenth makes it a dead one. Setbacks are
	// all, also those of statements that others shared, locks that were waited for too long, and
	// absent children.
	Failures int `json:"failures"`
	Setbacks int `json:"setbacks"`
	// FailedAt is when it failed last. It is due again from NextTry on: nil is now.
	FailedAt time.Time  `json:"failed_at"`
	NextTry  *time.Time `json:"next_try"`
}

// failingRecordsSQL begins at the failures, which are few, and finds their records by the queue's
// primary key.
const failingRecordsSQL = `
SELECT q.partition, q.id, q.fully_qualified_table_name, {key_number}, {key_values},
  x.last_definition, x.sqlstate, x.failures, x.setbacks, x.failed_at, q.consume_after
FROM maintenance.record_failures x
JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
WHERE (x.partition, x.record_id) > ($1, $2) AND q.status = 1
  AND ($3::text[] IS NULL OR q.fully_qualified_table_name = ANY ($3))
ORDER BY x.partition, x.record_id LIMIT $4`

// FailingRecords reads up to limit records of the queue that have failed, behind the one given, by
// partition and id: all, or those of a table, with or without the application schema. Where there
// is no queue there are none.
func (d *Database) FailingRecords(
	ctx context.Context, table string, after FailingRecord, limit int,
) ([]FailingRecord, error) {
	queue, err := d.DeletedRecords(ctx)
	if err != nil || !queue.Exists {
		return nil, err
	}
	q := newQuery("list failing records", queue.fill(failingRecordsSQL),
		after.Partition, after.ID, RecordedNames(table, queue.Schema), limit)
	return collect(ctx, d, q, pgx.RowToStructByPos[FailingRecord])
}

const failingDefinitionsSQL = `
SELECT d.name FROM unnest($1::text[]) AS d (name)
WHERE EXISTS (
  SELECT FROM maintenance.record_failures x
  JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
  WHERE x.last_definition = d.name AND x.failures > 0 AND q.status = 1)`

// FailingDefinitions are those of some definitions that records have failed of by themselves, which
// are tried again.
func (d *Database) FailingDefinitions(
	ctx context.Context, q DeletedRecords, definitions []string, l Limits,
) ([]string, error) {
	find := newQuery("find failing definitions", fill(failingDefinitionsSQL, "{queue}", q.sql),
		definitions)
	return readRows(ctx, d, l, find, pgx.RowTo[string])
}

// Spans (W3C) in which the application has deleted rows are kept beside the records, so that the
// batches that work on those link to them. Reading them makes no spans.

const hasRecordTracesSQL = `SELECT EXISTS (SELECT FROM maintenance.record_traces)`

// HasRecordTraces says whether any record was recorded with its span.
func (d *Database) HasRecordTraces(ctx context.Context) (has bool, err error) {
	err = d.queryRow(untraced(ctx), "find traces of records", []any{&has}, hasRecordTracesSQL)
	return has, err
}

const recordTracesSQL = `
SELECT DISTINCT t.traceparent
FROM unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
JOIN maintenance.record_traces t ON t.partition = r.partition AND t.record_id = r.id
LIMIT $3`

// RecordTraces are the spans (W3C) in which the rows of some records were deleted, each once, at
// most limit.
func (d *Database) RecordTraces(
	ctx context.Context, records []Record, limit int, l Limits,
) ([]string, error) {
	read := newQuery("read traces of records", recordTracesSQL,
		append(recordArrays(records), limit)...)
	return readRows(untraced(ctx), d, l, read, pgx.RowTo[string])
}
