package gitlab

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// migratableSQL are the types of users that may be deleted: human, project bot, service account,
// placeholder. A user without a type is human. The job delete_user has the same rule.
const migratableSQL = `coalesce(u.user_type, 0) IN (0, 6, 13, 15)`

// GhostQueue is this database's queue of users whose contributions move to a ghost.
type GhostQueue struct {
	// table is the queue, under its current or its older name.
	table *catalog.Relation
	// organization: users.organization_id. projects: projects.namespace_id.
	organization, projects bool
}

// essentialGhostColumns are the columns that a queue requires.
func essentialGhostColumns() []string {
	return []string{"id", "user_id", "hard_delete", "consume_after", "created_at"}
}

// GhostTables are the tables and columns that [GhostQueue] must find in the catalogue.
func GhostTables() map[string][]string {
	queue := append([]string{"user_type", "updated_at"}, essentialGhostColumns()...)
	return map[string][]string{
		"ghost_user_migrations": queue, "users_ghost_user_migrations": queue,
		"users":    {"id", "user_type", "state", "organization_id"},
		"projects": {"namespace_id"}, "namespaces": {"owner_id", "type"},
	}
}

// Queue finds the queue in a catalogue. missing names the missing essential table or column.
func (Ghosts) Queue(ctx context.Context, c *catalog.Catalog) (q GhostQueue, missing string) {
	absent := func(what string) string {
		return pg.ExplainMissing(ctx, c.Database, fmt.Sprintf("database main has no %s in the application schema "+
			"(expected if GitLab does not use this database)", what))
	}
	users := c.Table("users")
	for _, column := range []string{"id", "user_type", "state"} {
		if !users.Has(column) {
			return q, absent("users." + column)
		}
	}
	q.table = ghostTable(c)
	q.organization = users.Has("organization_id")
	q.projects = c.Table("projects").Has("namespace_id")
	if q.table == nil {
		return q, absent("ghost_user_migrations")
	}
	for _, column := range essentialGhostColumns() {
		if !q.table.Has(column) {
			return q, absent(q.table.Name + "." + column)
		}
	}
	return q, ""
}

// ghostTable returns the queue: the table of this name, or else that of the older name. It is nil
// without either.
func ghostTable(c *catalog.Catalog) *catalog.Relation {
	return cmp.Or(c.Table("ghost_user_migrations"), c.Table("users_ghost_user_migrations"))
}

// Table returns the queue's table.
func (q GhostQueue) Table() catalog.Table { return q.table.Table }

// fill puts this database's columns into a statement. {kind} is the type of the user u of the row
// q. {same} compares the organization of the ghost g with that of u.
func (q GhostQueue) fill(sql string) string {
	kind, touched := "coalesce(u.user_type, 0)", ""
	organization, same := "NULL::bigint", "true"
	if q.table.Has("user_type") {
		kind = "coalesce(q.user_type, u.user_type, 0)"
	}
	if q.organization {
		organization = "u.organization_id"
		same = "g.organization_id IS NOT DISTINCT FROM u.organization_id"
	}
	if q.table.Has("updated_at") {
		touched = ", updated_at = now()"
	}
	return stmt.Fill(sql, "{ghosts}", q.table.SQL(), "{queue}", q.table.Name, "{kind}", kind,
		"{organization}", organization, "{same}", same, "{touched}", touched)
}

// GhostMigration is a row of the queue. UserID is 0, which no user has, if the row names no user.
type GhostMigration struct{ ID, UserID int64 }

// dueMigrationsSQL sorts humans first: bots can wait, a person may have asked to be deleted.
const dueMigrationsSQL = `
SELECT q.id, coalesce(q.user_id, 0) FROM {ghosts} q LEFT JOIN users u ON u.id = q.user_id
WHERE q.consume_after <= $1
ORDER BY {kind} <> 0, q.consume_after, q.id
LIMIT $2`

// DueMigrations reads the rows that were due at an instant, at most limit, in their order of
// processing. They are candidates: [GhostTarget] reads each again when its turn comes.
func (d Ghosts) DueMigrations(
	ctx context.Context, q GhostQueue, at time.Time, limit int, l fencing.Limits,
) ([]GhostMigration, error) {
	read := pg.NewQuery("read the user queue", q.fill(dueMigrationsSQL), at, limit)
	due, _, err := pg.ReplicaRows(ctx, d.db, l, read, pgx.RowToStructByPos[GhostMigration])
	return due, err
}

