package gitlab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
)

// The beginning of a group's removal, and what is recorded of it.

// GroupVerdict is what the checks of destroy_group found.
type GroupVerdict int

// The verdicts, in the order in which they are found.
const (
	// GroupGone: there is no such group.
	GroupGone GroupVerdict = iota
	// GroupNotDue: it is not marked, or not due, any more.
	GroupNotDue
	// GroupUserMissing: the user who wanted it is gone.
	GroupUserMissing
	// GroupInProgress: the user has lost the right, and somebody is deleting it.
	GroupInProgress
	// GroupRestored: the user has lost the right.
	GroupRestored
	// GroupProtected: it is protected, or a group or bot that would go with it.
	GroupProtected
	// GroupBegun: its removal may go on.
	GroupBegun
)

// GroupBeginning is what came of an attempt to begin.
type GroupBeginning struct {
	Verdict GroupVerdict
	// Restoration is set with GroupRestored, Protection with GroupProtected.
	Restoration Restoration
	Protection  *pg.Protection
}

// GroupCycleError names a group whose tree cannot be removed.
type GroupCycleError struct{ GroupID int64 }

// Error says what to do.
func (e *GroupCycleError) Error() string {
	return fmt.Sprintf("group %d is its own ancestor: correct parent_id in namespaces", e.GroupID)
}

// Public says that the text is fit for clients.
func (e *GroupCycleError) Public() {}

