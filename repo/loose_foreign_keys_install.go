package repo

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What InstallQueue found or did, in the words of `caretaker lfk install`.
const (
	QueueInstalled = "installed"
	QueueOurs      = "managed by caretaker"
	QueueRenewed   = "managed by caretaker, trigger functions renewed"
	QueueGitLabs   = "managed by GitLab, nothing changed"
)

// createQueueSQL: the queue as GitLab has it. Inserts name the table and the key, everything else has a default.
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
  PRIMARY KEY (partition, id),
  CHECK (char_length(fully_qualified_table_name) <= 150)
) PARTITION BY LIST (partition);
ALTER SEQUENCE {sequence} OWNED BY {queue}.id;
CREATE INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query ON {queue}
  (partition, fully_qualified_table_name, consume_after, id) WHERE status = 1`

// resetMarksSQL: marks, failures and traces that are left belong to a queue that is no more.
const resetMarksSQL = `TRUNCATE maintenance.queue_partitions, maintenance.record_failures, maintenance.record_traces`

const schemaExistsSQL = `SELECT to_regnamespace($1) IS NOT NULL`

// InstallQueue makes the queue of deleted records and the functions that feed it, unless there is a queue already; of a
// queue of our own it renews the functions that are of an older version. It returns one of the words above. A relation of that name with another shape is a [*RefusedError].
func (d *Database) InstallQueue(ctx context.Context) (string, error) {
	const operation = "install the queue"
	var q Queue
	var old []captureFunction
	look := func(tx pgx.Tx) (err error) {
		if q, err = d.usableQueue(ctx, tx); err == nil {
			old, err = oldFunctions(ctx, tx, q)
		}
		return err
	}
	err := d.readOnly(ctx, operation, look)
	if err == nil && (!q.Exists || len(old) > 0) {
		err = d.ddl(ctx, operation, func(tx pgx.Tx) error {
			if err := look(tx); err != nil {
				return err
			}
			if !q.Exists {
				return d.createQueue(ctx, tx, q)
			}
			for _, f := range old {
				if err := execAll(ctx, tx, f.replacement(q)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	switch {
	case err != nil:
		return "", err
	case !q.Exists:
		return QueueInstalled, nil
	case len(old) > 0:
		return QueueRenewed, nil
	case q.Managed:
		return QueueOurs, nil
	}
	return QueueGitLabs, nil
}

// usableQueue looks at the queue within a transaction and refuses one of another shape.
func (d *Database) usableQueue(ctx context.Context, tx pgx.Tx) (Queue, error) {
	q, shape, err := d.lookAtQueue(ctx, tx)
	if err == nil && len(shape) > 0 {
		err = d.refuse("%s is not a queue of deleted records: %s: rename it, or connect with another search_path",
			q.Schema+"."+queueTable, strings.Join(shape, ", "))
	}
	return q, err
}

func (d *Database) createQueue(ctx context.Context, tx pgx.Tx, q Queue) error {
	var leafSchemaExists bool
	if err := tx.QueryRow(ctx, schemaExistsSQL, leafSchema).Scan(&leafSchemaExists); err != nil {
		return err
	}
	q.Managed = true
	var steps []statement
	if !leafSchemaExists {
		steps = append(steps, statement{"CREATE SCHEMA " + quote(leafSchema), nil})
	}
	sequence := quote(q.Schema, queueTable+"_id_seq")
	for create := range strings.SplitSeq(createQueueSQL, ";") {
		create = fill(create, "{queue}", q.sql, "{sequence}", sequence, "{sequence_literal}", literal(sequence))
		steps = append(steps, statement{create, nil})
	}
	const first = 1
	steps = append(steps, statement{createLeaf(q, first), nil},
		statement{resetMarksSQL, nil}, statement{markPartitionSQL, []any{first}})
	if err := execAll(ctx, tx, steps...); err != nil {
		return err
	}
	for _, f := range []captureFunction{plainFunction(), overrideFunction()} {
		if err := f.create(ctx, tx, q); err != nil {
			return err
		}
	}
	return nil
}

// queueShapeSQL is what is wrong with the shape of a queue. What it has beyond GitLab's columns must not be in the
// way of an insert.
const queueShapeSQL = `
SELECT format('it has no column %s of type %s', want.name, want.type)
FROM unnest(
  ARRAY['id', 'partition', 'primary_key_value', 'status', 'created_at', 'fully_qualified_table_name', 'consume_after', 'cleanup_attempts'],
  ARRAY['bigint', 'bigint', 'bigint', 'smallint', 'timestamp with time zone', 'text', 'timestamp with time zone', 'smallint']
) AS want (name, type)
WHERE NOT EXISTS (
  SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attname = want.name AND NOT a.attisdropped
    AND format_type(a.atttypid, NULL) = want.type)
UNION ALL
SELECT format('its column %s has no default', a.attname) FROM pg_attribute a
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
  AND a.attname NOT IN ('partition', 'primary_key_value', 'fully_qualified_table_name')
UNION ALL
SELECT 'it is not partitioned by list (partition)' WHERE NOT EXISTS (
  SELECT FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
  WHERE p.partrelid = to_regclass($1) AND p.partstrat = 'l' AND p.partnatts = 1 AND a.attname = 'partition')`

// lookAtQueue is Queue within a transaction, with what is wrong with its shape.
func (d *Database) lookAtQueue(ctx context.Context, tx pgx.Tx) (q Queue, shape []string, err error) {
	err = tx.QueryRow(ctx, queueSQL, queueTable).Scan(q.row()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return q, nil, d.refuse("no schema of the connection's search_path exists: create it or set search_path")
	}
	q.sql = quote(q.Schema, queueTable)
	if err != nil || !q.Exists {
		return q, nil, err
	}
	rows, err := tx.Query(ctx, queueShapeSQL, q.sql)
	if err != nil {
		return q, nil, err
	}
	shape, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return q, shape, err
}
