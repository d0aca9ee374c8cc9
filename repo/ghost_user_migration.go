package repo

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// migratableSQL are the types of users that may be deleted: human, project bot, service account,
// placeholder. A user without a type is human. The job delete_user has the same rule.
const migratableSQL = `coalesce(u.user_type, 0) IN (0, 6, 13, 15)`

// GhostQueue is the queue of users whose contributions go to a ghost, as this database has it.
type GhostQueue struct {
	table        *Relation
	organization bool
	projects     bool
}

// essentialGhostColumns are those that a queue cannot do without.
func essentialGhostColumns() []string {
	return []string{"id", "user_id", "hard_delete", "consume_after", "created_at"}
}

// GhostTables are what [Catalog.GhostQueue] looks at.
func GhostTables() map[string][]string {
	queue := append([]string{"user_type", "updated_at"}, essentialGhostColumns()...)
	return map[string][]string{
		"ghost_user_migrations": queue, "users_ghost_user_migrations": queue,
		"users": {"id", "user_type", "state", "organization_id"}, "projects": {"namespace_id"}, "namespaces": {"owner_id", "type"},
	}
}

// GhostQueue finds the queue. missing names the essential table or column that is not there.
func (c *Catalog) GhostQueue() (q GhostQueue, missing string) {
	users := c.Table("users")
	for _, column := range []string{"id", "user_type", "state"} {
		if !users.Has(column) {
			return q, "users." + column
		}
	}
	q = GhostQueue{c.ghostTable(), users.Has("organization_id"), c.Table("projects").Has("namespace_id")}
	if q.table == nil {
		return q, "ghost_user_migrations"
	}
	for _, column := range essentialGhostColumns() {
		if !q.table.Has(column) {
			return q, q.table.Name + "." + column
		}
	}
	return q, ""
}

// ghostTable is the queue of the newer name, or if it is not there the other, nil if neither is.
func (c *Catalog) ghostTable() *Relation {
	return cmp.Or(c.Table("ghost_user_migrations"), c.Table("users_ghost_user_migrations"))
}

// Table is the queue's.
func (q GhostQueue) Table() Table { return q.table.Table }

// fill puts what this database has into a statement.
func (q GhostQueue) fill(sql string) string {
	kind, organization, same, touched := "coalesce(u.user_type, 0)", "NULL::bigint", "true", ""
	if q.table.Has("user_type") {
		kind = "coalesce(q.user_type, u.user_type, 0)"
	}
	if q.organization {
		organization, same = "u.organization_id", "g.organization_id IS NOT DISTINCT FROM u.organization_id"
	}
	if q.table.Has("updated_at") {
		touched = ", updated_at = now()"
	}
	return fill(sql, "{ghosts}", q.table.sql(), "{queue}", q.table.Name, "{kind}", kind, "{organization}", organization, "{same}", same, "{touched}", touched)
}

// GhostMigration is a row of the queue. A row that names nobody has the user 0, whom there is not.
type GhostMigration struct{ ID, UserID int64 }

// dueMigrationsSQL: humans first.
const dueMigrationsSQL = `
SELECT q.id, coalesce(q.user_id, 0) FROM {ghosts} q LEFT JOIN users u ON u.id = q.user_id
WHERE q.consume_after <= $1
ORDER BY {kind} <> 0, q.consume_after, q.id
LIMIT $2`

// DueMigrations are the rows that were due at an instant, at most limit, in the order in which they
// are worked. They are candidates: [Database.GhostTarget] looks at each again.
func (d *Database) DueMigrations(
	ctx context.Context, q GhostQueue, at time.Time, limit int, l Limits,
) ([]GhostMigration, error) {
	due, _, err := candidateRows(ctx, d, l, newQuery("read the queue of users", q.fill(dueMigrationsSQL), at, limit), pgx.RowToStructByPos[GhostMigration])
	return due, err
}

// GhostTarget is a user who is to be deleted, as the row says when its turn comes.
type GhostTarget struct {
	// Due: the row is there, and due. Exists: the user is there.
	Due, Exists, HardDelete bool
	// Migratable users may be deleted; the others, if they exist, are refused.
	Migratable bool
	Type       int16
	// Organization is nil where users have none. Ghost of it, 0 if there is none.
	Organization *int64
	Ghost        int64
}

