package repo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Groups that are marked for deletion. The mark is in one of two stores, or in
// both; which of them there are differs from one version of the application to the next.

// Adjournment is by what a mark is due: At is the time T of the run, or now, Days the N of the
// setting.
type Adjournment struct {
	At   time.Time
	Days int64
}

// maxAdjournment keeps the arithmetic on dates within PostgreSQL's range.
const maxAdjournment = 1_000_000

func (a Adjournment) args(more ...any) []any {
	return append([]any{a.At, min(a.Days, maxAdjournment)}, more...)
}

// Parameters $1 and $2 of the statements about marks are those of an Adjournment.
const (
	todaySQL  = `($1::timestamptz AT TIME ZONE 'UTC')::date`
	cutoffSQL = `(` + todaySQL + ` - $2::integer)`
)

// schedulesSQL is the legacy store, noSchedulesSQL stands in for it where it is missing.
const (
	schedulesSQL   = `(SELECT group_id, user_id, marked_for_deletion_on AS marked_on FROM group_deletion_schedules)`
	noSchedulesSQL = `(SELECT NULL::bigint AS group_id, NULL::bigint AS user_id, NULL::date AS marked_on WHERE false)`
)

// detailsSQL is the new store, noDetailsSQL stands in for it. A user is a whole JSON number or a
// string of digits; anything else names nobody.
const (
	detailsSQL = `(SELECT x.group_id, x.marked_at, (x.marked_at AT TIME ZONE 'UTC')::date AS marked_on, x.named,
    CASE WHEN x.number = trunc(x.number) AND x.number BETWEEN 1 AND 9223372036854775807 THEN x.number::bigint END AS user_id
  FROM (SELECT namespace_id AS group_id, deletion_scheduled_at AS marked_at, state_metadata ->> {key} AS named,
      CASE jsonb_typeof(state_metadata -> {key}) WHEN 'number' THEN (state_metadata ->> {key})::numeric
        WHEN 'string' THEN substring(state_metadata ->> {key} FROM '^[0-9]{1,30}$')::numeric END AS number
    FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL) x)`
	noDetailsSQL = `(SELECT NULL::bigint AS group_id, NULL::timestamptz AS marked_at, NULL::date AS marked_on, NULL::text AS named,
    NULL::bigint AS user_id WHERE false)`
	scheduledByKey = `'deletion_scheduled_by_user_id'`
)

// GroupStores says where marks are kept in main, as it was when it was looked at.
type GroupStores struct {
	// Missing says without which table or column groups cannot be worked on; empty: none is
	// missing.
	Missing string
	// PassedOver names what else is missing.
	PassedOver string
	// legacy: group_deletion_schedules with all that makes a mark; schedules: with the ids of
	// groups at least. details: namespace_details; modern: with both columns of the mark, metadata:
	// with state_metadata.
	legacy, schedules, details, modern, metadata bool
	// state: namespaces.state. period: application_settings.deletion_adjourned_period.
	state, period bool
	fillings      []string
}

// fill puts the stores into a statement.
func (s GroupStores) fill(sql string, pairs ...string) string {
	legacy, modern, state := noSchedulesSQL, noDetailsSQL, "NULL::smallint"
	if s.legacy {
		legacy = schedulesSQL
	}
	if s.modern {
		modern = fill(detailsSQL, "{key}", scheduledByKey)
	}
	if s.state {
		state = "n.state"
	}
	return fill(fill(sql, "{marks}", marksSQL, "{known}", knownMarkSQL, "{direct}", directMembershipSQL), append(append([]string{
		"{legacy}", legacy, "{modern}", modern, "{state}", state,
		"{today}", todaySQL, "{cutoff}", cutoffSQL,
	}, s.fillings...), pairs...)...)
}

// marksSQL joins what is known of the mark of the group n. Of two stores the later date counts; the
// user is the new store's if it exists, else the legacy store's, and of a removal begun the one it
// was begun for. LIMIT keeps the joins look-ups: only few of all namespaces are marked.
const marksSQL = `
LEFT JOIN LATERAL (SELECT x.group_id, x.user_id, x.marked_on FROM {legacy} x WHERE x.group_id = n.id LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT x.group_id, x.user_id, x.marked_at, x.marked_on FROM {modern} x WHERE x.group_id = n.id LIMIT 1) d ON true
LEFT JOIN LATERAL (SELECT x.group_id, x.user_id FROM maintenance.group_removals x WHERE x.group_id = n.id LIMIT 1) r ON true
CROSS JOIN LATERAL (SELECT
  l.group_id IS NOT NULL OR d.group_id IS NOT NULL AS marked,
  coalesce(greatest(l.marked_on, d.marked_on) <= {cutoff}, false) AS ripe,
  r.group_id IS NOT NULL AS begun,
  coalesce((SELECT u.id FROM users u WHERE u.id = d.user_id), (SELECT u.id FROM users u WHERE u.id = l.user_id),
    (SELECT u.id FROM users u WHERE u.id = r.user_id)) AS user_id) mark`

