package gitlab

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Faulty marks, and the counts of marks.

// groupPage is the number of rows of one statement that must examine all of them.
const groupPage = 2000

// knownMarkSQL reports whether the group p is marked in a store, or its removal has started.
// Counting keeps it a look-up for each: EXISTS may be answered by reading a store completely.
const knownMarkSQL = `(SELECT count(*) FROM {legacy} l WHERE l.group_id = p.id)
  + (SELECT count(*) FROM {modern} d WHERE d.group_id = p.id)
  + (SELECT count(*) FROM maintenance.group_removals r WHERE r.group_id = p.id) > 0`

// lostMarksSQL reads a page of groups, marked or not: no other statement finds them. The comparison
// of rows keeps it on the index of groups. It always returns the page's last row, from which the
// next page continues. Only the group's own id makes a suffix.
const lostMarksSQL = `
WITH page AS MATERIALIZED (
  SELECT n.id, n.path, {state} AS state FROM namespaces n
  WHERE (n.type, n.id) > ('Group', $1::bigint) AND n.type <= 'Group' ORDER BY n.type, n.id LIMIT $2
),
marked AS MATERIALIZED (
  SELECT p.id FROM page p
  WHERE p.state IN (2, 4)
    OR right(p.path, length('-deletion_scheduled-' || p.id)) = '-deletion_scheduled-' || p.id
)
SELECT p.id, true FROM marked p WHERE NOT ({known})
UNION ALL
SELECT max(p.id), false FROM page p HAVING count(*) > 0
ORDER BY 1, 2 DESC`

// perhapsLost is a group of a page, or the last of it.
type perhapsLost struct {
	ID int64
	// Lost is false for the last row of a page, which only shows where the page ends.
	Lost bool
}

// NeedsConfirmation reports whether a replica's result requires a second read on the primary.
func (g perhapsLost) NeedsConfirmation() bool { return g.Lost }

// LostMarks reads the next page of groups after the id after, in order of their ids. It returns the
// groups that look marked but are in no store, and the id to continue from, 0 at the end.
func (d Groups) LostMarks(
	ctx context.Context, s GroupStores, after int64, l fencing.Limits,
) (lost []int64, next int64, err error) {
	groups, err := pg.ConfirmedReplicaRows(ctx, d.db, l,
		pg.NewQuery("find lost deletion schedules", s.fill(lostMarksSQL), after, groupPage),
		pgx.RowToStructByPos[perhapsLost])
	for _, g := range groups {
		if next = g.ID; g.Lost {
			lost = append(lost, g.ID)
		}
	}
	return lost, next, err
}

// OddSchedule is a row of group_deletion_schedules whose namespace is no group, or that disagrees
// with the new store. Values are texts, as the stores have them. Dates are as in 2026-11-21,
// whatever the DateStyle.
type OddSchedule struct {
	GroupID int64
	// NoGroup: the namespace does not exist, or is of another type.
	NoGroup bool
	// LegacyDate and LegacyUser are from the legacy store. DetailsDate and DetailsUser are from the
	// new store, "" if it has no mark.
	LegacyDate, LegacyUser   string
	DetailsDate, DetailsUser string
	// differs: both stores have a mark, with different dates or users.
	differs bool
}

// NeedsConfirmation reports whether a replica's result requires a second read on the primary.
func (o OddSchedule) NeedsConfirmation() bool { return o.NoGroup || o.differs }

// oddSchedulesSQL always returns the page's last row, from which the next page continues. LIMIT
// keeps the joins look-ups.
const oddSchedulesSQL = `
WITH page AS MATERIALIZED (
  SELECT l.group_id, l.user_id, l.marked_on FROM {legacy} l
  WHERE l.group_id > $1::bigint ORDER BY l.group_id LIMIT $2
),
judged AS (
  SELECT p.group_id, n.id IS NULL AS no_group,
    to_jsonb(p.marked_on) #>> '{}' AS legacy_date, coalesce(p.user_id::text, '') AS legacy_user,
    coalesce(to_jsonb(d.marked_on) #>> '{}', '') AS details_date,
    coalesce(d.named, '') AS details_user,
    d.group_id IS NOT NULL AND (d.marked_on IS DISTINCT FROM p.marked_on
      OR d.user_id IS DISTINCT FROM p.user_id) AS differs
  FROM page p
  LEFT JOIN LATERAL (
    SELECT x.id FROM namespaces x WHERE x.id = p.group_id AND x.type = 'Group' LIMIT 1) n ON true
  LEFT JOIN LATERAL (
    SELECT x.group_id, x.user_id, x.marked_on, x.named FROM {modern} x
    WHERE x.group_id = p.group_id LIMIT 1) d ON true
)
SELECT group_id, no_group, legacy_date, legacy_user, details_date, details_user, differs
FROM judged WHERE no_group OR differs OR group_id = (SELECT max(group_id) FROM page)
ORDER BY group_id`

// OddSchedules returns the malformed rows of the legacy store's page after an id, and the id of the
// next page. 0 means that no page follows.
func (d Groups) OddSchedules(
	ctx context.Context, s GroupStores, after int64, l fencing.Limits,
) (odd []OddSchedule, next int64, err error) {
	q := pg.NewQuery("compare deletion schedules", s.fill(oddSchedulesSQL), after, groupPage)
	rows, err := pg.ConfirmedReplicaRows(ctx, d.db, l, q, func(row pgx.CollectableRow) (o OddSchedule, err error) {
		err = row.Scan(&o.GroupID, &o.NoGroup, &o.LegacyDate, &o.LegacyUser,
			&o.DetailsDate, &o.DetailsUser, &o.differs)
		return o, err
	})
	for _, o := range rows {
		if next = o.GroupID; o.NeedsConfirmation() {
			odd = append(odd, o)
		}
	}
	return odd, next, err
}

