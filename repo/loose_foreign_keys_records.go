package repo

import (
	"context"
)

// The fates of records. Each names records by (partition, id) and touches pending ones only: a record with another
// status belongs to another system. IS TRUE keeps the planner to the primary key: without statistics it takes the index
// of the pending ones for a small one and reads all of it. All return how many records they changed.

// recordArrays are the parameters partitions, ids.
func recordArrays(records []Record) []any {
	partitions, ids := make([]int64, len(records)), make([]int64, len(records))
	for i, r := range records {
		partitions[i], ids[i] = r.Partition, r.ID
	}
	return []any{partitions, ids}
}

const removeRecordsSQL = `
WITH {guard},
removed AS (
  DELETE FROM {queue} q USING guard, unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.partition, q.id
),
forgotten AS (
  DELETE FROM maintenance.record_failures x USING removed r WHERE x.partition = r.partition AND x.record_id = r.id
),
untraced AS (
  DELETE FROM maintenance.record_traces x USING removed r WHERE x.partition = r.partition AND x.record_id = r.id
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM removed)`

// RemoveRecords deletes records all of whose definitions are complete.
func (d *Database) RemoveRecords(
	ctx context.Context, p Permit, q Queue, records []Record,
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

// PostponeRecords puts records off by a minute whose rows somebody else holds.
func (d *Database) PostponeRecords(
	ctx context.Context, p Permit, q Queue, records []Record,
) (n int64, err error) {
	err = d.write(ctx, p, q.change("postpone records", postponeRecordsSQL, records), affected{&n})
	return n, err
}

func (q Queue) change(operation, sql string, records []Record) query {
	return newQuery(operation, fill(sql, "{queue}", q.sql), recordArrays(records)...)
}

const chargeRecordsSQL = `
WITH {guard},
changed AS (
  UPDATE {queue} q
  SET cleanup_attempts = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3 THEN coalesce(q.cleanup_attempts, 0) + 1 ELSE 0 END,
      consume_after = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3 THEN q.consume_after ELSE now() + interval '5 minutes' END
  FROM guard, unnest($1::bigint[], $2::bigint[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.cleanup_attempts
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM changed WHERE cleanup_attempts > 0),
  (SELECT count(*) FROM changed WHERE cleanup_attempts = 0)`

// ChargeRecords counts an attempt for records that a limit left incomplete; the fourth puts the record off by five
// minutes and starts again at 0.
func (d *Database) ChargeRecords(
	ctx context.Context, p Permit, q Queue, records []Record,
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
  SELECT r.*, coalesce(x.setbacks, 0) + 1 AS setbacks, coalesce(x.failures, 0) + r.isolated::int AS failures
  FROM guard, unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::text[], $5::text[], $6::text[])
    AS r (partition, id, isolated, definition, sqlstate, message)
  LEFT JOIN maintenance.record_failures x ON x.partition = r.partition AND x.record_id = r.id
),
postponed AS (
  UPDATE {queue} q
  SET consume_after = now() + least(interval '1 minute' * 2 ^ least(r.setbacks - 1, 10), interval '1 hour')
  FROM failed r
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE AND r.failures < $7
  RETURNING q.partition, q.id
),
noted AS (
  INSERT INTO maintenance.record_failures AS x (partition, record_id, failures, setbacks, last_definition, sqlstate, failed_at)
  SELECT r.partition, r.id, r.failures, r.setbacks, r.definition, r.sqlstate, now()
  FROM failed r JOIN postponed USING (partition, id)
  ON CONFLICT (partition, record_id) DO UPDATE
  SET failures = EXCLUDED.failures, setbacks = EXCLUDED.setbacks, last_definition = EXCLUDED.last_definition,
      sqlstate = EXCLUDED.sqlstate, failed_at = EXCLUDED.failed_at
),
dead AS (
  DELETE FROM {queue} q USING failed r
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE AND r.failures >= $7
  RETURNING q.partition, q.id, q.fully_qualified_table_name, q.primary_key_value, q.created_at
),
buried AS (
  INSERT INTO maintenance.dead_records
    (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
  SELECT d.fully_qualified_table_name, d.primary_key_value, r.definition, r.sqlstate, r.message, r.failures, d.created_at
  FROM dead d JOIN failed r USING (partition, id)
),
forgotten AS (
  DELETE FROM maintenance.record_failures x USING dead d WHERE x.partition = d.partition AND x.record_id = d.id
),
untraced AS (
  DELETE FROM maintenance.record_traces x USING dead d WHERE x.partition = d.partition AND x.record_id = d.id
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM postponed), (SELECT count(*) FROM dead)`

// FailRecords notes failures: the record is put off by a minute, doubled with every setback up to an hour; the tenth
// isolated failure moves it to maintenance.dead_records.
func (d *Database) FailRecords(ctx context.Context, p Permit, q Queue, failures []RecordFailure) (rescheduled, dead int64, err error) {
	var partitions, ids []int64
	var isolated []bool
	var definitions, states, messages []string
	for _, x := range failures {
		partitions, ids, isolated = append(partitions, x.Partition), append(ids, x.ID), append(isolated, x.Isolated)
		definitions, states, messages = append(definitions, x.Definition), append(states, x.SQLState), append(messages, x.Message)
	}
	err = d.write(ctx, p, newQuery("note failures", fill(failRecordsSQL, "{queue}", q.sql), partitions, ids, isolated, definitions, states, messages, DeadAfter), affected{&rescheduled}, affected{&dead})
	return rescheduled, dead, err
}
