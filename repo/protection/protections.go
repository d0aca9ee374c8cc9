// Package protection protects users and groups, and finds all that must stay with them.
package protection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

const protectionColumns = `p.kind, p.id, p.reason, p.protected_by, p.since, p.until`

// DeletionStartedError reports that it is too late to protect a user or group. The deletion of the
// user, or of the group or one above it, has started.
type DeletionStartedError struct {
	Kind string
	ID   int64
}

// Error returns the failure and what to do.
func (e *DeletionStartedError) Error() string {
	return fmt.Sprintf("%s %d cannot be protected, because its deletion has started: to stop the "+
		"deletion, find its job with `caretaker jobs`, and cancel the job",
		e.Kind, e.ID)
}

// Details returns the reason and the metadata for clients.
func (e *DeletionStartedError) Details() (string, map[string]string) {
	return "DELETION_BEGUN", map[string]string{"kind": e.Kind, "id": strconv.FormatInt(e.ID, 10)}
}

// NotAGroupError reports that the id of a group to protect is that of another namespace.
type NotAGroupError struct {
	ID int64
	// Owner is the user whose personal namespace it is, 0 for a project's namespace.
	Owner int64
}

// Error returns the failure and what to protect instead.
func (e *NotAGroupError) Error() string {
	if e.Owner == 0 {
		return fmt.Sprintf("namespace %d belongs to a project: protect the group of the project", e.ID)
	}
	return fmt.Sprintf("namespace %d belongs to user %d: protect user %[2]d", e.ID, e.Owner)
}

const (
	// shareUserSQL waits for a transaction that decides about the user, and blocks new ones.
	shareUserSQL = `SELECT FROM users WHERE id = $1::bigint FOR SHARE`

	// shareGroupsSQL does so with the group and all groups above it, whose deletion would include
	// it. UNION ends the walk at a repeated id. OFFSET 0 keeps it a lookup.
	shareGroupsSQL = aboveSQL + `
SELECT n.id FROM namespaces n WHERE n.id IN (SELECT id FROM up) ORDER BY n.id FOR SHARE OF n`

	aboveSQL = `
WITH RECURSIVE up (id) AS (
  SELECT $1::bigint
  UNION
  SELECT n.parent_id::bigint
  FROM up CROSS JOIN LATERAL (
    SELECT parent_id FROM namespaces WHERE id = up.id AND parent_id IS NOT NULL OFFSET 0) n
)`

	// notAGroupSQL finds a namespace of another type. Those of users long had no type.
	notAGroupSQL = `
SELECT CASE WHEN n.type = 'Project' THEN 0 ELSE coalesce(n.owner_id, 0)::bigint END
FROM namespaces n WHERE n.id = $1::bigint AND n.type IS DISTINCT FROM 'Group'`

	userRemovalStartedSQL = `
SELECT EXISTS (SELECT FROM maintenance.user_removals WHERE user_id = $1)`

	groupRemovalStartedSQL = aboveSQL + `
SELECT EXISTS (SELECT FROM maintenance.group_removals r WHERE r.group_id IN (SELECT id FROM up))`

	protectSQL = `
INSERT INTO maintenance.protected_targets AS p (kind, id, reason, protected_by, until)
VALUES ($1, $2, $3, $4,
  CASE WHEN $5::interval > interval '0' THEN clock_timestamp() + $5::interval END)
ON CONFLICT (kind, id) DO UPDATE
SET reason = EXCLUDED.reason, protected_by = EXCLUDED.protected_by, since = EXCLUDED.since,
  until = EXCLUDED.until
WHERE p.until < coalesce(EXCLUDED.until, 'infinity')
RETURNING ` + protectionColumns
)

// protectLimits bounds the wait for a transaction that starts a deletion.
func protectLimits() fencing.Limits {
	return fencing.Limits{Statement: 10 * time.Second, Lock: 5 * time.Second, Transaction: 20 * time.Second}
}

