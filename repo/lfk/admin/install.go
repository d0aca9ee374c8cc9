package admin

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// Results of InstallQueue, as `caretaker lfk install` prints them: of a queue of our own QueueOurs,
// and the changes.
const (
	QueueInstalled = "installed"
	QueueOurs      = "managed by caretaker"
	QueueGitLabs   = "managed by GitLab, nothing changed"

	functionsRenewed = "trigger functions renewed"
	keysAdded        = "column key_values added"
	partitionCreated = "partition created"
	queueTaken       = "taken over after a restore (to find child rows whose records were lost, run `caretaker lfk orphans`)"
	sequencesMoved   = "sequences advanced"
)

// createQueueSQL creates GitLab's queue, with key_values for keys that are not one integer: then
// primary_key_value is 0. Inserts name the table and the key, other columns have defaults.
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

// resetMarksSQL removes marks, failures and traces of a queue that no longer exists.
const resetMarksSQL = `
TRUNCATE maintenance.queue_partitions, maintenance.record_failures, maintenance.record_traces`

// widenQueueSQL rewrites nothing: existing records get NULL.
const widenQueueSQL = `ALTER TABLE {queue} ADD COLUMN key_values text[]`

// markPartitionsSQL starts the time of partitions that are not on record, as after a restore of the
// application's schema alone.
const markPartitionsSQL = `
INSERT INTO maintenance.queue_partitions (partition, active_since)
SELECT number, now() FROM unnest($1::bigint[]) AS number ON CONFLICT (partition) DO NOTHING`

// repairs lists the repairs that an existing queue of our own needs.
type repairs struct {
	// queue is the queue before any repair.
	queue lfk.DeletedRecords
	// widen means that the column key_values is missing, create that the active partition is
	// missing, mark that the queue was restored without the schema maintenance.
	widen, create, mark bool
	// functions are all that record deletions, in any schema.
	functions functions
	// old and missing trigger functions, and stray ones that stayed when the queue moved.
	old, missing []captureFunction
	stray        []function
	// lagging are the sequences whose next number is in use.
	lagging []LaggingSequence
}

// repairsOf reads the queue and the repairs it needs. It refuses a relation of another shape.
func (a Admin) repairsOf(ctx context.Context, tx pgx.Tx) (r repairs, err error) {
	if r.queue, err = a.usableQueue(ctx, tx); err != nil || !r.queue.Exists {
		return r, err
	}
	q := r.queue
	r.widen, r.mark = q.Managed && !q.Wide, q.Managed && !q.Marked && !q.HasDefault
	r.create = q.Managed && q.Repairable()
	if r.functions, err = readFunctions(ctx, tx); err == nil {
		r.lagging, err = laggingSequences(ctx, tx, q)
	}
	r.old, r.stray, r.missing = r.functions.old(q), r.functions.stray(q), r.functions.missing(q)
	// The sequence of a queue that is not ours stays as it is.
	r.lagging = slices.DeleteFunc(r.lagging, func(s LaggingSequence) bool { return s.OfQueue && !q.Managed })
	return r, err
}

// texts returns the text of `caretaker lfk install` about the repairs.
func (r repairs) texts() (texts []string) {
	for _, done := range []struct {
		is   bool
		text string
	}{
		{r.mark, queueTaken},
		{r.create, partitionCreated},
		{len(r.old)+len(r.stray)+len(r.missing) > 0, functionsRenewed},
		{r.widen, keysAdded},
		{len(r.lagging) > 0, sequencesMoved},
	} {
		if done.is {
			texts = append(texts, done.text)
		}
	}
	return texts
}

// do carries out the repairs in the caller's transaction. The first error ends it.
func (r repairs) do(ctx context.Context, tx pgx.Tx) error {
	var steps []string
	// 1. The column key_values, and the sequences.
	if r.widen {
		steps = append(steps, fill(widenQueueSQL, "{queue}", quotedQueue(r.queue)))
	}
	for _, s := range r.lagging {
		steps = append(steps, s.Repair())
	}
	for _, sql := range steps {
		if err := run(ctx, tx, sql); err != nil {
			return err
		}
	}
	// 2. The active partition, and the times of partitions that are not on record.
	if r.create {
		if err := lfk.CreatePartition(ctx, tx, r.queue, r.queue.Active); err != nil {
			return err
		}
	}
	if r.mark {
		if _, err := tx.Exec(ctx, markPartitionsSQL, r.queue.Partitions); err != nil {
			return err
		}
	}
	// 3. Functions left in the queue's previous schema.
	for _, f := range r.stray {
		if err := r.functions.move(ctx, tx, f, r.queue); err != nil {
			return err
		}
	}
	// 4. Old functions, read again because a moved one may be old too, and missing ones.
	all, err := readFunctions(ctx, tx)
	for _, f := range all.old(r.queue) {
		if err == nil {
			err = f.replace(ctx, tx, r.queue)
		}
	}
	for _, f := range r.missing {
		if err == nil {
			err = f.create(ctx, tx, r.queue)
		}
	}
	return err
}

