package lfk

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// Statements that end or postpone records. Each names records by (partition, id) and changes
// pending ones only: a record with another status belongs to another system. IS TRUE keeps the
// planner on the primary key. Without statistics it takes the index of the pending ones for small
// and reads all of it. All return the number of changed records.

// recordArrays returns the parameters partitions and ids.
func recordArrays(records []Record) []any {
	partitions, ids := make([]int64, len(records)), make([]string, len(records))
	for i, r := range records {
		partitions[i], ids[i] = r.Partition, r.ID
	}
	return []any{partitions, ids}
}

// forgetSQL follows a CTE named deleted, with the partition and id of deleted records, and removes
// their failures and traces. Only the queue that every trigger can write to has traces.
const (
	forgetSQL = `,
cleaned AS (
  DELETE FROM {failures} x USING deleted g WHERE x.partition = g.partition AND x.record_id = g.id
)`
	untracedSQL = `,
untraced AS (
  DELETE FROM maintenance.record_traces x USING deleted g
  WHERE x.partition = g.partition AND x.record_id = g.id
)`
)

// byQueue groups records by their table. Most runs have one group.
func byQueue[R any](records []R, queue func(R) int) (groups [][]R) {
	groups = make([][]R, len(QueueTables()))
	for _, r := range records {
		i := queue(r)
		groups[i] = append(groups[i], r)
	}
	return groups
}

func queueOf(r Record) int { return r.Queue }

// changeRecords changes records of one or several tables of the queue, all or none: one key can
// have records in several, which end together. statement returns the SQL for those of one table.
// counts are its results after the guard, 0 if it fails: its rows come before its commit.
func changeRecords[R any](
	ctx context.Context, d *pg.Database, p fencing.Permit, records [][]R, counts []*int64,
	statement func(queue int, records []R) pg.Query,
) (err error) {
	defer func() {
		for i := 0; err != nil && i < len(counts); i++ {
			*counts[i] = 0
		}
	}()
	var changes []pg.Query
	for queue, some := range records {
		if len(some) > 0 {
			change := statement(queue, some)
			change.Table = QueueTables()[queue]
			changes = append(changes, change)
		}
	}
	if len(changes) == 1 {
		var into []any
		for _, n := range counts {
			into = append(into, spans.Affected{Rows: n})
		}
		return pg.Write(ctx, d, p, changes[0], into...)
	}
	if len(changes) == 0 {
		return nil
	}
	return pg.Transaction(ctx, d, changes[0].Operation, p, func(ctx context.Context, tx *pg.Changing) error {
		for _, n := range counts {
			*n = 0
		}
		for _, change := range changes {
			var held bool
			into, some := []any{&held}, [2]int64{}
			for i := range counts {
				into = append(into, &some[i])
			}
			tx.Touches(change.Table)
			s := p.Fill(change.Statement)
			if err := tx.QueryRow(ctx, s.SQL, s.Args...).Scan(into...); err != nil {
				return err
			}
			for i, n := range counts {
				*n += some[i]
			}
		}
		return nil
	})
}

const removeRecordsSQL = `
WITH {guard},
deleted AS (
  DELETE FROM {queue} q USING guard, unnest($1::bigint[], $2::text[]::{id}[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.partition, q.id
){forget}{journal}
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM deleted)`

// RemoveRecords deletes records whose definitions are all complete.
func (d Queue) RemoveRecords(
	ctx context.Context, p fencing.Permit, q DeletedRecords, records []Record,
) (n int64, err error) {
	err = q.change(ctx, d.db, p, "remove records", removeRecordsSQL, "('processed_records', (SELECT count(*) FROM deleted))", records, &n)
	return n, err
}

// CloseRecords deletes records whose rows exist.
func (d Queue) CloseRecords(
	ctx context.Context, p fencing.Permit, q DeletedRecords, records []Record,
) (n int64, err error) {
	err = q.change(ctx, d.db, p, "remove records", removeRecordsSQL, "('obsolete_records', (SELECT count(*) FROM deleted))", records, &n)
	return n, err
}

const postponeRecordsSQL = `
WITH {guard},
changed AS (
  UPDATE {queue} q SET consume_after = now() + interval '1 minute'
  FROM guard, unnest($1::bigint[], $2::text[]::{id}[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM changed)`

// PostponeRecords postpones records by a minute because another transaction locks their rows.
func (d Queue) PostponeRecords(
	ctx context.Context, p fencing.Permit, q DeletedRecords, records []Record,
) (n int64, err error) {
	err = q.change(ctx, d.db, p, "postpone records", postponeRecordsSQL, "('rescheduled_records', (SELECT count(*) FROM changed))", records, &n)
	return n, err
}

func (q *DeletedRecords) change(
	ctx context.Context, d *pg.Database, p fencing.Permit, operation, sql, journal string, records []Record, counts ...*int64,
) error {
	return changeRecords(ctx, d, p, byQueue(records, queueOf), counts,
		func(queue int, some []Record) pg.Query {
			return pg.NewQuery(operation, pg.Journaled(q.Fill(queue, sql), journal, 3),
				append(recordArrays(some), p.RunID)...)
		})
}