// groupBacklogSQL: a due group with a missing user is held until the operator decides, and is no
// pending work. A vetoed group is kept, which counts as deferred. A date may be later than any
// time.
const groupBacklogSQL = `
WITH` + vetoedGroups + `,
marked AS MATERIALIZED (
  SELECT group_id FROM (
    SELECT l.group_id FROM {legacy} l
    UNION SELECT d.group_id FROM {modern} d
    UNION SELECT r.group_id FROM maintenance.group_removals r
  ) ids LIMIT $3 + 1
),
judged AS (
  SELECT (mark.ripe OR mark.begun) AND NOT veto.keeps AS due,
    mark.ripe AND NOT mark.begun AND mark.user_id IS NULL AND NOT veto.keeps AS held,
    greatest(d.marked_at, CASE
      WHEN l.marked_on < '10000-01-01' THEN l.marked_on::timestamp AT TIME ZONE 'UTC'
      WHEN l.marked_on IS NOT NULL THEN 'infinity' END) AS marked_at
  FROM marked JOIN namespaces n ON n.id = marked.group_id AND n.type = 'Group' {marks}
  LEFT JOIN vetoed v ON v.id = n.id
  CROSS JOIN LATERAL (
    SELECT v.id IS NOT NULL AND (v.cancelled OR NOT mark.begun) AS keeps) veto
)
SELECT count(*) FILTER (WHERE NOT held), count(*) FILTER (WHERE due AND NOT held),
  count(*) FILTER (WHERE NOT due), count(*) FILTER (WHERE held),
  min(marked_at) FILTER (WHERE NOT held), (SELECT count(*) FROM marked) > $3, clock_timestamp()
FROM judged`

// GroupBacklog counts marked groups. Due groups with a missing user are held, which counts as dead,
// and vetoed ones as deferred. Lost marks do not count.
func (d Groups) GroupBacklog(
	ctx context.Context, s GroupStores, a Adjournment, l fencing.Limits,
) (b control.Backlog, err error) {
	kept, err := protection.NewProtections(d.db).Keeping(ctx, l)
	if err != nil {
		return b, err
	}
	groups, texts := listed(kept, control.KindGroup)
	count := pg.NewQuery("count groups scheduled for deletion", s.fill(groupBacklogSQL), a.args(control.BacklogCap, groups, texts)...)
	_, err = pg.ReplicaRow(ctx, d.db, l, count, &b.Pending, &b.Due, &b.Deferred, &b.Dead, &b.OldestAt,
		&b.AtLeast, &b.ReadAt)
	return b, err
}

// waitingGroupsSQL lists up to $7 marked groups with the reason why each is not removed. $6 selects
// held groups, otherwise early and vetoed ones. It examines up to $3 marks.
const waitingGroupsSQL = `
WITH` + vetoedGroups + `,
marked AS MATERIALIZED (
  SELECT group_id FROM (
    SELECT l.group_id FROM {legacy} l
    UNION SELECT d.group_id FROM {modern} d
    UNION SELECT r.group_id FROM maintenance.group_removals r
  ) ids LIMIT $3
),
judged AS (
  SELECT n.id, v.words, veto.keeps, NOT mark.ripe AND NOT mark.begun AS early,
    mark.ripe AND NOT mark.begun AND mark.user_id IS NULL AND NOT veto.keeps AS held,
    greatest(d.marked_at, CASE WHEN l.marked_on < '10000-01-01'
      THEN l.marked_on::timestamp AT TIME ZONE 'UTC' END) AS marked_at
  FROM marked JOIN namespaces n ON n.id = marked.group_id AND n.type = 'Group' {marks}
  LEFT JOIN vetoed v ON v.id = n.id
  CROSS JOIN LATERAL (
    SELECT v.id IS NOT NULL AND (v.cancelled OR NOT mark.begun) AS keeps) veto
)
SELECT j.id, (SELECT r.path FROM routes r WHERE r.source_type = 'Namespace' AND r.source_id = j.id),
  j.marked_at,
  CASE WHEN j.early AND NOT j.keeps
    THEN (j.marked_at AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC'
      + make_interval(days => $2::integer) END,
  CASE WHEN j.keeps THEN j.words WHEN j.early THEN 'in its grace period'
    ELSE '` + reasons.DeletingUserMissing + `: the user who marked the group does not exist' END
FROM judged j WHERE CASE WHEN $6::boolean THEN j.held ELSE j.early OR j.keeps END
ORDER BY j.marked_at NULLS LAST, j.id LIMIT $7`

// WaitingGroups returns the first 100 marked groups that are held (dead), in their grace period, or
// vetoed, the oldest mark first.
func (d Groups) WaitingGroups(
	ctx context.Context, s GroupStores, a Adjournment, dead bool, l fencing.Limits,
) ([]jobqueue.Waiting, error) {
	kept, err := protection.NewProtections(d.db).Keeping(ctx, l)
	if err != nil {
		return nil, err
	}
	groups, texts := listed(kept, control.KindGroup)
	args := a.args(control.BacklogCap, groups, texts, dead, jobqueue.WaitingShown)
	q := pg.NewQuery("list pending groups", s.fill(waitingGroupsSQL), args...)
	rows, err := pg.ReadRows(ctx, d.db, l, q, pgx.RowToStructByPos[jobqueue.WaitingRow])
	return jobqueue.ReadWaiting("group", rows), err
}
