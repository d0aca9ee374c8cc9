package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// directMembershipSQL is the rule of direct membership, for members m; {today}
// is the UTC date. A membership that expires today has expired.
const directMembershipSQL = `(m.source_type = 'Namespace' AND {m.type} = 'GroupMember'
  AND {m.requested_at} IS NULL AND {m.invite_token} IS NULL AND coalesce({m.state}, 0) = 0
  AND ({m.expires_at} IS NULL OR {m.expires_at} > {today}))`

// membershipOptions are what the rule can do without.
func membershipOptions() (options []option) {
	for column, otherwise := range map[string]string{
		"type": "'GroupMember'", "requested_at": "NULL", "invite_token": "NULL", "state": "NULL", "expires_at": "NULL::date",
	} {
		options = append(options, valueOption("members", "m", column, otherwise))
	}
	return options
}

// removeGroupSQL is the right remove_group of section 5, for pairs of groups and users: a level of
// at least 50 is an owner's membership of the group, of an ancestor, or of a group invited there
// with 50. UNION ends the walk upwards at a repeated id. LIMIT and OFFSET keep the joins look-ups.
const removeGroupSQL = `
WITH RECURSIVE asked AS (
  SELECT a.group_id, a.user_id FROM unnest($2::bigint[], $3::bigint[]) AS a (group_id, user_id)
),
up (group_id, user_id, id) AS (
  SELECT group_id, user_id, group_id FROM asked
  UNION
  SELECT up.group_id, up.user_id, above.id
  FROM up CROSS JOIN LATERAL (
    SELECT a.id FROM namespaces n JOIN namespaces a ON a.id = n.parent_id WHERE n.id = up.id LIMIT 1) above
),
owned AS MATERIALIZED (
  SELECT DISTINCT a.user_id, o.source_id
  FROM (SELECT DISTINCT user_id FROM asked) a
  CROSS JOIN LATERAL (
    SELECT m.source_id FROM members m WHERE m.user_id = a.user_id AND m.access_level >= 50 AND {direct} OFFSET 0) o
),
allowed AS (
  SELECT up.group_id FROM up JOIN owned o ON o.user_id = up.user_id AND o.source_id = up.id
  UNION
  SELECT up.group_id
  FROM up
  CROSS JOIN LATERAL (
    SELECT l.shared_with_group_id AS id FROM group_group_links l
    WHERE l.shared_group_id = up.id AND l.group_access >= 50 AND ({l.expires_at} IS NULL OR {l.expires_at} > {today}) OFFSET 0) invited
  JOIN owned o ON o.user_id = up.user_id AND o.source_id = invited.id
)
SELECT asked.group_id
FROM asked
CROSS JOIN LATERAL (SELECT x.state, x.admin FROM users x WHERE x.id = asked.user_id LIMIT 1) u
WHERE u.state = 'active' AND (u.admin OR asked.group_id IN (SELECT a.group_id FROM allowed a))`

// readRights finds out which of the groups their users may remove.
func (d *Database) readRights(
	ctx context.Context, s GroupStores, a Adjournment, groups []DueGroup, l Limits,
) error {
	var ids, users []int64
	for _, g := range groups {
		if g.UserID != nil {
			ids, users = append(ids, g.ID), append(users, *g.UserID)
		}
	}
	allowed, err := readRows(ctx, d, l, newQuery("read the rights to remove groups", s.fill(removeGroupSQL), a.At, ids, users), pgx.RowTo[int64])
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
  SELECT n.id, n.parent_id FROM namespaces n WHERE n.id = ANY ($1::bigint[]) AND n.parent_id IS NOT NULL
  UNION
  SELECT up.group_id, above.id
  FROM up CROSS JOIN LATERAL (
    SELECT n.parent_id AS id FROM namespaces n WHERE n.id = up.id AND n.parent_id IS NOT NULL LIMIT 1) above
)
SELECT p.group_id, p.id FROM up p WHERE p.id <> p.group_id AND {known}`

// readAncestors finds the ancestors that are marked too.
func (d *Database) readAncestors(
	ctx context.Context, s GroupStores, groups []DueGroup, l Limits,
) error {
	place, ids := map[int64]*DueGroup{}, make([]int64, len(groups))
	for i := range groups {
		place[groups[i].ID], ids[i] = &groups[i], groups[i].ID
	}
	type pair struct{ Group, Ancestor int64 }
	pairs, err := readRows(ctx, d, l, newQuery("read the ancestors of groups", s.fill(markedAncestorsSQL), ids), pgx.RowToStructByPos[pair])
	for _, p := range pairs {
		g := place[p.Group]
		g.Above = append(g.Above, p.Ancestor)
	}
	return err
}