const ghostTargetSQL = `
SELECT true, u.id IS NOT NULL, coalesce(q.hard_delete, false), ` + migratableSQL + `, coalesce(u.user_type, 0), {organization}, coalesce((
    SELECT g.id FROM users g WHERE g.user_type = 5 AND {same} ORDER BY g.id LIMIT 1), 0)
FROM {ghosts} q LEFT JOIN users u ON u.id = q.user_id
WHERE q.id = $1::bigint AND coalesce(q.user_id, 0) = $2::bigint AND q.consume_after <= clock_timestamp()`

// GhostTarget looks at a row of the queue and its user.
func (d *Database) GhostTarget(
	ctx context.Context, q GhostQueue, m GhostMigration, l Limits,
) (t GhostTarget, err error) {
	found, err := readRows(ctx, d, l, newQuery("look at a user of the queue", q.fill(ghostTargetSQL), m.ID, m.UserID), pgx.RowToStructByPos[GhostTarget])
	if len(found) > 0 {
		t = found[0]
	}
	return t, err
}

const removeOrphanSQL = `
WITH {guard},
gone AS (
  DELETE FROM {ghosts} q
  WHERE q.id = $1::bigint AND NOT EXISTS (SELECT FROM users u WHERE u.id = q.user_id) AND (SELECT held FROM guard) = 1
)
SELECT EXISTS (SELECT FROM guard)`

// RemoveOrphan removes a row of the queue whose user is gone.
func (d *Database) RemoveOrphan(
	ctx context.Context, p Permit, q GhostQueue, m GhostMigration,
) error {
	return d.write(ctx, p, newQuery("remove an orphan of the queue", q.fill(removeOrphanSQL), m.ID))
}

const (
	failMigrationSQL = `
WITH {guard},
postponed AS (
  UPDATE {ghosts} SET consume_after = now() + interval '30 minutes'{touched} WHERE id = $1::bigint AND (SELECT held FROM guard) = 1
)
SELECT EXISTS (SELECT FROM guard)`

	deferMigrationSQL = `
WITH {guard},
postponed AS (
  UPDATE {ghosts} SET consume_after = greatest(consume_after, now()) + interval '30 seconds'{touched} WHERE id = $1::bigint AND (SELECT held FROM guard) = 1
)
SELECT EXISTS (SELECT FROM guard)`
)

// FailMigration puts a row off for half an hour after an error.
func (d *Database) FailMigration(
	ctx context.Context, p Permit, q GhostQueue, m GhostMigration,
) error {
	return d.write(ctx, p, newQuery("put off a user after an error", q.fill(failMigrationSQL), m.ID))
}

// DeferMigration puts a row behind all that are due, after its time was used up.
func (d *Database) DeferMigration(
	ctx context.Context, p Permit, q GhostQueue, m GhostMigration,
) error {
	return d.write(ctx, p, newQuery("defer a user", q.fill(deferMigrationSQL), m.ID))
}

const (
	// lockMigratedSQL also reads the partition that records of deleted rows go to: NULL where there
	// is no such queue, or we may not read it.
	lockMigratedSQL = `
SELECT (
  SELECT substring(pg_get_expr(d.adbin, d.adrelid) FROM '[0-9]+')::bigint
  FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  WHERE a.attrelid = to_regclass('loose_foreign_keys_deleted_records') AND a.attname = 'partition'
    AND has_table_privilege(a.attrelid, 'SELECT'))
FROM users WHERE id = $1::bigint FOR UPDATE`

	// traceRecordSQL notes our span beside the record that the application's own trigger has just
	// written, as caretaker's trigger does: so a trace leads from the user to the loose foreign
	// keys.
	traceRecordSQL = `
INSERT INTO maintenance.record_traces (partition, record_id, traceparent)
SELECT r.partition, r.id, $3 FROM loose_foreign_keys_deleted_records r
WHERE r.partition = $2::bigint AND r.fully_qualified_table_name = current_schema() || '.users' AND r.status = 1
  AND r.consume_after >= now() AND r.primary_key_value = $1::bigint
ON CONFLICT DO NOTHING`

	// unqueueSQL comes before the user, so that whatever key the queue has to users forbids
	// nothing; the user's row is locked before it, as everybody else does.
	unqueueSQL = `DELETE FROM {ghosts} WHERE user_id = $1::bigint`

	// deleteUserSQL: triggers record the user; foreign keys take along what refers to it.
	deleteUserSQL = `DELETE FROM users WHERE id = $1::bigint`

	userStaysSQL = `
SELECT 'users' FROM users WHERE id = $1::bigint
UNION ALL
SELECT '{queue}' FROM {ghosts} WHERE user_id = $1::bigint
LIMIT 1`
)

