package gitlab

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// The end of a user: the reads shortly before, and the transaction that deletes the user.

const personalProjectExistsSQL = `
SELECT EXISTS (
  SELECT FROM namespaces n JOIN projects p ON p.namespace_id = n.id
  WHERE n.owner_id = $1::bigint AND n.type = 'User')`

// HasPersonalProjects reports whether there is a project in the user's own namespace.
func (d Ghosts) HasPersonalProjects(
	ctx context.Context, q GhostQueue, user int64, l fencing.Limits,
) (has bool, err error) {
	if q.projects {
		read := pg.NewQuery("find personal projects", personalProjectExistsSQL, user)
		err = pg.ReadRow(ctx, d.db, l, read, &has)
	}
	return has, err
}

const scheduledGroupsSQL = `
SELECT group_id FROM group_deletion_schedules WHERE user_id = $1::bigint
ORDER BY group_id LIMIT 100`

// ScheduledGroups reads the first 100 groups that the user has marked for deletion. A foreign key
// deletes the marks with the user.
func (d Ghosts) ScheduledGroups(ctx context.Context, user int64, l fencing.Limits) ([]int64, error) {
	read := pg.NewQuery("find groups scheduled for deletion by the user", scheduledGroupsSQL, user)
	return pg.ReadRows(ctx, d.db, l, read, pgx.RowTo[int64])
}

const (
	// lockMigratedSQL also reads the partition for new records of deleted rows: NULL without such a
	// queue, or if our role cannot read it.
	lockMigratedSQL = `
SELECT (
  SELECT substring(pg_get_expr(d.adbin, d.adrelid) FROM '[0-9]+')::bigint
  FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  WHERE a.attrelid = to_regclass('loose_foreign_keys_deleted_records') AND a.attname = 'partition'
    AND has_table_privilege(a.attrelid, 'SELECT'))
FROM users WHERE id = $1::bigint FOR UPDATE`

	// unqueueSQL precedes the user, so that no foreign key of the queue, of whatever kind, keeps the
	// user. The user's row is locked first, because all other transactions lock in that order.
	unqueueSQL = `DELETE FROM {ghosts} WHERE user_id = $1::bigint`

	// deleteUserSQL fires triggers that record the user, and foreign keys that cascade.
	deleteUserSQL = `DELETE FROM users WHERE id = $1::bigint`

	// traceRecordSQL stores our span with the record that the application's own trigger has just
	// written, as caretaker's trigger does. So a trace leads from the user to the loose foreign keys.
	traceRecordSQL = `
INSERT INTO maintenance.record_traces (partition, record_id, traceparent)
SELECT r.partition, r.id, $3 FROM loose_foreign_keys_deleted_records r
WHERE r.partition = $2::bigint AND r.fully_qualified_table_name = current_schema() || '.users'
  AND r.status = 1 AND r.consume_after >= now() AND r.primary_key_value = $1::bigint
ON CONFLICT DO NOTHING`

	userStaysSQL = `
SELECT 'users' FROM users WHERE id = $1::bigint
UNION ALL
SELECT '{queue}' FROM {ghosts} WHERE user_id = $1::bigint
LIMIT 1`
)

// DeleteMigratedUser deletes the user and the row of the queue. If some of these rows exist in any
// database, referred is true and nothing changes. If a trigger keeps the user or the row of the
// queue, both stay, and the error is a [*rowset.KeptError].
//
// It searches the rows while the user's row is locked. Every transaction that inserted a row with a
// foreign key to the user has committed by then, and none can insert another. Nor can an operator
// protect the user meanwhile: a protected user stays, with a [*pg.ProtectedError].
func (d Ghosts) DeleteMigratedUser(
	ctx context.Context, p fencing.Permit, q GhostQueue, user int64, rows []rowset.Rows,
) (referred bool, err error) {
	p.Transaction = p.Statement + p.Lock + pg.NetTime
	do := func(ctx context.Context, tx *pg.Changing) error {
		var partition *int64
		err := tx.QueryRow(ctx, lockMigratedSQL, user).Scan(&partition)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if referred, err = anyWhileLocked(ctx, d.db, tx, rows); referred || err != nil {
			return err
		}
		for _, c := range []pg.RowChange{
			{Table: q.table.Name, SQL: q.fill(unqueueSQL), Key: "id"},
			{Table: "users", SQL: deleteUserSQL, Key: "id"},
		} {
			c.Action, c.Args = pg.ReceiptDeleted, []any{user}
			if _, err := tx.Change(ctx, c); err != nil {
				return err
			}
		}
		if span := spans.TraceParentOf(ctx); span != "" && partition != nil {
			if _, err := tx.Exec(ctx, traceRecordSQL, user, *partition, span); err != nil {
				return err
			}
		}
		tx.Count("migrated_users", 1)
		return rowset.RefuseKept(ctx, tx, q.fill(userStaysSQL), user)
	}
	err = pg.Transaction(ctx, d.db, "delete from users", p, do)
	// PostgreSQL refuses a statement that returns the keys for a table with a rule.
	err = rowset.ExplainKept(ctx, d.db, err, catalog.Table{Name: "users"}, rowset.KeptError{Rows: "users", Intended: rowset.ToDelete})
	return referred, err
}