// GhostTarget is the current state of a row of the queue and its user.
type GhostTarget struct {
	// Due: the row exists and is due. Exists: the user exists.
	Due, Exists, HardDelete bool
	// Migratable users may be deleted. Others, if they exist, are refused.
	Migratable bool
	Type       int16
	// Protections: protections exist, which may keep the user.
	Protections bool
	// Active reports that a queued user is not blocked. Queued reports that the job delete_user has
	// finished its part. Only plans set Queued.
	Active, Queued bool
	// Organization of the user, nil if users have none, and its Ghost, 0 if it has none.
	Organization *int64
	Ghost        int64
}

// ghostTargetSQL returns no row if the row $1 of the queue is not due, or is not of the user $2.
const ghostTargetSQL = `
SELECT true, u.id IS NOT NULL, coalesce(q.hard_delete, false), ` + migratableSQL + `,
  coalesce(u.user_type, 0), EXISTS (
    SELECT FROM maintenance.protected_targets p WHERE ` + pg.ActiveSQL + `),
  coalesce(u.state::text = 'active', false), true, {organization},
  coalesce((SELECT g.id FROM users g WHERE g.user_type = 5 AND {same} ORDER BY g.id LIMIT 1), 0)
FROM {ghosts} q LEFT JOIN users u ON u.id = q.user_id
WHERE q.id = $1::bigint AND coalesce(q.user_id, 0) = $2::bigint
  AND q.consume_after <= clock_timestamp()`

// GhostTarget reads a row of the queue and its user. The zero value means that the row is not due.
func (d Ghosts) GhostTarget(
	ctx context.Context, q GhostQueue, m GhostMigration, l fencing.Limits,
) (t GhostTarget, err error) {
	read := pg.NewQuery("read a queued user", q.fill(ghostTargetSQL), m.ID, m.UserID)
	found, err := pg.ReadRows(ctx, d.db, l, read, pgx.RowToStructByPos[GhostTarget])
	if len(found) > 0 {
		t = found[0]
	}
	return t, err
}

// planGhostTargetSQL is ghostTargetSQL for a user who is perhaps not queued yet. An existing row of
// the queue does not change.
const planGhostTargetSQL = `
SELECT true, true, coalesce((
    SELECT q.hard_delete FROM {ghosts} q
    WHERE q.user_id = u.id ORDER BY q.consume_after, q.id LIMIT 1), false),
  ` + migratableSQL + `, coalesce(u.user_type, 0), false,
  queued.is AND coalesce(u.state::text = 'active', false), queued.is, {organization},
  coalesce((SELECT g.id FROM users g WHERE g.user_type = 5 AND {same} ORDER BY g.id LIMIT 1), 0)
FROM users u CROSS JOIN LATERAL (
  SELECT EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = u.id)
    AND NOT EXISTS (SELECT FROM maintenance.user_removals r WHERE r.user_id = u.id) AS is) queued
WHERE u.id = $1::bigint`

// PlanGhostTarget reads a user as [GhostTarget] does for a queued user. The zero value means that
// the user does not exist.
func (d Ghosts) PlanGhostTarget(
	ctx context.Context, q GhostQueue, user int64, l fencing.Limits,
) (t GhostTarget, err error) {
	l.ReadOnly = true
	read := pg.NewQuery("read a user", q.fill(planGhostTargetSQL), user)
	found, err := pg.ReadRows(ctx, d.db, l, read, pgx.RowToStructByPos[GhostTarget])
	if len(found) > 0 {
		t = found[0]
	}
	return t, err
}

// removeOrphanSQL checks in the same statement that the user does not exist.
const removeOrphanSQL = `
WITH {guard},
changed AS (
  DELETE FROM {ghosts} q
  WHERE q.id = $1::bigint AND NOT EXISTS (SELECT FROM users u WHERE u.id = q.user_id)
    AND (SELECT held FROM guard) = 1
  RETURNING q.id AS key
)
SELECT EXISTS (SELECT FROM guard) AND {noted}`

// RemoveOrphan removes a row of the queue whose user was deleted. An existing user keeps the row.
func (d Ghosts) RemoveOrphan(
	ctx context.Context, p fencing.Permit, q GhostQueue, m GhostMigration,
) error {
	const operation = "remove an orphaned queue row"
	sql := pg.Summary(d.db, stmt.Fill(q.fill(removeOrphanSQL), "{noted}", pg.ReceiptSQL), "key", "true")
	removed := pg.Receipt{Table: q.table.Name, Action: pg.ReceiptDeleted, Rule: operation}
	return pg.Change(ctx, d.db, p, pg.NewQuery(operation, sql, m.ID), removed)
}

// failMigrationSQL makes a row due 30 minutes from now, whatever its previous time.
const failMigrationSQL = `
WITH {guard},
postponed AS (
  UPDATE {ghosts} SET consume_after = now() + interval '30 minutes'{touched}
  WHERE id = $1::bigint AND (SELECT held FROM guard) = 1
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard)`