// DeleteMigratedUser deletes the user and the row of the queue, unless some of these rows, of any
// database, are there: left, nothing is changed. They are looked for behind the lock on the user:
// whoever had inserted rows that refer to it by a foreign key has committed, and nobody inserts
// more. If a trigger keeps one of both, both stay: the error is a [*KeptError].
func (d *Database) DeleteMigratedUser(
	ctx context.Context, p Permit, q GhostQueue, user int64, rows []Rows,
) (left bool, err error) {
	p.Transaction = p.Statement + p.Lock + netTime
	err = d.transaction(ctx, "delete from users", p, func(ctx context.Context, tx pgx.Tx) (err error) {
		var partition *int64
		err = tx.QueryRow(ctx, lockMigratedSQL, user).Scan(&partition)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if left, err = d.lastLook(ctx, tx, rows); left || err != nil {
			return err
		}
		for _, sql := range []string{q.fill(unqueueSQL), deleteUserSQL} {
			if _, err := tx.Exec(ctx, sql, user); err != nil {
				return err
			}
		}
		if span := traceParentOf(ctx); span != "" && partition != nil {
			if _, err := tx.Exec(ctx, traceRecordSQL, user, *partition, span); err != nil {
				return err
			}
		}
		return refuseKept(ctx, tx, q.fill(userStaysSQL), user)
	})
	return left, err
}

const ghostProjectsSQL = `
SELECT EXISTS (SELECT FROM namespaces n JOIN projects p ON p.namespace_id = n.id WHERE n.owner_id = $1::bigint AND n.type = 'User')`

// HasPersonalProjects says whether there is a project in the user's own namespace.
func (d *Database) HasPersonalProjects(
	ctx context.Context, q GhostQueue, user int64, l Limits,
) (has bool, err error) {
	if q.projects {
		err = d.readRow(ctx, l, newQuery("look for personal projects", ghostProjectsSQL, user), &has)
	}
	return has, err
}

const scheduledGroupsSQL = `SELECT group_id FROM group_deletion_schedules WHERE user_id = $1::bigint ORDER BY group_id LIMIT 100`

// ScheduledGroups are the first groups that the user has marked for deletion: the marks go with the
// user.
func (d *Database) ScheduledGroups(ctx context.Context, user int64, l Limits) ([]int64, error) {
	return readRows(ctx, d, l, newQuery("look for groups marked by the user", scheduledGroupsSQL, user), pgx.RowTo[int64])
}

// ghostBacklogSQL: rows that the target check refuses are dead; those of users that are gone are
// nobody's.
const ghostBacklogSQL = `
SELECT count(*) FILTER (WHERE ok), count(*) FILTER (WHERE ok AND consume_after <= now()), count(*) FILTER (WHERE NOT ok),
  min(created_at) FILTER (WHERE ok), clock_timestamp()
FROM (
  SELECT ` + migratableSQL + ` AS ok, q.consume_after, q.created_at FROM {ghosts} q JOIN users u ON u.id = q.user_id LIMIT $1
) queued`

// GhostBacklog counts the rows of the queue.
func (d *Database) GhostBacklog(ctx context.Context, q GhostQueue, l Limits) (Backlog, error) {
	var b Backlog
	var oldest *time.Time
	_, err := d.candidateRow(ctx, l, newQuery("count the backlog", q.fill(ghostBacklogSQL), backlogCap+1), &b.Pending, &b.Due, &b.Dead, &oldest, &b.ReadAt)
	if oldest != nil {
		b.OldestAt = *oldest
	}
	return b.capped(), err
}