// InstallQueue creates the queue of deleted parents and its trigger functions, unless a queue
// exists. In a queue of our own it repairs functions that are old, missing, or in the queue's
// previous schema, and the column key_values. It also repairs the active partition, lagging
// sequences, and leftovers of a restore of the application's schema alone. It returns text about
// what it found or did. A relation of that name with another shape is a [*RefusedError]. So is a
// queue in another schema, unless [Admin.In] names its target schema.
func (a Admin) InstallQueue(ctx context.Context) (string, error) {
	var r repairs
	needed := func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
		r, err = a.repairsOf(ctx, tx)
		if err == nil && a.schema != "" && a.schema != r.queue.Schema {
			err = a.refuse("the connection's search_path begins with schema %s, not %s: put %[2]s first in search_path",
				r.queue.Schema, a.schema)
		}
		return !r.queue.Exists || len(r.texts()) > 0 || a.schema != "" && !r.queue.Remembered, err
	}
	err := a.change(ctx, "install the queue", needed, func(ctx context.Context, tx pgx.Tx) error {
		do := r.do
		if !r.queue.Exists {
			do = func(ctx context.Context, tx pgx.Tx) error { return a.createQueue(ctx, tx, r.queue) }
		}
		if err := do(ctx, tx); err != nil {
			return err
		}
		return lfk.RememberQueue(ctx, tx, r.queue)
	})
	switch {
	case err != nil:
		return "", err
	case !r.queue.Exists:
		return QueueInstalled, nil
	case r.queue.Managed:
		return strings.Join(append([]string{QueueOurs}, r.texts()...), ", "), nil
	case len(r.lagging) > 0:
		return "managed by GitLab, " + sequencesMoved, nil
	}
	return QueueGitLabs, nil
}

// usableQueue reads the queue and refuses one of another shape. Such a relation is a
// [*RefusedError], with all faults in its text.
func (a Admin) usableQueue(ctx context.Context, tx pgx.Tx) (lfk.DeletedRecords, error) {
	q, faults, err := a.readQueue(ctx, tx)
	if err == nil && len(faults) > 0 {
		err = a.refuse("%s is not a queue of deleted parents, because %s: rename %[1]s, or connect with a "+
			"different search_path",
			q.Schema+"."+q.Table().Name, strings.Join(faults, ", "))
	}
	return q, err
}

// createQueue creates the queue with partition 1 and the two shared functions. It deletes the marks
// that a previous queue left.
func (a Admin) createQueue(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords) error {
	var steps []string
	sequence := quote(q.Schema, q.Table().Name+"_id_seq")
	for create := range strings.SplitSeq(createQueueSQL, ";") {
		steps = append(steps, fill(create, "{queue}", quotedQueue(q),
			"{sequence}", sequence, "{sequence_literal}", capture.Literal(sequence)))
	}
	for _, sql := range append(steps, resetMarksSQL) {
		if err := run(ctx, tx, sql); err != nil {
			return err
		}
	}
	if err := lfk.CreatePartition(ctx, tx, q, 1); err != nil {
		return err
	}
	// A queue that caretaker creates is its own: the functions store spans beside it.
	q.Managed = true
	if err := plainFunction().create(ctx, tx, q); err != nil {
		return err
	}
	return overrideFunction(relation{}).create(ctx, tx, q)
}

// queueShapeSQL finds what is wrong with the shape of a queue. Columns beyond GitLab's must not
// prevent an insert.
const queueShapeSQL = `
SELECT fault FROM (
  SELECT want.place, format('it has no column %s of type %s', want.name, want.type)
  FROM (VALUES (1, 'id', '{id}'), (2, 'partition', 'bigint'), (3, 'primary_key_value', 'bigint'),
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
    AND a.attname NOT IN ('partition', 'primary_key_value', 'fully_qualified_table_name', '{owner}')
  UNION ALL
  SELECT 10000, 'it is not partitioned by list (partition)' WHERE NOT EXISTS (
    SELECT FROM pg_partitioned_table p
    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = to_regclass($1) AND p.partstrat = 'l' AND p.partnatts = 1
      AND a.attname = 'partition')
) faults (place, fault)
ORDER BY place`

// readQueue reads the queue and the faults of its shape.
func (a Admin) readQueue(
	ctx context.Context, tx pgx.Tx,
) (q lfk.DeletedRecords, faults []string, err error) {
	q, err = lfk.NewQueue(a.database).ReadDeletedRecords(ctx, tx)
	moved, isMoved := errors.AsType[*lfk.QueueMovedError](err)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return q, nil, a.refuse("no schema of the connection's search_path exists: create one of these schemas, or set " +
			"search_path")
	case isMoved && a.schema == q.Schema:
		err = a.checkAbandonedQueue(ctx, tx, q, moved.Was)
	case isMoved:
		return q, nil, a.refuse("%s", moved.Reason())
	}
	if err != nil || !q.Exists {
		return q, nil, err
	}
	faults, err = shapeFaults(ctx, tx, q, 0)
	return q, faults, err
}

// shapeFaults returns the faults in the shape of a table of the queue. i is its position in
// [lfk.QueueTables]. Without faults the table has the shape of GitLab's.
func shapeFaults(ctx context.Context, tx pgx.Tx, q lfk.DeletedRecords, i int) ([]string, error) {
	return list(ctx, tx, pgx.RowTo[string], q.Fill(i, queueShapeSQL),
		quote(q.Schema, lfk.QueueTables()[i]))
}