const chargeRecordsSQL = `
WITH {guard},
changed AS (
  UPDATE {queue} q
  SET cleanup_attempts = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3
        THEN coalesce(q.cleanup_attempts, 0) + 1 ELSE 0 END,
      consume_after = CASE WHEN coalesce(q.cleanup_attempts, 0) < 3
        THEN q.consume_after ELSE now() + interval '5 minutes' END
  FROM guard, unnest($1::bigint[], $2::text[]::{id}[]) AS r (partition, id)
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE
  RETURNING q.cleanup_attempts
){journal}
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM changed WHERE cleanup_attempts > 0),
  (SELECT count(*) FROM changed WHERE cleanup_attempts = 0)`

// ChargeRecords counts an attempt for records that a limit left incomplete. The fourth postpones
// the record by five minutes and resets the count to 0.
func (d Queue) ChargeRecords(
	ctx context.Context, p fencing.Permit, q DeletedRecords, records []Record,
) (incremented, rescheduled int64, err error) {
	err = q.change(ctx, d.db, p, "count attempts", chargeRecordsSQL,
		"('incremented_records', (SELECT count(*) FROM changed WHERE cleanup_attempts > 0)), "+
			"('rescheduled_records', (SELECT count(*) FROM changed WHERE cleanup_attempts = 0))",
		records, &incremented, &rescheduled)
	return incremented, rescheduled, err
}

// RecordFailure is a record that a definition failed for.
type RecordFailure struct {
	Record
	// Isolated failures are known to be this record's own. Only they count towards dead.
	Isolated bool
	// Definition, SQLState and Message of the failure.
	Definition, SQLState, Message string
}

// DeadAfter is the number of isolated failures that moves a record to maintenance.dead_records.
const DeadAfter = 10

// failRecordsSQL treats an older failure as that of another record, like claimsSQL. Then
// EXCLUDED.setbacks is 1.
const failRecordsSQL = `
WITH {guard},
failed AS MATERIALIZED (
  SELECT r.partition, r.id, r.definition, r.sqlstate, r.message, coalesce(x.setbacks, 0) + 1 AS setbacks,
    coalesce(x.failures, 0) + r.isolated::int AS failures
  FROM guard, unnest($1::bigint[], $2::text[]::{id}[], $3::boolean[], $4::text[], $5::text[], $6::text[])
    AS r (partition, id, isolated, definition, sqlstate, message)
  LEFT JOIN {queue} q ON q.partition = r.partition AND q.id = r.id
  LEFT JOIN {failures} x ON x.partition = q.partition AND x.record_id = q.id AND x.failed_at >= q.created_at
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
  INSERT INTO {failures} AS x
    (partition, record_id, failures, setbacks, last_definition, sqlstate, failed_at)
  SELECT r.partition, r.id, r.failures, r.setbacks, r.definition, r.sqlstate, now()
  FROM failed r JOIN postponed USING (partition, id)
  ON CONFLICT (partition, record_id) DO UPDATE
  SET failures = EXCLUDED.failures, setbacks = EXCLUDED.setbacks,
      -- The operator's decision outlasts failures.
      sqlstate = CASE WHEN x.sqlstate = '` + reasons.KeyApproved + `' AND EXCLUDED.setbacks > 1
        THEN x.sqlstate ELSE EXCLUDED.sqlstate END,
      last_definition = EXCLUDED.last_definition, failed_at = EXCLUDED.failed_at
),
deleted AS (
  DELETE FROM {queue} q USING failed r
  WHERE q.partition = r.partition AND q.id = r.id AND (q.status = 1) IS TRUE AND r.failures >= $7
  RETURNING q.partition, q.id, q.fully_qualified_table_name, q.primary_key_value,
    {key_values} AS key_values, q.created_at, {owner} AS owner
),
moved_to_dead AS (
  INSERT INTO maintenance.dead_records
    (fully_qualified_table_name, primary_key_value, key_values, definition, sqlstate, message,
     failures, recorded_at, queue, owner)
  SELECT d.fully_qualified_table_name, d.primary_key_value, d.key_values, r.definition,
    r.sqlstate, r.message, r.failures, d.created_at, {queue_name}, d.owner
  FROM deleted d JOIN failed r USING (partition, id)
){forget}{journal}
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM postponed), (SELECT count(*) FROM deleted)`

