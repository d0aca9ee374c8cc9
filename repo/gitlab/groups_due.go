package gitlab

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// Due groups, who may remove them, and the job that does.

// groupCandidatesSQL: an id past the cut-off in one store can be before it in the other, and need
// not be a group. MATERIALIZED keeps the stores' own indexes on the date in use: only few of all
// namespaces are marked. With UNION instead of UNION ALL some versions of PostgreSQL would merge
// the stores in the order of their ids, and read them completely.
const groupCandidatesSQL = `
WITH candidates AS MATERIALIZED (
  SELECT l.group_id FROM {legacy} l WHERE l.marked_on <= {cutoff}
  UNION ALL
  SELECT d.group_id FROM {modern} d WHERE d.marked_at < ({cutoff} + 1)::timestamp AT TIME ZONE 'UTC'
  UNION ALL
  SELECT r.group_id FROM maintenance.group_removals r WHERE r.group_id > $3
)
SELECT DISTINCT group_id FROM candidates WHERE group_id > $3 ORDER BY group_id LIMIT $4`

// candidatesPage is the number of group ids that are read at a time.
const candidatesPage = 10_000

// GroupCandidates reads the ids after the id after of the next 10,000 namespaces that may be due,
// in order. [Groups.DueGroups] decides which of them are.
func (d Groups) GroupCandidates(
	ctx context.Context, s GroupStores, a Adjournment, after int64, l fencing.Limits,
) ([]int64, error) {
	args := a.args(after, candidatesPage)
	q := pg.NewQuery("find groups that may be due", s.fill(groupCandidatesSQL), args...)
	ids, _, err := pg.ReplicaRows(ctx, d.db, l, q, pgx.RowTo[int64])
	return ids, err
}

const isGroupSQL = `SELECT EXISTS (SELECT FROM namespaces WHERE id = $1::bigint AND type = 'Group')`

// IsGroup reports whether there is a group with this id.
func (d Groups) IsGroup(ctx context.Context, id int64, l fencing.Limits) (is bool, err error) {
	err = pg.ReadRow(ctx, d.db, l, pg.NewQuery("find the group", isGroupSQL, id), &is)
	return is, err
}

// DueGroup is a group whose mark is due, or whose removal has started.
type DueGroup struct {
	ID int64
	// UserID is the requesting user, nil if it does not exist.
	UserID *int64
	// Allowed means that the user may remove the group. RemovalStarted means that its removal has started.
	// InProgress means that its state is deletion_in_progress.
	Allowed, RemovalStarted, InProgress bool
	// Veto prevents its deletion. nil means none.
	Veto *Veto
	// Above are its ancestors that are marked or being removed, in no order.
	Above []int64
}

const dueGroupsSQL = `
SELECT n.id, mark.user_id, mark.begun, coalesce({state} = 4, false)
FROM namespaces n {marks}
WHERE n.id = ANY ($3::bigint[]) AND n.type = 'Group' AND (mark.ripe OR mark.begun)
ORDER BY n.id`

// DueGroups returns the due groups of one page of candidates, in order of their ids, with the facts
// that decide about them. It takes five statements, whatever the page.
func (d Groups) DueGroups(
	ctx context.Context, s GroupStores, a Adjournment, candidates []int64, l fencing.Limits,
) ([]DueGroup, error) {
	read := pg.NewQuery("read due groups", s.fill(dueGroupsSQL), a.args(candidates)...)
	groups, err := pg.ReadRows(ctx, d.db, l, read, func(row pgx.CollectableRow) (g DueGroup, err error) {
		err = row.Scan(&g.ID, &g.UserID, &g.RemovalStarted, &g.InProgress)
		return g, err
	})
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	if err := readRights(ctx, d.db, s, a, groups, l); err != nil {
		return nil, err
	}
	if err := readVetoes(ctx, d.db, groups, l); err != nil {
		return nil, err
	}
	return groups, readAncestors(ctx, d.db, s, groups, l)
}

// readVetoes reads which of the groups must not be deleted.
func readVetoes(ctx context.Context, d *pg.Database, groups []DueGroup, l fencing.Limits) error {
	ids := make([]int64, len(groups))
	for i := range groups {
		ids[i] = groups[i].ID
	}
	vetoes, err := groupVetoes(ctx, d, ids, l)
	for i := range groups {
		groups[i].Veto = vetoes[groups[i].ID]
	}
	return err
}

// directMembershipSQL is the rule of direct membership, for members m. {today} is the UTC date. A
// membership that expires today has expired.
const directMembershipSQL = `(m.source_type = 'Namespace' AND {m.type} = 'GroupMember'
  AND {m.requested_at} IS NULL AND {m.invite_token} IS NULL AND coalesce({m.state}, 0) = 0
  AND ({m.expires_at} IS NULL OR {m.expires_at} > {today}))`

// membershipOptions are the optional columns of the rule.
func membershipOptions() (options []catalog.Option) {
	for column, otherwise := range map[string]string{
		"type": "'GroupMember'", "requested_at": "NULL", "invite_token": "NULL", "state": "NULL",
		"expires_at": "NULL::date",
	} {
		options = append(options, catalog.ValueOption("members", "m", column, otherwise))
	}
	return options
}

