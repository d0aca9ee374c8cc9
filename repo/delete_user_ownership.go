package repo

import "context"

// Whoever is the only owner of something is not deleted (inactive_token_deletion.md section 6.5).

// ownedNamed is how many groups or organizations are named, ownedPage how many groups are looked at in one statement.
const (
	ownedNamed = 10
	ownedPage  = 1000
)

const solelyOwnedOrganizationsSQL = `
SELECT coalesce(array_agg(sole.organization_id), '{}') FROM (
  SELECT o.organization_id FROM organization_users o
  WHERE o.user_id = $1 AND o.access_level = 50 AND (
    SELECT count(*) FROM (
      SELECT FROM organization_users other WHERE other.organization_id = o.organization_id AND other.access_level = 50 LIMIT 2) owners) = 1
  ORDER BY o.organization_id LIMIT $2) sole`

// solelyOwnedGroupsSQL looks at a page of the groups of which $1 is a direct owner, behind $2. Nobody else is a direct
// owner of one or of its ancestors: that one is returned. UNION ends the walk upwards at a repeated id. Members are
// found by the user, then by the group, before anything else is asked of them: conditions that almost all meet have
// indexes too.
const solelyOwnedGroupsSQL = `
WITH RECURSIVE owner_of AS MATERIALIZED (
  SELECT m.source_id, {direct} AS direct FROM members m WHERE m.user_id = $1 AND m.access_level = 50
),
owned AS MATERIALIZED (
  SELECT DISTINCT m.source_id AS id FROM owner_of m
  WHERE m.source_id > $2 AND m.direct AND EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id AND n.type = 'Group' OFFSET 0)
  ORDER BY m.source_id LIMIT $3
),
up (group_id, id) AS (
  SELECT id, id FROM owned
  UNION
  SELECT up.group_id, n.parent_id
  FROM up CROSS JOIN LATERAL (SELECT parent_id FROM namespaces WHERE id = up.id AND parent_id IS NOT NULL OFFSET 0) n
),
shared AS MATERIALIZED (
  SELECT DISTINCT up.group_id FROM up
  WHERE EXISTS (
    SELECT FROM (
      SELECT {direct} AS direct
      FROM members m WHERE m.source_id = up.id AND m.source_type = 'Namespace' AND m.user_id <> $1 AND m.access_level = 50 OFFSET 0) m
    WHERE m.direct)
)
SELECT coalesce((SELECT max(id) FROM owned), 0), (SELECT count(*) FROM owned),
  ARRAY(SELECT id FROM owned WHERE id NOT IN (SELECT group_id FROM shared) ORDER BY id LIMIT $4)`

// lookForSoleOwnership is step 5.
func (u *deleting) lookForSoleOwnership(ctx context.Context) error {
	if u.features.owners {
		err := u.tx.QueryRow(ctx, solelyOwnedOrganizationsSQL, u.args.UserID, ownedNamed).Scan(&u.Organizations)
		if err != nil {
			return err
		}
		if len(u.Organizations) > 0 {
			u.Refused = ReasonSoleOwnerOfOrganization
			return nil
		}
	}
	if !u.features.groups {
		return nil
	}
	sql := u.features.fill(solelyOwnedGroupsSQL, "{today}", "("+utcNow+")::date")
	for last, n := int64(-1<<63), ownedPage; n == ownedPage && len(u.Groups) < ownedNamed; {
		var groups []int64
		err := u.tx.QueryRow(ctx, sql, u.args.UserID, last, ownedPage, ownedNamed-len(u.Groups)).Scan(&last, &n, &groups)
		if err != nil {
			return err
		}
		u.Groups = append(u.Groups, groups...)
	}
	if len(u.Groups) > 0 {
		u.Refused = ReasonSoleOwnerOfGroup
	}
	return nil
}