// FailRecords records failures and postpones the record: by a minute, doubled with every setback up
// to an hour. The tenth isolated failure moves it to maintenance.dead_records.
func (d Queue) FailRecords(
	ctx context.Context, p fencing.Permit, q DeletedRecords, failures []RecordFailure,
) (rescheduled, dead int64, err error) {
	err = changeRecords(ctx, d.db, p, byQueue(failures, func(f RecordFailure) int { return f.Queue }),
		[]*int64{&rescheduled, &dead}, func(queue int, some []RecordFailure) pg.Query {
			var partitions []int64
			var isolated []bool
			var ids, definitions, states, messages []string
			for _, x := range some {
				partitions, ids = append(partitions, x.Partition), append(ids, x.ID)
				isolated = append(isolated, x.Isolated)
				definitions = append(definitions, x.Definition)
				states, messages = append(states, x.SQLState), append(messages, x.Message)
			}
			sql := pg.Journaled(q.Fill(queue, failRecordsSQL), "('rescheduled_records', (SELECT count(*) FROM postponed)), "+
				"('dead_records', (SELECT count(*) FROM deleted))", 8)
			return pg.NewQuery("record failures", sql, partitions, ids, isolated, definitions, states, messages,
				DeadAfter, p.RunID)
		})
	return rescheduled, dead, err
}

// FailingRecord is a deleted parent in the queue whose children could not be cleaned. Runs retry
// it.
type FailingRecord struct {
	Queue     QueueName `json:"queue,omitzero"`
	Partition int64     `json:"partition"`
	// ID is a number, or a UUID in a routed queue.
	ID RecordNumber `json:"id"`
	// Table is the recorded name, with its schema. The key is that of the deleted row.
	Table string `json:"table"`
	RecordKey
	// Definition and SQLState of the last failure. SQLState is empty if a database did not answer.
	// It is "absent" if no database has the child, [reasons.KeptByTrigger] if a trigger or rule
	// keeps the rows, and [reasons.KeyMismatch] if the definition has another key.
	Definition string `json:"definition"`
	SQLState   string `json:"sqlstate"`
	// Failures counts those of this record alone: the tenth makes it dead. Setbacks counts all,
	// also those of statements shared with other records, lock timeouts, and absent children.
	Failures int `json:"failures"`
	Setbacks int `json:"setbacks"`
	// FailedAt is the time of the last failure. The record is due from NextTry on: nil is now.
	FailedAt time.Time  `json:"failed_at"`
	NextTry  *time.Time `json:"next_try"`
}

// failingRecordsSQL starts with the failures, which are few, and finds their records by the queue's
// primary key.
const failingRecordsSQL = `
SELECT {queue_name}, q.partition, q.id::text, q.fully_qualified_table_name, {key_number}, {key_values},
  x.last_definition, x.sqlstate, x.failures, x.setbacks, x.failed_at, q.consume_after
FROM {failures} x
JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
WHERE (x.partition, x.record_id) > ($1, $2::text::{id}) AND q.status = 1
  AND ($3::text[] IS NULL OR q.fully_qualified_table_name = ANY ($3))
  AND ($5 = '' OR x.sqlstate = $5)
ORDER BY x.partition, x.record_id LIMIT $4`

// FailingFilter selects failed records. Table is named with or without the application schema,
// SQLState is as in [FailingRecord]. "" selects all.
type FailingFilter struct{ Table, SQLState string }

// QueueName is the table of a record. Documents name only the routed queues.
type QueueName string

// IsZero reports whether the queue is the one that every trigger can write to.
func (n QueueName) IsZero() bool { return n == "" || string(n) == queueTable }

// RecordNumber is the text of a record's id. Documents show a number as a number.
type RecordNumber string

// MarshalJSON writes a number, or the text of a UUID.
func (n RecordNumber) MarshalJSON() ([]byte, error) {
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return []byte(n), nil
	}
	return json.Marshal(string(n))
}

// FailingRecords reads up to limit failed records of the queue after the given one, by table,
// partition and id.
func (d Queue) FailingRecords(
	ctx context.Context, queue DeletedRecords, f FailingFilter, after FailingRecord, limit int,
) (records []FailingRecord, err error) {
	for i, t := range queue.Existing() {
		if len(records) >= limit || i < slices.Index(QueueTables(), string(after.Queue)) {
			continue
		}
		begin := FailingRecord{ID: RecordNumber(t.firstID())}
		if t.Name == string(after.Queue) {
			begin = after
		}
		q := pg.NewQuery("list failing records", queue.Fill(i, failingRecordsSQL),
			begin.Partition, string(begin.ID), catalog.RecordedNames(f.Table, queue.Schema), limit-len(records), f.SQLState)
		some, err := pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[FailingRecord])
		if err != nil {
			return nil, err
		}
		records = append(records, some...)
	}
	return records, nil
}

const failingDefinitionsSQL = `
SELECT d.name FROM unnest($1::text[]) AS d (name)
WHERE EXISTS (
  SELECT FROM {failures} x
  JOIN {queue} q ON q.partition = x.partition AND q.id = x.record_id
  WHERE x.last_definition = d.name AND x.failures > 0 AND q.status = 1)`

// FailingDefinitions returns the definitions for which records have failed on their own and are to
// be retried.
func (d Queue) FailingDefinitions(
	ctx context.Context, q DeletedRecords, definitions []string, l fencing.Limits,
) (failing []string, err error) {
	for i := range q.Existing() {
		find := pg.NewQuery("find failing definitions", q.Fill(i, failingDefinitionsSQL), definitions)
		some, err := pg.ReadRows(ctx, d.db, l, find, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
		failing = append(failing, some...)
	}
	return failing, nil
}
