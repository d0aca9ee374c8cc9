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

// The start of a group's removal, and its record.

// GroupVerdict is the result of the checks of destroy_group.
type GroupVerdict int

// The verdicts, in the order of the checks.
const (
	// GroupNotFound: the group does not exist.
	GroupNotFound GroupVerdict = iota
	// GroupNotDue: the group is no longer marked, or not due.
	GroupNotDue
	// GroupUserMissing: the requesting user was deleted.
	GroupUserMissing
	// GroupInProgress: the user has lost the right, and another process is deleting the group.
	GroupInProgress
	// GroupRestored: the user has lost the right.
	GroupRestored
	// GroupProtected: the group is protected, or a group or bot that would be deleted with it.
	GroupProtected
	// GroupRemovalStarted: its removal may continue.
	GroupRemovalStarted
)

// GroupBeginning is the result of an attempt to start a removal.
type GroupBeginning struct {
	Verdict GroupVerdict
	// Restoration is set with GroupRestored, Protection with GroupProtected.
	Restoration Restoration
	Protection  *pg.Protection
}

// GroupCycleError names a group whose tree cannot be removed.
type GroupCycleError struct{ GroupID int64 }

// Error explains what to do.
func (e *GroupCycleError) Error() string {
	return fmt.Sprintf("group %d is its own ancestor: correct parent_id in namespaces", e.GroupID)
}

// Public marks the text as fit for clients.
func (e *GroupCycleError) Public() {}

// BeginGroupRemoval repeats all checks under the lock of the group's row and starts its removal, or
// restores it, in one transaction. After the start, it only checks whether the group exists.
func (d Groups) BeginGroupRemoval(
	ctx context.Context, p fencing.Permit, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (b GroupBeginning, err error) {
	err = pg.Transaction(ctx, d.db, "start the removal of the group", p, func(ctx context.Context, tx *pg.Changing) error {
		b, err = beginGroup(ctx, tx, s, a, args)
		return err
	})
	return b, err
}

// beginGroup locks the group, decides the verdict, and records the start of a removal. If the group
// does not exist, it deletes the record of its removal.
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
	if b, err = judgeGroup(ctx, tx, s, a, args); err != nil || b.Verdict != GroupRemovalStarted {
		return b, err
	}
	// Without the column state, the record alone marks the start.
	if _, err := tx.Exec(ctx, recordRemovalSQL, args.GroupID, args.UserID); err != nil || !s.state {
		return b, err
	}
	_, err = tx.Change(ctx, groupChange("namespaces", progressSQL, args.GroupID))
	return b, pg.About("namespaces", err)
}

// judgeGroupSQL reads the marks and the state of the group $3, and whether the user $4 exists.
const judgeGroupSQL = `
SELECT mark.ripe, mark.begun, coalesce({state} = 4, false),
  EXISTS (SELECT FROM users u WHERE u.id = $4::bigint)
FROM namespaces n {marks} WHERE n.id = $3::bigint`

