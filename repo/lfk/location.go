package lfk

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// The application schema is the first existing schema of the search_path. A schema created later,
// such as one with the role's name, can come before it. Then all tables resolve to others or to
// none. So caretaker remembers the queue that runs work on by its OID, which no dump keeps.

// QueueMovedError means that the search_path no longer leads to the queue.
type QueueMovedError struct {
	// Database is the configured name. Was is the schema of the queue, Now the first one of Path.
	Database, Was, Now, Path string
	// Exists means that Now has a queue, too.
	Exists bool
}

// Error returns what has changed, and what to do.
func (e *QueueMovedError) Error() string { return "database " + e.Database + ": " + e.Reason() }

// Reason returns Error without the database.
func (e *QueueMovedError) Reason() string { return e.Changed() + ": " + e.Advice() }

// Advice returns what to do.
func (e *QueueMovedError) Advice() string {
	return fmt.Sprintf("put schema %s first in search_path, either for the role or in "+
		"databases.%s.url", e.Was, e.Database)
}

// Changed returns what has changed.
func (e *QueueMovedError) Changed() string {
	changed := fmt.Sprintf("%s is in schema %s, but schema %s comes first in the search_path "+
		"(%s) and does not contain that table",
		queueTable, e.Was, e.Now, e.Path)
	if e.Exists {
		changed = fmt.Sprintf("%s was %s.%s, but now resolves to %s.%s because of the search_path (%s)",
			queueTable, e.Was, queueTable, e.Now, queueTable, e.Path)
	}
	return changed
}

// QueueMoved returns the text of the [QueueMovedError] of a database, "" if it has none. Missing
// tables may be in the schema of the queue.
func QueueMoved(ctx context.Context, d *pg.Database) string {
	_, err := NewQueue(d).DeletedRecordsShape(ctx)
	if moved, ok := errors.AsType[*QueueMovedError](err); ok {
		return moved.Error()
	}
	return ""
}

// TypedReason returns QUEUE_MOVED.
func (e *QueueMovedError) TypedReason() string { return reasons.QueueMoved }

// Public marks the text as safe for clients.
func (e *QueueMovedError) Public() {}

// queueLocationSQL finds the remembered queue, else that of the application schema, else one in
// another schema of the search_path. It forgets a queue that no longer exists, as after a restore.
// A queue in another schema belongs to another application, unless caretaker has made one here.
const queueLocationSQL = `
  SELECT known.nspname, h.queue IS NOT NULL
  FROM pg_class c JOIN pg_namespace known ON known.oid = c.relnamespace
  LEFT JOIN maintenance.queue_home h ON h.queue = c.oid
  WHERE c.relname = '` + queueTable + `' AND c.relkind = 'p' AND (h.queue IS NOT NULL
    OR known.nspname = ANY (current_schemas(false)) OR EXISTS (SELECT FROM maintenance.queue_partitions))
  ORDER BY h.queue IS NULL, known.nspname = current_schema() DESC, known.nspname LIMIT 1`

// checkLocation returns a [*QueueMovedError] if the queue that was read is not the remembered one.
func (q *DeletedRecords) checkLocation(database string) error {
	if q.was == q.Schema {
		return nil
	}
	q.Remembered = false
	if !q.Exists {
		// The other queue uses the partition names in its schema, so new partitions get this schema.
		q.leafSchema = q.Schema
	}
	return &QueueMovedError{Database: database, Was: q.was, Now: q.Schema, Path: q.path, Exists: q.Exists}
}

const rememberQueueSQL = `
INSERT INTO maintenance.queue_home (queue) SELECT to_regclass($1)
ON CONFLICT (only_row) DO UPDATE SET queue = EXCLUDED.queue`

// RememberQueue makes runs work on this queue, and on no other until it no longer exists.
func RememberQueue(ctx context.Context, tx pgx.Tx, q DeletedRecords) error {
	return pg.ExecAll(ctx, tx, stmt.Statement{SQL: rememberQueueSQL, Args: []any{q.SQL}})
}

// RememberQueue runs the function [RememberQueue] as a separate step.
func (d Queue) RememberQueue(ctx context.Context, p fencing.Permit, q DeletedRecords) error {
	return pg.Transaction(ctx, d.db, "save the location of the queue", p, func(ctx context.Context, tx *pg.Changing) error {
		return RememberQueue(ctx, tx, q)
	})
}
