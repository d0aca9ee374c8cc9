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
  WHERE o.user_id = $1::bigint AND o.access_level = 50 AND (
    SELECT count(*) FROM (
      SELECT FROM organization_users other WHERE other.organization_id = o.organization_id AND other.access_level = 50 LIMIT 2) owners) = 1
  ORDER BY o.organization_id LIMIT $2) sole`

// ownedSQL is a page of the groups of which $1 is a direct owner, behind $2, and of their ancestors. UNION ends the walk
// upwards at a repeated id. Members are found by the user, then by the group, before anything else is asked of them:
// conditions that almost all meet have indexes too. The walk is one of bigint, whatever the columns are.
const ownedSQL = `
WITH RECURSIVE owner_of AS MATERIALIZED (
  SELECT m.source_id::bigint AS source_id, {direct} AS direct FROM members m WHERE m.user_id = $1::bigint AND m.access_level = 50
),
owned AS MATERIALIZED (
  SELECT DISTINCT m.source_id AS id FROM owner_of m
  WHERE m.source_id > $2::bigint AND m.direct AND EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id AND n.type = 'Group' OFFSET 0)
  ORDER BY m.source_id LIMIT $3
),
up (group_id, id) AS (
  SELECT id, id FROM owned
  UNION
  SELECT up.group_id, n.parent_id::bigint
  FROM up CROSS JOIN LATERAL (SELECT parent_id FROM namespaces WHERE id = up.id AND parent_id IS NOT NULL OFFSET 0) n
)`

// ownedPlacesSQL says among which of the locks those groups' trees are: by the topmost group, in a circle by all of it.
const ownedPlacesSQL = ownedSQL + `,
top AS MATERIALIZED (
  SELECT group_id, id FROM up WHERE NOT EXISTS (SELECT FROM namespaces n WHERE n.id = up.id AND n.parent_id IS NOT NULL OFFSET 0)
)
SELECT coalesce((SELECT max(id) FROM owned), 0), (SELECT count(*) FROM owned), ARRAY(
  SELECT id & 63 FROM top UNION SELECT id & 63 FROM up WHERE group_id NOT IN (SELECT group_id FROM top))`

// lockOwnersSQL takes the locks one after the other in an order that all keep.
const lockOwnersSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('caretaker/owners/' || place, 0))
FROM (SELECT DISTINCT place FROM unnest($1::bigint[]) AS t (place) ORDER BY place OFFSET 0) places`

// solelyOwnedGroupsSQL are those groups of the page of which, and of whose ancestors, nobody else is a direct owner.
const solelyOwnedGroupsSQL = ownedSQL + `,
shared AS MATERIALIZED (
  SELECT DISTINCT up.group_id FROM up
  WHERE EXISTS (
    SELECT FROM (
      SELECT {direct} AS direct
      FROM members m WHERE m.source_id = up.id AND m.source_type = 'Namespace' AND m.user_id <> $1::bigint AND m.access_level = 50 OFFSET 0) m
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
	owns, err := u.lockOwners(ctx)
	if err != nil || !owns {
		return err
	}
	err = u.eachOwnedPage(ctx, solelyOwnedGroupsSQL, func(groups []int64) (more bool) {
		u.Groups = append(u.Groups, groups[:min(len(groups), ownedNamed-len(u.Groups))]...)
		return len(u.Groups) < ownedNamed
	}, ownedNamed)
	if len(u.Groups) > 0 {
		u.Refused = ReasonSoleOwnerOfGroup
	}
	return err
}

// lockOwners lets one deletion at a time judge and change who owns the groups of a tree: of two owners who go at once,
// the second would still find the first. What is locked until the end of the transaction is neither the groups nor the
// memberships, which the application changes all the time and which it would lock in another order than we do, but
// advisory locks that only these deletions take. The trees share 64 of them, so that the owner of very many groups does
// not fill the server's table of locks; lock_timeout bounds the wait, and the job is tried again.
//
// The statement that judges comes after it, and sees what those before have committed. False: the user owns no group.
func (u *deleting) lockOwners(ctx context.Context) (owns bool, err error) {
	var places []int64
	err = u.eachOwnedPage(ctx, ownedPlacesSQL, func(page []int64) (more bool) {
		places = append(places, page...)
		return true
	})
	if err != nil || len(places) == 0 {
		return false, err
	}
	_, err = u.tx.Exec(ctx, lockOwnersSQL, places)
	return true, err
}

// eachOwnedPage goes through the groups of which the user is a direct owner, as long as do wants more.
func (u *deleting) eachOwnedPage(ctx context.Context, sql string, do func([]int64) (more bool), args ...any) error {
	sql = u.features.fill(sql, "{today}", "("+utcNow+")::date")
	for last, n, more := int64(-1<<63), ownedPage, true; n == ownedPage && more; {
		var found []int64
		err := u.tx.QueryRow(ctx, sql, append([]any{u.args.UserID, last, ownedPage}, args...)...).Scan(&last, &n, &found)
		if err != nil {
			return err
		}
		more = do(found)
	}
	return nil
}