// Protect protects p.ID for ttl, 0 means permanently. It extends an existing protection but never
// shortens it: then it returns the existing one. To shorten one, call [Protections.Unprotect]
// first. The user or group need not exist yet, unless mustExist is set: then the error is
// [dberr.ErrNotFound].
//
// It locks the rows that a deletion locks before it decides: whichever of the two is second sees
// the first. The error is a [*DeletionStartedError] if the deletion was first, and a
// [*NotAGroupError] if the id is not that of a group.
func (d Protections) Protect(
	ctx context.Context, p pg.Protection, ttl time.Duration, mustExist bool,
) (protected pg.Protection, err error) {
	needs, share, started := catalog.ReferencesOf("users", "id"), shareUserSQL, userRemovalStartedSQL
	if p.Kind == control.KindGroup {
		needs, share, started = catalog.ReferencesOf("namespaces", "id parent_id type owner_id"), shareGroupsSQL, groupRemovalStartedSQL
	}
	tables, err := catalog.Present(ctx, d.db, needs)
	if err != nil {
		return protected, err
	}
	do := func(ctx context.Context, tx *pg.Changing) error {
		if tables.Has(needs...) {
			exists, err := refuseStarted(ctx, tx, p, share, started)
			if err == nil && mustExist && !exists {
				err = dberr.ErrNotFound
			}
			if err != nil {
				return err
			}
		}
		rows, _ := tx.Query(ctx, protectSQL, p.Kind, p.ID, p.Reason, p.By, ttl)
		protected, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[pg.Protection])
		if errors.Is(err, pgx.ErrNoRows) {
			// The existing, longer protection stays: this transaction has its row locked.
			rows, _ = tx.Query(ctx, protectedTargetSQL, p.Kind, p.ID)
			protected, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[pg.Protection])
		}
		return err
	}
	// No run or job owns this change, so no lease is required.
	err = pg.Transaction(ctx, d.db, "protect "+p.Kind, fencing.Permit{Guard: fencing.Unguarded(), Limits: protectLimits()}, do)
	return protected, err
}

// refuseStarted locks the target, and reports whether it exists.
func refuseStarted(
	ctx context.Context, tx pgx.Tx, p pg.Protection, share, started string,
) (exists bool, err error) {
	locked, err := tx.Exec(ctx, share, p.ID)
	if err != nil {
		return false, err
	}
	if p.Kind == control.KindGroup {
		var owner int64
		err := tx.QueryRow(ctx, notAGroupSQL, p.ID).Scan(&owner)
		if !errors.Is(err, pgx.ErrNoRows) {
			return false, cmp.Or[error](err, &NotAGroupError{p.ID, owner})
		}
	}
	var is bool
	err = tx.QueryRow(ctx, started, p.ID).Scan(&is)
	if err == nil && is {
		err = &DeletionStartedError{p.Kind, p.ID}
	}
	return locked.RowsAffected() > 0, err
}

const unprotectSQL = `
DELETE FROM maintenance.protected_targets p
WHERE p.kind = $1 AND p.id = $2 AND ` + pg.ActiveSQL + ` RETURNING ` + protectionColumns

// Unprotect ends a protection and returns it. If none is in force the error is [dberr.ErrNotFound].
func (d Protections) Unprotect(ctx context.Context, kind string, id int64) (pg.Protection, error) {
	ended, err := pg.Collect(ctx, d.db, pg.NewQuery("unprotect "+kind, unprotectSQL, kind, id), pgx.RowToStructByPos[pg.Protection])
	if err == nil && len(ended) == 0 {
		err = dberr.ErrNotFound
	}
	if err != nil {
		return pg.Protection{}, err
	}
	return ended[0], nil
}

const protectionsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE (p.kind, p.id) > ($1, $2::bigint) AND ($3 = '' OR p.kind = $3) AND ` + pg.ActiveSQL + `
ORDER BY p.kind, p.id LIMIT $4`

// Protections reads the next limit protections in force after one, by kind and id: of one kind or,
// with "", of all.
func (d Protections) Protections(
	ctx context.Context, kind string, after pg.Protection, limit int,
) ([]pg.Protection, error) {
	q := pg.NewQuery("list protections", protectionsSQL, after.Kind, after.ID, kind, limit)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[pg.Protection])
}

const protectedTargetSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE p.kind = $1 AND p.id = $2::bigint AND ` + pg.ActiveSQL

// Protecting returns the protection that keeps a user or group from being deleted, nil if none. It
// is their own, or that of a user or group that would be deleted with them. started means that the
// deletion has started: then a target with its own job no longer keeps it.
func (d Protections) Protecting(
	ctx context.Context, kind string, id int64, started bool, l fencing.Limits,
) (*pg.Protection, error) {
	kept, err := keeping(ctx, d.db, steps(d.db, started), l)
	return kept.Of(kind, id), err
}

// OwnProtection returns the protection of a user or group itself, nil if none.
func (d Protections) OwnProtection(
	ctx context.Context, kind string, id int64, l fencing.Limits,
) (*pg.Protection, error) {
	q := pg.NewQuery("find a protection", protectedTargetSQL, kind, id)
	found, err := pg.ReadRows(ctx, d.db, l, q, pgx.RowToStructByPos[pg.Protection])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// Protecting is [Protections.Protecting] in a transaction that holds the lock on the target's row.
func Protecting(ctx context.Context, tx *pg.Changing, kind string, id int64) (*pg.Protection, error) {
	kept, err := keep(ctx, tx, steps(tx.Database, false))
	return kept.Of(kind, id), err
}