// judgeGroup decides the verdict on a locked group, and restores it if that is the verdict. A
// removal that has started continues without further checks.
func judgeGroup(
	ctx context.Context, tx *pg.Changing, s GroupStores, a Adjournment, args jobqueue.DestroyGroup,
) (b GroupBeginning, err error) {
	var ripe, started, working, known bool
	err = tx.QueryRow(ctx, s.fill(judgeGroupSQL), a.args(args.GroupID, args.UserID)...).
		Scan(&ripe, &started, &working, &known)
	switch {
	case err != nil:
		return b, err
	case started:
		return GroupBeginning{Verdict: GroupRemovalStarted}, nil
	case !ripe:
		return GroupBeginning{Verdict: GroupNotDue}, nil
	case !known:
		return GroupBeginning{Verdict: GroupUserMissing}, nil
	}
	allowed, err := mayRemoveGroup(ctx, tx, s, a, args)
	switch {
	case err != nil:
	case allowed:
		b.Verdict = GroupRemovalStarted
		if err = refuseCycle(ctx, tx, args.GroupID); err != nil {
			return b, err
		}
		// After the lock on the row, so that a protection committed before is seen.
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

// mayRemoveGroup reports whether the requesting user still has the right to remove the group.
// args.UserID must not be nil.
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

// cycleSQL reports whether $1 is its own ancestor. UNION ends the walk at a repeated id.
const cycleSQL = `
WITH RECURSIVE up (id) AS (
  SELECT parent_id FROM namespaces WHERE id = $1::bigint
  UNION
  SELECT above.id
  FROM up CROSS JOIN LATERAL (
    SELECT n.parent_id AS id FROM namespaces n WHERE n.id = up.id LIMIT 1) above
)
SELECT EXISTS (SELECT FROM up WHERE id = $1::bigint)`

// refuseCycle returns a [*GroupCycleError] if the group is its own ancestor: the removal would
// never end.
func refuseCycle(ctx context.Context, tx pgx.Tx, id int64) error {
	var cycle bool
	err := tx.QueryRow(ctx, cycleSQL, id).Scan(&cycle)
	if err == nil && cycle {
		err = &GroupCycleError{id}
	}
	return err
}

const (
	// recordRemovalSQL keeps the record of a previous attempt, with its user and counts.
	recordRemovalSQL = `
INSERT INTO maintenance.group_removals (group_id, user_id) VALUES ($1, $2)
ON CONFLICT (group_id) DO NOTHING`

	// progressSQL changes nothing if the state is already 4, a removal in progress.
	progressSQL = `UPDATE namespaces SET state = 4 WHERE id = $1::bigint AND state IS DISTINCT FROM 4`

	// forgetRemovalSQL deletes the record with its counts.
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

// forgetRemoval deletes the record of a removal, if it exists.
func forgetRemoval(ctx context.Context, tx pgx.Tx, id int64) error {
	_, err := tx.Exec(ctx, forgetRemovalSQL, id)
	return err
}

// deleteStaleRemovalsSQL deletes up to $1 records whose group does not exist, while the guard
// holds.
const deleteStaleRemovalsSQL = `
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

// DeleteStaleRemovals deletes up to 1000 records of removals whose group another process has
// deleted.
func (d Groups) DeleteStaleRemovals(ctx context.Context, p fencing.Permit) error {
	const operation = "delete removal records of missing groups"
	return pg.Write(ctx, d.db, p, pg.NewQuery(operation, deleteStaleRemovalsSQL, control.PruneBatch))
}

const (
	// unprogressSQL skips the state of a group whose removal another process has started.
	unprogressSQL = `
UPDATE namespaces SET state = 2
WHERE id = $1::bigint AND type = 'Group' AND state = 4
  AND EXISTS (SELECT FROM maintenance.group_removals r WHERE r.group_id = $1::bigint)`

	// recordFailureSQL adds the reason to the new store's JSON. A value that is not an object
	// stays.
	recordFailureSQL = `
UPDATE namespace_details
SET state_metadata =
  coalesce(state_metadata, '{}') || jsonb_build_object('deletion_error', $2::text)
WHERE namespace_id = $1::bigint AND coalesce(jsonb_typeof(state_metadata), 'object') = 'object'`
)

// FailGroupRemoval resets the group's state to deletion_scheduled and records the reason, in a text
// fit for users. Its marks stay, and so does the start of its removal.
func (d Groups) FailGroupRemoval(
	ctx context.Context, p fencing.Permit, s GroupStores, id int64, why string,
) error {
	record := func(ctx context.Context, tx *pg.Changing) (err error) {
		if s.state {
			_, err = tx.Change(ctx, groupChange("namespaces", unprogressSQL, id))
		}
		if err == nil && s.metadata {
			_, err = tx.Change(ctx, groupChange("namespace_details", recordFailureSQL, id, why))
		}
		return err
	}
	return pg.Transaction(ctx, d.db, "record that the group's removal failed", p, record)
}

// Removed counts what the removal of a group has removed.
type Removed struct {
	// GroupID is the group of the removal. With 0 nothing is recorded.
	GroupID int64
	// Groups, Projects, Rows of any table, and jobs queued for Bots.
	Groups, Projects, Rows, Bots int64
}

// saveRemovedSQL adds to the counts of a removal, and returns the sums.
const saveRemovedSQL = `
UPDATE maintenance.group_removals
SET removed_groups = removed_groups + $2, removed_projects = removed_projects + $3,
  removed_rows = removed_rows + $4, queued_bots = queued_bots + $5
WHERE group_id = $1
RETURNING removed_groups, removed_projects, removed_rows, queued_bots`

// saveRemoved returns the sums, zero without a record.
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

// SaveRemoved records what an attempt has removed since the last row of a project or group. It
// returns the sums of all attempts, zero without a record.
func (d Groups) SaveRemoved(
	ctx context.Context, p fencing.Permit, r Removed,
) (total Removed, err error) {
	save := func(ctx context.Context, tx *pg.Changing) error {
		total, err = saveRemoved(ctx, tx, r)
		return err
	}
	err = pg.Transaction(ctx, d.db, "record the progress of the removal", p, save)
	return total, err
}

// GroupRemoval is a started removal, and the counts of what it has removed so far.
type GroupRemoval struct {
	Removed
	// StartedAt is when the first attempt started the removal.
	StartedAt time.Time
}

// groupRemovalsSQL reads the records of started removals, the oldest first.
const groupRemovalsSQL = `
SELECT group_id, removed_groups, removed_projects, removed_rows, queued_bots, begun_at
FROM maintenance.group_removals ORDER BY begun_at, group_id LIMIT $1`

// GroupRemovals reads up to limit started removals, the oldest first.
func (d Groups) GroupRemovals(ctx context.Context, limit int, l fencing.Limits) ([]GroupRemoval, error) {
	read := pg.NewQuery("read started removals", groupRemovalsSQL, limit)
	return pg.ReadRows(ctx, d.db, l, read, func(row pgx.CollectableRow) (r GroupRemoval, err error) {
		err = row.Scan(&r.GroupID, &r.Groups, &r.Projects, &r.Rows, &r.Bots, &r.StartedAt)
		return r, err
	})
}