// markSuffixes are what the application puts at the end of the path and name of a marked group.
func markSuffixes(id int64) []string {
	return []string{fmt.Sprintf("-deletion_scheduled-%d", id), fmt.Sprintf("-deleted-%d", id)}
}

const adjournedPeriodSQL = `SELECT deletion_adjourned_period::bigint FROM application_settings {settings.newest} LIMIT 1`

// defaultAdjournment is N where the application does not say.
const defaultAdjournment = 30

// AdjournedPeriod reads the setting N in days; nil for NULL.
func (d *Database) AdjournedPeriod(ctx context.Context, s GroupStores) (*int64, error) {
	days := new(int64(defaultAdjournment))
	if !s.period {
		return days, nil
	}
	err := d.queryRow(ctx, "read deletion_adjourned_period", []any{&days}, s.fill(adjournedPeriodSQL))
	if errors.Is(err, ErrNotFound) {
		return days, nil
	}
	return days, err
}

// groupCandidatesSQL: whoever is past the cut-off in one store may not be by the other, and need
// not be a group. MATERIALIZED keeps the stores' own indexes on the date in use: only few of all
// namespaces are marked.
const groupCandidatesSQL = `
WITH candidates AS MATERIALIZED (
  SELECT l.group_id FROM {legacy} l WHERE l.marked_on <= {cutoff}
  UNION
  SELECT d.group_id FROM {modern} d WHERE d.marked_at < ({cutoff} + 1)::timestamp AT TIME ZONE 'UTC'
  UNION
  SELECT r.group_id FROM maintenance.group_removals r WHERE r.group_id > $3
)
SELECT group_id FROM candidates WHERE group_id > $3 ORDER BY group_id LIMIT $4`

// candidatesPage is how many ids of groups are read at a time.
const candidatesPage = 10_000

// GroupCandidates reads the ids behind after of the next 10,000 namespaces that may be due, in
// order: [Database.DueGroups] decides which of them are.
func (d *Database) GroupCandidates(
	ctx context.Context, s GroupStores, a Adjournment, after int64, l Limits,
) ([]int64, error) {
	q := newQuery("find groups that may be due", s.fill(groupCandidatesSQL), a.args(after, candidatesPage)...)
	ids, _, err := candidateRows(ctx, d, l, q, pgx.RowTo[int64])
	return ids, err
}

// DueGroup is a group whose mark is due, or whose removal has begun.
type DueGroup struct {
	ID int64
	// UserID is who wants it deleted, nil if there is no such user.
	UserID *int64
	// Allowed: the user may remove the group. Begun: its removal has begun. InProgress: its state
	// says deletion_in_progress.
	Allowed, Begun, InProgress bool
	// Above are those of its ancestors that are marked or begun, in no order.
	Above []int64
}

const dueGroupsSQL = `
SELECT n.id, mark.user_id, mark.begun, coalesce({state} = 4, false)
FROM namespaces n {marks}
WHERE n.id = ANY ($3::bigint[]) AND n.type = 'Group' AND (mark.ripe OR mark.begun)
ORDER BY n.id`

// DueGroups looks at one page of candidates: those of them that are due, in order of their ids,
// with what decides about them. It takes three statements, whatever the page.
func (d *Database) DueGroups(
	ctx context.Context, s GroupStores, a Adjournment, candidates []int64, l Limits,
) ([]DueGroup, error) {
	groups, err := readRows(ctx, d, l, newQuery("read due groups", s.fill(dueGroupsSQL), a.args(candidates)...), func(row pgx.CollectableRow) (g DueGroup, err error) {
		err = row.Scan(&g.ID, &g.UserID, &g.Begun, &g.InProgress)
		return g, err
	})
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	if err := d.readRights(ctx, s, a, groups, l); err != nil {
		return nil, err
	}
	return groups, d.readAncestors(ctx, s, groups, l)
}

// QueueGroupRemoval queues the removal of a group, and says whether it was inserted: one that waits
// or runs already is enough.
func (d *Database) QueueGroupRemoval(
	ctx context.Context, p Permit, queue JobQueue, job Job,
) (inserted bool, err error) {
	err = d.transaction(ctx, "queue the removal of a group", p, func(ctx context.Context, tx pgx.Tx) error {
		n, err := queue.InsertJobs(ctx, tx, []Job{job})
		inserted = n > 0
		return err
	})
	return inserted, err
}