// BeginGroupRemoval checks everything again under the lock of the group's row and begins its
// removal, or restores it, in one transaction. Once begun, only whether the group is there is
// checked.
func (d Groups) BeginGroupRemoval(
	ctx context.Context, p fencing.Permit, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (b GroupBeginning, err error) {
	err = pg.Transaction(ctx, d.db, "begin to remove group", p, func(ctx context.Context, tx *pg.Changing) error {
		b, err = beginGroup(ctx, tx, s, a, args)
		return err
	})
	return b, err
}

func beginGroup(
	ctx context.Context, tx *pg.Changing, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (b GroupBeginning, err error) {
	err = lockGroup(ctx, tx, args.GroupID)
	if errors.Is(err, dberr.ErrNotFound) {
		return b, forgetRemoval(ctx, tx, args.GroupID)
	}
	if err != nil {
		return b, err
	}
	if b, err = judgeGroup(ctx, tx, s, a, args); err != nil || b.Verdict != GroupBegun {
		return b, err
	}
	if _, err := tx.Exec(ctx, noteRemovalSQL, args.GroupID, args.UserID); err != nil || !s.state {
		return b, err
	}
	_, err = tx.Change(ctx, groupChange("namespaces", progressSQL, args.GroupID))
	return b, pg.About("namespaces", err)
}

const judgeGroupSQL = `
SELECT mark.ripe, mark.begun, coalesce({state} = 4, false),
  EXISTS (SELECT FROM users u WHERE u.id = $4::bigint)
FROM namespaces n {marks} WHERE n.id = $3::bigint`

// judgeGroup finds the verdict about a locked group, and restores it if that is the verdict.
func judgeGroup(
	ctx context.Context, tx *pg.Changing, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (b GroupBeginning, err error) {
	var ripe, begun, working, known bool
	err = tx.QueryRow(ctx, s.fill(judgeGroupSQL), a.args(args.GroupID, args.UserID)...).
		Scan(&ripe, &begun, &working, &known)
	switch {
	case err != nil:
		return b, err
	case begun:
		return GroupBeginning{Verdict: GroupBegun}, nil
	case !ripe:
		return GroupBeginning{Verdict: GroupNotDue}, nil
	case !known:
		return GroupBeginning{Verdict: GroupUserMissing}, nil
	}
	allowed, err := mayRemoveGroup(ctx, tx, s, a, args)
	switch {
	case err != nil:
	case allowed:
		b.Verdict = GroupBegun
		if err = refuseCycle(ctx, tx, args.GroupID); err != nil {
			return b, err
		}
		// Behind the lock on the row: a protection that was committed before is seen.
		b.Protection, err = protection.Protecting(ctx, tx, control.KindGroup, args.GroupID)
		if b.Protection != nil {
			b.Verdict = GroupProtected
		}
	case working:
		b.Verdict = GroupInProgress
	default:
		b.Verdict = GroupRestored
		b.Restoration, err = restoreGroup(ctx, tx, s, a, args.GroupID)
	}
	return b, err
}

func mayRemoveGroup(
	ctx context.Context, tx pgx.Tx, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (bool, error) {
	var allowed int64
	asked, user := []int64{args.GroupID}, []int64{*args.UserID}
	err := tx.QueryRow(ctx, s.fill(removeGroupSQL), a.At, asked, user).Scan(&allowed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

const cycleSQL = `
WITH RECURSIVE up (id) AS (
  SELECT parent_id FROM namespaces WHERE id = $1::bigint
  UNION
  SELECT above.id
  FROM up CROSS JOIN LATERAL (
    SELECT n.parent_id AS id FROM namespaces n WHERE n.id = up.id LIMIT 1) above
)
SELECT EXISTS (SELECT FROM up WHERE id = $1::bigint)`

// refuseCycle keeps a removal from beginning that could not end.
func refuseCycle(ctx context.Context, tx pgx.Tx, id int64) error {
	var cycle bool
	err := tx.QueryRow(ctx, cycleSQL, id).Scan(&cycle)
	if err == nil && cycle {
		err = &GroupCycleError{id}
	}
	return err
}

const (
	noteRemovalSQL = `
INSERT INTO maintenance.group_removals (group_id, user_id) VALUES ($1, $2)
ON CONFLICT (group_id) DO NOTHING`

	progressSQL = `UPDATE namespaces SET state = 4 WHERE id = $1::bigint AND state IS DISTINCT FROM 4`

	forgetRemovalSQL = `DELETE FROM maintenance.group_removals WHERE group_id = $1`
)

// groupChange is an update of a group's rows, whose first argument is the group.
func groupChange(table, sql string, args ...any) pg.RowChange {
	key := "id"
	if table == "namespace_details" {
		key = "namespace_id"
	}
	return pg.RowChange{Table: table, Action: pg.ReceiptUpdated, SQL: sql, Key: key, Args: args}
}

func forgetRemoval(ctx context.Context, tx pgx.Tx, id int64) error {
	_, err := tx.Exec(ctx, forgetRemovalSQL, id)
	return err
}

const forgetGoneSQL = `
WITH {guard},
gone AS MATERIALIZED (
  SELECT r.group_id FROM maintenance.group_removals r
  WHERE NOT EXISTS (
    SELECT FROM namespaces n WHERE n.id = r.group_id AND n.type = 'Group' OFFSET 0)
  LIMIT $1
),
forgotten AS (
  DELETE FROM maintenance.group_removals r USING gone
  WHERE r.group_id = gone.group_id AND (SELECT held FROM guard) = 1
)
SELECT EXISTS (SELECT FROM guard)`

// ForgetGoneRemovals deletes up to 1000 records of removals whose group somebody else has deleted.
func (d Groups) ForgetGoneRemovals(ctx context.Context, p fencing.Permit) error {
	const operation = "forget removals of groups that are gone"
	return pg.Write(ctx, d.db, p, pg.NewQuery(operation, forgetGoneSQL, control.PruneBatch))
}

const (
	// unprogressSQL leaves the state of a group alone whose removal somebody else has begun.
	unprogressSQL = `
UPDATE namespaces SET state = 2
WHERE id = $1::bigint AND type = 'Group' AND state = 4
  AND EXISTS (SELECT FROM maintenance.group_removals r WHERE r.group_id = $1::bigint)`

	noteFailureSQL = `
UPDATE namespace_details
SET state_metadata =
  coalesce(state_metadata, '{}') || jsonb_build_object('deletion_error', $2::text)
WHERE namespace_id = $1::bigint AND coalesce(jsonb_typeof(state_metadata), 'object') = 'object'`
)

// FailGroupRemoval takes the group's state back to deletion_scheduled and notes why, in words fit
// for users. Its marks stay, and that its removal has begun.
func (d Groups) FailGroupRemoval(
	ctx context.Context, p fencing.Permit, s GroupStores, id int64, why string,
) error {
	note := func(ctx context.Context, tx *pg.Changing) (err error) {
		if s.state {
			_, err = tx.Change(ctx, groupChange("namespaces", unprogressSQL, id))
		}
		if err == nil && s.metadata {
			_, err = tx.Change(ctx, groupChange("namespace_details", noteFailureSQL, id, why))
		}
		return err
	}
	return pg.Transaction(ctx, d.db, "note that the group's removal failed", p, note)
}

// Removed is what the removal of a group has removed.
type Removed struct {
	// GroupID is the group whose removal it is; 0: none, nothing is recorded.
	GroupID int64
	// Groups, Projects, Rows of any table, and jobs queued for Bots.
	Groups, Projects, Rows, Bots int64
}

const saveRemovedSQL = `
UPDATE maintenance.group_removals
SET removed_groups = removed_groups + $2, removed_projects = removed_projects + $3,
  removed_rows = removed_rows + $4, queued_bots = queued_bots + $5
WHERE group_id = $1
RETURNING removed_groups, removed_projects, removed_rows, queued_bots`

// saveRemoved returns the sums, zero where there is no record.
func saveRemoved(ctx context.Context, tx pgx.Tx, r Removed) (total Removed, err error) {
	if r.GroupID == 0 {
		return total, nil
	}
	total.GroupID = r.GroupID
	err = tx.QueryRow(ctx, saveRemovedSQL, r.GroupID, r.Groups, r.Projects, r.Rows, r.Bots).
		Scan(&total.Groups, &total.Projects, &total.Rows, &total.Bots)
	if errors.Is(err, pgx.ErrNoRows) {
		return Removed{}, nil
	}
	return total, err
}

// SaveRemoved records what an attempt has removed since the last row of a project or group, and
// returns the sums of all attempts, zero where there is no record.
func (d Groups) SaveRemoved(
	ctx context.Context, p fencing.Permit, r Removed,
) (total Removed, err error) {
	save := func(ctx context.Context, tx *pg.Changing) error {
		total, err = saveRemoved(ctx, tx, r)
		return err
	}
	err = pg.Transaction(ctx, d.db, "record what has been removed", p, save)
	return total, err
}

// GroupRemoval is a removal that has begun, and what it has removed so far.
type GroupRemoval struct {
	Removed
	BegunAt time.Time
}

const groupRemovalsSQL = `
SELECT group_id, removed_groups, removed_projects, removed_rows, queued_bots, begun_at
FROM maintenance.group_removals ORDER BY begun_at, group_id LIMIT $1`

// GroupRemovals reads up to limit of the removals that have begun, the oldest first.
func (d Groups) GroupRemovals(ctx context.Context, limit int, l fencing.Limits) ([]GroupRemoval, error) {
	read := pg.NewQuery("read the removals that have begun", groupRemovalsSQL, limit)
	return pg.ReadRows(ctx, d.db, l, read, func(row pgx.CollectableRow) (r GroupRemoval, err error) {
		err = row.Scan(&r.GroupID, &r.Groups, &r.Projects, &r.Rows, &r.Bots, &r.BegunAt)
		return r, err
	})
}
