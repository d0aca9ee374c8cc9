package lfkadmin

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
)

// What InstallQueue found or did, in the words of `caretaker lfk install`.
const (
	QueueInstalled = "installed"
	QueueOurs      = "managed by caretaker"
	QueueRenewed   = "managed by caretaker, trigger functions renewed"
	QueueWidened   = "managed by caretaker, column key_values added"
	QueueBoth      = "managed by caretaker, trigger functions renewed, column key_values added"
	QueueGitLabs   = "managed by GitLab, nothing changed"
)

// createQueueSQL: the queue as GitLab has it, and key_values for keys that are not one integer:
// primary_key_value is 0 then. Inserts name the table and the key, everything else has a default.
const createQueueSQL = `
CREATE SEQUENCE {sequence};
CREATE TABLE {queue} (
  id bigint NOT NULL DEFAULT nextval({sequence_literal}::regclass),
  partition bigint NOT NULL DEFAULT 1,
  primary_key_value bigint NOT NULL,
  status smallint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  fully_qualified_table_name text NOT NULL,
  consume_after timestamptz DEFAULT now(),
  cleanup_attempts smallint DEFAULT 0,
  key_values text[],
  PRIMARY KEY (partition, id),
  CHECK (char_length(fully_qualified_table_name) <= 150)
) PARTITION BY LIST (partition);
ALTER SEQUENCE {sequence} OWNED BY {queue}.id;
CREATE INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query ON {queue}
  (partition, fully_qualified_table_name, consume_after, id) WHERE status = 1`

// resetMarksSQL: marks, failures and traces that are left belong to a queue that is no more.
const resetMarksSQL = `
TRUNCATE maintenance.queue_partitions, maintenance.record_failures, maintenance.record_traces`

// widenQueueSQL rewrites nothing: the records that are there have NULL.
const widenQueueSQL = `ALTER TABLE {queue} ADD COLUMN key_values text[]`

// InstallQueue makes the queue of deleted records and the functions that feed it, unless there is a
// queue already; of a queue of our own it renews functions of an older version, and adds the column
// key_values to one that lacks it. It returns one of the words above. A relation of that name with
// another shape is a [*RefusedError].
func (a Admin) InstallQueue(ctx context.Context) (string, error) {
	var q repo.DeletedRecords
	var old []captureFunction
	needed := func(ctx context.Context, tx pgx.Tx) (bool, error) {
		var err error
		if q, err = a.usableQueue(ctx, tx); err == nil {
			old, err = oldFunctions(ctx, tx, q)
		}
		return !q.Exists || len(old) > 0 || q.Managed && !q.Wide, err
	}
	err := a.change(ctx, "install the queue", needed, func(ctx context.Context, tx pgx.Tx) error {
		if !q.Exists {
			return a.createQueue(ctx, tx, q)
		}
		if !q.Wide && q.Managed {
			if err := run(ctx, tx, fill(widenQueueSQL, "{queue}", quotedQueue(q))); err != nil {
				return err
			}
		}
		for _, f := range old {
			if err := f.replace(ctx, tx, q); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return "", err
	case !q.Exists:
		return QueueInstalled, nil
	case q.Managed && !q.Wide && len(old) > 0:
		return QueueBoth, nil
	case q.Managed && !q.Wide:
		return QueueWidened, nil
	case len(old) > 0:
		return QueueRenewed, nil
	case q.Managed:
		return QueueOurs, nil
	}
	return QueueGitLabs, nil
}

// usableQueue reads the queue and refuses one of another shape.
func (a Admin) usableQueue(ctx context.Context, tx pgx.Tx) (repo.DeletedRecords, error) {
	q, faults, err := a.readQueue(ctx, tx)
	if err == nil && len(faults) > 0 {
		err = a.refuse("%s is not a queue of deleted records: %s: rename it, or connect with another "+
			"search_path",
			q.Schema+"."+q.Table().Name, strings.Join(faults, ", "))
	}
	return q, err
}

func (a Admin) createQueue(ctx context.Context, tx pgx.Tx, q repo.DeletedRecords) error {
	var steps []string
	sequence := quote(q.Schema, q.Table().Name+"_id_seq")
	for create := range strings.SplitSeq(createQueueSQL, ";") {
		steps = append(steps, fill(create, "{queue}", quotedQueue(q),
			"{sequence}", sequence, "{sequence_literal}", repo.Literal(sequence)))
	}
	for _, sql := range append(steps, resetMarksSQL) {
		if err := run(ctx, tx, sql); err != nil {
			return err
		}
	}
	if err := repo.CreatePartition(ctx, tx, q, 1); err != nil {
		return err
	}
	q.Managed = true
	if err := plainFunction().create(ctx, tx, q); err != nil {
		return err
	}
	return overrideFunction(relation{}).create(ctx, tx, q)
}

// queueShapeSQL is what is wrong with the shape of a queue. What it has beyond GitLab's columns
// must not be in the way of an insert.
const queueShapeSQL = `
SELECT fault FROM (
  SELECT want.place, format('it has no column %s of type %s', want.name, want.type)
  FROM (VALUES (1, 'id', 'bigint'), (2, 'partition', 'bigint'), (3, 'primary_key_value', 'bigint'),
    (4, 'status', 'smallint'), (5, 'created_at', 'timestamp with time zone'),
    (6, 'fully_qualified_table_name', 'text'), (7, 'consume_after', 'timestamp with time zone'),
    (8, 'cleanup_attempts', 'smallint')) AS want (place, name, type)
  WHERE NOT EXISTS (
    SELECT FROM pg_attribute a
    WHERE a.attrelid = to_regclass($1) AND a.attname = want.name AND NOT a.attisdropped
      AND format_type(a.atttypid, NULL) = want.type)
  UNION ALL
  SELECT 8 + a.attnum, format('its column %s has no default', a.attname) FROM pg_attribute a
  WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
    AND a.attname NOT IN ('partition', 'primary_key_value', 'fully_qualified_table_name')
  UNION ALL
  SELECT 10000, 'it is not partitioned by list (partition)' WHERE NOT EXISTS (
    SELECT FROM pg_partitioned_table p
    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = to_regclass($1) AND p.partstrat = 'l' AND p.partnatts = 1
      AND a.attname = 'partition')
) faults (place, fault)
ORDER BY place`

// readQueue reads the queue, with what is wrong with its shape.
func (a Admin) readQueue(
	ctx context.Context, tx pgx.Tx,
) (q repo.DeletedRecords, faults []string, err error) {
	q, err = repo.ReadDeletedRecords(ctx, tx)
	if errors.Is(err, pgx.ErrNoRows) {
		return q, nil, a.refuse("no schema of the connection's search_path exists: create it or set " +
			"search_path")
	}
	if err != nil || !q.Exists {
		return q, nil, err
	}
	faults, err = list(ctx, tx, pgx.RowTo[string], queueShapeSQL, quotedQueue(q))
	return q, faults, err
}