// FailMigration postpones a row by half an hour after an error. It adds 1 to the count named
// counted.
func (d Ghosts) FailMigration(
	ctx context.Context, p fencing.Permit, q GhostQueue, m GhostMigration, counted string,
) error {
	return pg.Write(ctx, d.db, p, q.postpone("postpone a user after an error", failMigrationSQL, counted, m.ID, p.RunID))
}

// postpone returns a statement that postpones a row, and journals the postponed rows as the count
// named counted.
func (q GhostQueue) postpone(operation, sql, counted string, args ...any) pg.Query {
	change := pg.NewQuery(operation, pg.Journaled(q.fill(sql), "('"+counted+"', (SELECT count(*) FROM postponed))", 2), args...)
	change.Table = q.table.Name
	return change
}

// deferMigrationSQL adds 30 seconds to the time at which the row is due, or to now if that is
// later.
const deferMigrationSQL = `
WITH {guard},
postponed AS (
  UPDATE {ghosts}
  SET consume_after = greatest(consume_after, now()) + interval '30 seconds'{touched}
  WHERE id = $1::bigint AND (SELECT held FROM guard) = 1
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard)`

// DeferMigration moves a row after all that are due now, because its time was used up or another
// transaction had locked rows of the user. It adds 1 to the count named counted.
func (d Ghosts) DeferMigration(
	ctx context.Context, p fencing.Permit, q GhostQueue, m GhostMigration, counted string,
) error {
	return pg.Write(ctx, d.db, p, q.postpone("defer a user", deferMigrationSQL, counted, m.ID, p.RunID))
}

// ghostBacklogSQL counts rows of refused users as dead, and does not count rows of deleted users.
const ghostBacklogSQL = `
SELECT count(*) FILTER (WHERE ok), count(*) FILTER (WHERE ok AND consume_after <= now()),
  count(*) FILTER (WHERE NOT ok), min(created_at) FILTER (WHERE ok), clock_timestamp()
FROM (
  SELECT ` + migratableSQL + ` AS ok, q.consume_after, q.created_at
  FROM {ghosts} q JOIN users u ON u.id = q.user_id LIMIT $1
) queued`

// GhostBacklog counts the rows of the queue, up to a million of them.
func (d Ghosts) GhostBacklog(
	ctx context.Context, q GhostQueue, l fencing.Limits,
) (b control.Backlog, err error) {
	count := pg.NewQuery("count the backlog", q.fill(ghostBacklogSQL), control.BacklogCap+1)
	_, err = pg.ReplicaRow(ctx, d.db, l, count, &b.Pending, &b.Due, &b.Dead, &b.OldestAt, &b.ReadAt)
	return b.Capped(), err
}

// waitingGhostsSQL lists up to $2 users. $1 selects those that are never deleted, otherwise
// postponed ones. $3 and $4 are the protected users and their reasons.
const waitingGhostsSQL = `
SELECT u.id, to_jsonb(u) ->> 'username', q.created_at,
  CASE WHEN NOT $1::boolean THEN q.consume_after END,
  CASE WHEN $1::boolean THEN '` + reasons.InternalUser + `: users of this type are never deleted'
    ELSE coalesce((
      SELECT 'PROTECTED: ' || k.words FROM unnest($3::bigint[], $4::text[]) AS k (id, words) WHERE k.id = u.id
    ), 'postponed after an error, a lock or the end of its time') END
FROM {ghosts} q JOIN users u ON u.id = q.user_id
WHERE CASE WHEN $1::boolean THEN NOT ` + migratableSQL + `
  ELSE ` + migratableSQL + ` AND q.consume_after > now() END
ORDER BY q.consume_after, q.id LIMIT $2`

// WaitingGhosts returns the first 100 refused (dead) or postponed users of the queue, the earliest
// due first.
func (d Ghosts) WaitingGhosts(
	ctx context.Context, q GhostQueue, dead bool, l fencing.Limits,
) ([]jobqueue.Waiting, error) {
	kept, err := protection.NewProtections(d.db).Keeping(ctx, l)
	if err != nil {
		return nil, err
	}
	users, texts := listed(kept, control.KindUser)
	list := pg.NewQuery("list pending users", q.fill(waitingGhostsSQL), dead, jobqueue.WaitingShown, users, texts)
	rows, err := pg.ReadRows(ctx, d.db, l, list, pgx.RowToStructByPos[jobqueue.WaitingRow])
	return jobqueue.ReadWaiting("user", rows), err
}
