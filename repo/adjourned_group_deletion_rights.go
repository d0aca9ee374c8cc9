package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// directMembershipSQL is the rule of direct membership of adjourned_group_deletion.md section 5, for members m; {today}
// is the UTC date. A membership that expires today has expired.
const directMembershipSQL = `m.source_type = 'Namespace' AND m.type = 'GroupMember'
  AND m.requested_at IS NULL AND m.invite_token IS NULL AND coalesce(m.state, 0) = 0
  AND (m.expires_at IS NULL OR m.expires_at > {today})`

// removeGroupSQL is the right remove_group of section 5, for pairs of groups and users. UNION ends the walk upwards at
// a repeated id.
const removeGroupSQL = `
WITH RECURSIVE asked AS (
  SELECT a.group_id, a.user_id FROM unnest($2::bigint[], $3::bigint[]) AS a (group_id, user_id)
),
up (group_id, user_id, id) AS (
  SELECT group_id, user_id, group_id FROM asked
  UNION
  SELECT up.group_id, up.user_id, p.id
  FROM up JOIN namespaces n ON n.id = up.id JOIN namespaces p ON p.id = n.parent_id
),
levels AS (
  SELECT up.group_id, max(greatest(direct.level, shared.level)) AS level
  FROM up
  CROSS JOIN LATERAL (
    SELECT max(m.access_level) AS level FROM members m
    WHERE m.source_id = up.id AND m.user_id = up.user_id AND {direct}) direct
  CROSS JOIN LATERAL (
    SELECT max(least(s.group_access, m.access_level)) AS level
    FROM group_group_links s JOIN members m ON m.source_id = s.shared_with_group_id
    WHERE s.shared_group_id = up.id AND (s.expires_at IS NULL OR s.expires_at > {today})
      AND m.user_id = up.user_id AND {direct}) shared
  GROUP BY up.group_id
)
SELECT asked.group_id
FROM asked JOIN users u ON u.id = asked.user_id LEFT JOIN levels ON levels.group_id = asked.group_id
WHERE u.state = 'active' AND (u.admin OR levels.level >= 50)`

func removeGroup() string {
	return fill(fill(removeGroupSQL, "{direct}", directMembershipSQL), "{today}", todaySQL)
}

// readRights finds out which of the groups their users may remove.
func (d *Database) readRights(ctx context.Context, a Adjournment, groups []DueGroup, l Limits) error {
	var ids, users []int64
	for _, g := range groups {
		if g.UserID != nil {
			ids, users = append(ids, g.ID), append(users, *g.UserID)
		}
	}
	allowed, err := boundedRows(ctx, d, "read the rights to remove groups", l, pgx.RowTo[int64], removeGroup(), a.At, ids, users)
	may := map[int64]bool{}
	for _, id := range allowed {
		may[id] = true
	}
	for i := range groups {
		groups[i].Allowed = may[groups[i].ID]
	}
	return err
}

// markedAncestorsSQL: UNION ends the walk at a repeated id.
const markedAncestorsSQL = `
WITH RECURSIVE up (group_id, id) AS (
  SELECT n.id, n.parent_id FROM namespaces n WHERE n.id = ANY ($1::bigint[]) AND n.parent_id IS NOT NULL
  UNION
  SELECT up.group_id, n.parent_id FROM up JOIN namespaces n ON n.id = up.id WHERE n.parent_id IS NOT NULL
)
SELECT up.group_id, up.id FROM up
WHERE up.id <> up.group_id AND (
  EXISTS (SELECT FROM {legacy} l WHERE l.group_id = up.id) OR EXISTS (SELECT FROM {modern} d WHERE d.group_id = up.id)
  OR EXISTS (SELECT FROM maintenance.group_removals r WHERE r.group_id = up.id))`

// readAncestors finds the ancestors that are marked too.
func (d *Database) readAncestors(ctx context.Context, s GroupStores, groups []DueGroup, l Limits) error {
	place, ids := map[int64]*DueGroup{}, make([]int64, len(groups))
	for i := range groups {
		place[groups[i].ID], ids[i] = &groups[i], groups[i].ID
	}
	type pair struct{ Group, Ancestor int64 }
	pairs, err := boundedRows(ctx, d, "read the ancestors of groups", l, pgx.RowToStructByPos[pair], s.fill(markedAncestorsSQL), ids)
	for _, p := range pairs {
		g := place[p.Group]
		g.Above = append(g.Above, p.Ancestor)
	}
	return err
}