// Other transactions wait for the user's row during the search for rows that refer to it. The
// server ends our transaction after two idle seconds. So the time is short. A table that cannot be
// searched in time, as without an index, is skipped: then the search before the lock counts.
const (
	probeTime = time.Second
	// otherProbeTime bounds a statement in another database, otherProbesTime all of those together.
	otherProbeTime  = 500 * time.Millisecond
	otherProbesTime = 1500 * time.Millisecond
)

const (
	beginProbeSQL = `SAVEPOINT probe`
	probeTimeSQL  = `SELECT set_config('statement_timeout', $1, true)`
	// endProbeSQL also resets the statement_timeout.
	endProbeSQL = `ROLLBACK TO SAVEPOINT probe`
)

// anyWhileLocked reports whether some of the rows exist. It searches this database in the
// transaction.
func anyWhileLocked(
	ctx context.Context, d *pg.Database, tx pgx.Tx, rows []rowset.Rows,
) (found bool, err error) {
	byDatabase := map[*pg.Database][]rowset.Rows{}
	for _, r := range rows {
		byDatabase[r.Database] = append(byDatabase[r.Database], r)
	}
	own := byDatabase[d]
	delete(byDatabase, d)
	found, err = anyElsewhere(ctx, byDatabase)
	if found || err != nil {
		return found, err
	}
	batch := &pgx.Batch{}
	batch.Queue(beginProbeSQL)
	batch.Queue(probeTimeSQL, stmt.Milliseconds(probeTime))
	for _, probe := range rowset.Probes(own) {
		batch.Queue(probe.SQL, probe.Args...).QueryRow(func(row pgx.Row) error {
			var has []bool
			err := row.Scan(&has)
			found = found || slices.Contains(has, true)
			return err
		})
	}
	batch.Queue(endProbeSQL)
	err = tx.SendBatch(ctx, batch).Close()
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "57014" {
		_, err = tx.Exec(ctx, endProbeSQL)
	}
	return found, err
}

// anyElsewhere reports whether some of the rows exist in the other databases. It skips tables that
// take too long, or are locked.
func anyElsewhere(ctx context.Context, rows map[*pg.Database][]rowset.Rows) (bool, error) {
	probing, cancel := context.WithTimeoutCause(ctx, otherProbesTime, dberr.ErrUnreachable)
	defer cancel()
	for other, some := range rows {
		has, err := rowset.NewSweeps(other).Any(probing, some, fencing.Limits{Statement: otherProbeTime, Lock: otherProbeTime})
		refused, ok := errors.AsType[*dberr.Error](err)
		switch {
		case probing.Err() != nil && ctx.Err() == nil:
		case ok && (refused.Class() == dberr.ClassTimeout || refused.Class() == dberr.ClassLock):
		case err != nil, slices.Contains(has, true):
			return err == nil, err
		}
	}
	return false, nil
}

// ProcessedByKey is the key, in the metadata of a finished job, of the span (W3C) of its attempt.
const ProcessedByKey = "processed_by"

// deletionTracesSQL is materialized, so that PostgreSQL reads the index of arguments, instead of
// all jobs of the kind or all from the newest on.
const deletionTracesSQL = `
WITH asked AS MATERIALIZED (
  SELECT id, kind, metadata FROM maintenance.river_job
  WHERE args @> jsonb_build_object('user_id', $1::bigint)
)
SELECT metadata ->> 'processed_by' FROM asked
WHERE kind = 'delete_user' AND metadata ->> 'processed_by' IS NOT NULL
  AND metadata ->> 'outcome' = 'succeeded'
ORDER BY id DESC LIMIT 3`

// DeletionTraces reads the spans (W3C) of the last three jobs that have queued the user, the newest
// first, while the queue of jobs keeps them.
func (d Ghosts) DeletionTraces(ctx context.Context, user int64, l fencing.Limits) ([]string, error) {
	read := pg.NewQuery("read trace IDs of deletions", deletionTracesSQL, user)
	return pg.ReadRows(spans.Untraced(ctx), d.db, l, read, pgx.RowTo[string])
}