// removeGroupSQL is the right to remove a group, for pairs of groups and users. A level of at least
// 50 is an owner's membership of the group, of an ancestor, or of a group invited there with 50.
// UNION ends the walk upwards at a repeated id. LIMIT and OFFSET keep the joins look-ups.
const removeGroupSQL = `
WITH RECURSIVE asked AS (
  SELECT a.group_id, a.user_id FROM unnest($2::bigint[], $3::bigint[]) AS a (group_id, user_id)
),
up (group_id, user_id, id) AS (
  SELECT group_id, user_id, group_id FROM asked
  UNION
  SELECT up.group_id, up.user_id, above.id
  FROM up CROSS JOIN LATERAL (
    SELECT a.id FROM namespaces n JOIN namespaces a ON a.id = n.parent_id
    WHERE n.id = up.id LIMIT 1) above
),
owned AS MATERIALIZED (
  SELECT DISTINCT a.user_id, o.source_id
  FROM (SELECT DISTINCT user_id FROM asked) a
  CROSS JOIN LATERAL (
    SELECT m.source_id FROM members m
    WHERE m.user_id = a.user_id AND m.access_level >= 50 AND {direct} OFFSET 0) o
),
allowed AS (
  SELECT up.group_id FROM up JOIN owned o ON o.user_id = up.user_id AND o.source_id = up.id
  UNION
  SELECT up.group_id
  FROM up
  CROSS JOIN LATERAL (
    SELECT l.shared_with_group_id AS id FROM group_group_links l
    WHERE l.shared_group_id = up.id AND l.group_access >= 50
      AND ({l.expires_at} IS NULL OR {l.expires_at} > {today}) OFFSET 0) invited
  JOIN owned o ON o.user_id = up.user_id AND o.source_id = invited.id
)
SELECT asked.group_id
FROM asked
CROSS JOIN LATERAL (SELECT x.state, x.admin FROM users x WHERE x.id = asked.user_id LIMIT 1) u
WHERE u.state = 'active' AND (u.admin OR asked.group_id IN (SELECT a.group_id FROM allowed a))`

// readRights reads which of the groups their users may remove.
func readRights(
	ctx context.Context, d *pg.Database, s GroupStores, a Adjournment, groups []DueGroup, l fencing.Limits,
) error {
	var ids, users []int64
	for _, g := range groups {
		if g.UserID != nil {
			ids, users = append(ids, g.ID), append(users, *g.UserID)
		}
	}
	read := pg.NewQuery("read the permissions to remove groups", s.fill(removeGroupSQL), a.At, ids, users)
	allowed, err := pg.ReadRows(ctx, d, l, read, pgx.RowTo[int64])
	may := map[int64]bool{}
	for _, id := range allowed {
		may[id] = true
	}
	for i := range groups {
		groups[i].Allowed = may[groups[i].ID]
	}
	return err
}

// markedAncestorsSQL walks as removeGroupSQL does.
const markedAncestorsSQL = `
WITH RECURSIVE up (group_id, id) AS (
  SELECT n.id, n.parent_id FROM namespaces n
  WHERE n.id = ANY ($1::bigint[]) AND n.parent_id IS NOT NULL
  UNION
  SELECT up.group_id, above.id
  FROM up CROSS JOIN LATERAL (
    SELECT n.parent_id AS id FROM namespaces n
    WHERE n.id = up.id AND n.parent_id IS NOT NULL LIMIT 1) above
)
SELECT p.group_id, p.id FROM up p WHERE p.id <> p.group_id AND {known}`

// readAncestors reads the ancestors that are marked too.
func readAncestors(
	ctx context.Context, d *pg.Database, s GroupStores, groups []DueGroup, l fencing.Limits,
) error {
	place, ids := map[int64]*DueGroup{}, make([]int64, len(groups))
	for i := range groups {
		place[groups[i].ID], ids[i] = &groups[i], groups[i].ID
	}
	type pair struct{ Group, Ancestor int64 }
	read := pg.NewQuery("read the ancestors of groups", s.fill(markedAncestorsSQL), ids)
	pairs, err := pg.ReadRows(ctx, d, l, read, pgx.RowToStructByPos[pair])
	for _, p := range pairs {
		g := place[p.Group]
		g.Above = append(g.Above, p.Ancestor)
	}
	return err
}

// QueueGroupRemoval queues the removal of a group, and reports whether it was inserted. One waiting
// or running job suffices.
func (d Groups) QueueGroupRemoval(
	ctx context.Context, p fencing.Permit, queue jobqueue.Queue, job jobqueue.Job,
) (inserted bool, err error) {
	insert := func(ctx context.Context, tx *pg.Changing) error {
		n, err := queue.InsertJobs(ctx, tx, []jobqueue.Job{job})
		inserted = n > 0
		tx.Count("scheduled_jobs", n)
		return err
	}
	err = pg.Transaction(ctx, d.db, "queue the removal of a group", p, insert)
	return inserted, err
}
