package gitlab

import (
	"context"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// The only owner of something is not deleted.

// ownedNamed is how many groups or organizations are named, ownedPage how many groups one statement
// examines.
const (
	ownedNamed = 10
	ownedPage  = 1000
)

// deletionPendingSQL is true for a user other whose deletion another transaction has decided, or is
// about to decide. Such a user does not count as an owner. A running job that has not started its
// removal decides after us, once it gets the lock.
const deletionPendingSQL = `(
  EXISTS (SELECT FROM maintenance.user_removals r WHERE r.user_id = other.user_id OFFSET 0)
  OR EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = other.user_id OFFSET 0)
  OR EXISTS (SELECT FROM maintenance.river_job j
    WHERE j.kind = 'delete_user' AND j.state IN ('available', 'pending', 'scheduled', 'retryable')
      AND j.args @> jsonb_build_object('user_id', other.user_id) OFFSET 0))`

// ownedOrganizationsSQL returns the locks of the organizations of which $1 is an owner.
const ownedOrganizationsSQL = `
SELECT ARRAY(
  SELECT DISTINCT o.organization_id & 63 FROM organization_users o
  WHERE o.user_id = $1::bigint AND o.access_level = 50)`

// solelyOwnedOrganizationsSQL returns those of them that have no other owner.
const solelyOwnedOrganizationsSQL = `
SELECT ARRAY(
  SELECT o.organization_id FROM organization_users o
  WHERE o.user_id = $1::bigint AND o.access_level = 50 AND NOT EXISTS (
    SELECT FROM (
      SELECT m.user_id FROM organization_users m
      WHERE m.organization_id = o.organization_id AND m.access_level = 50
        AND m.user_id <> $1::bigint
      OFFSET 0) other
    WHERE NOT {going})
  ORDER BY o.organization_id LIMIT $2)`

// ownedSQL is a page of the groups of which $1 is a direct owner, after $2, and of their ancestors.
// UNION ends the walk upwards at a repeated id. Members are found by the user, then by the group,
// before other conditions apply: conditions that almost all meet have indexes too. The walk uses
// bigint, whatever the columns are.
const ownedSQL = `
WITH RECURSIVE owner_of AS MATERIALIZED (
  SELECT m.source_id::bigint AS source_id, {direct} AS direct FROM members m
  WHERE m.user_id = $1::bigint AND m.access_level = 50
),
owned AS MATERIALIZED (
  SELECT DISTINCT m.source_id AS id FROM owner_of m
  WHERE m.source_id > $2::bigint AND m.direct
    AND EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id AND n.type = 'Group' OFFSET 0)
  ORDER BY m.source_id LIMIT $3
),
up (group_id, id) AS (
  SELECT id, id FROM owned
  UNION
  SELECT up.group_id, n.parent_id::bigint
  FROM up CROSS JOIN LATERAL (
    SELECT parent_id FROM namespaces WHERE id = up.id AND parent_id IS NOT NULL OFFSET 0) n
)`

// ownedPlacesSQL returns the locks of those groups' trees: by the topmost group, in a circle by the
// whole circle.
const ownedPlacesSQL = ownedSQL + `,
top AS MATERIALIZED (
  SELECT group_id, id FROM up
  WHERE NOT EXISTS (
    SELECT FROM namespaces n WHERE n.id = up.id AND n.parent_id IS NOT NULL OFFSET 0)
)
SELECT coalesce((SELECT max(id) FROM owned), 0), (SELECT count(*) FROM owned), ARRAY(
  SELECT id & 63 FROM top
  UNION SELECT id & 63 FROM up WHERE group_id NOT IN (SELECT group_id FROM top))`

// lockOwnersSQL acquires the locks one after the other, always in the same order.
const lockOwnersSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('caretaker/owners/' || $2 || place, 0))
FROM (SELECT DISTINCT place FROM unnest($1::bigint[]) AS t (place) ORDER BY place OFFSET 0) places`

// solelyOwnedGroupsSQL returns the groups of the page where neither they nor their ancestors have
// another direct owner who stays.
const solelyOwnedGroupsSQL = ownedSQL + `,
shared AS MATERIALIZED (
  SELECT DISTINCT up.group_id FROM up
  WHERE EXISTS (
    SELECT FROM (
      SELECT m.user_id, {direct} AS direct
      FROM members m
      WHERE m.source_id = up.id AND m.source_type = 'Namespace' AND m.user_id <> $1::bigint
        AND m.access_level = 50
      OFFSET 0) other
    WHERE other.direct AND NOT {going})
)
SELECT coalesce((SELECT max(id) FROM owned), 0), (SELECT count(*) FROM owned),
  ARRAY(SELECT id FROM owned WHERE id NOT IN (SELECT group_id FROM shared) ORDER BY id LIMIT $4)`

// checkSoleOwnership finds what would lose its last owner.
//
// One deletion at a time judges and changes who owns an organization or the groups of a tree.
// Otherwise the second of two owners deleted at once would still find the first. The locks until
// the end of the transaction are not on groups or memberships, which the application changes
// constantly and locks in another order. They are advisory locks of these deletions alone: first of
// organizations, then of groups. There are 64 of each, so that an owner of very many groups does
// not fill the server's lock table. lock_timeout bounds the wait, and the job is retried.
//
// The statements that judge follow the locks, and see what previous transactions have committed.
func (u *deleting) checkSoleOwnership(ctx context.Context) error {
	for _, check := range []func(context.Context) error{u.checkOrganizations, u.checkGroups} {
		if err := check(ctx); err != nil || u.Refused != "" {
			return err
		}
	}
	return nil
}

// lockOwners acquires advisory locks until the end of the transaction, in ascending order. A mere
// judgement acquires none. of is part of the lock's name.
func (u *deleting) lockOwners(ctx context.Context, places []int64, of string) error {
	if u.judging {
		return nil
	}
	_, err := u.tx.Exec(ctx, lockOwnersSQL, places, of)
	return err
}

// checkOrganizations sets Refused, and up to ten Organizations of which the user is the only owner.
// It does nothing without the table organization_users.
func (u *deleting) checkOrganizations(ctx context.Context) error {
	if !u.features.owners {
		return nil
	}
	var places []int64
	err := u.tx.QueryRow(ctx, ownedOrganizationsSQL, u.args.UserID).Scan(&places)
	if err != nil || len(places) == 0 {
		return err
	}
	if err := u.lockOwners(ctx, places, "organizations/"); err != nil {
		return err
	}
	sql := u.features.fill(solelyOwnedOrganizationsSQL)
	err = u.tx.QueryRow(ctx, sql, u.args.UserID, ownedNamed).Scan(&u.Organizations)
	if len(u.Organizations) > 0 {
		u.Refused = reasons.SoleOwnerOfOrganization
	}
	return err
}

// checkGroups sets Refused, and up to ten Groups that would have no direct owner left. It reads the
// owned groups twice: for their locks, then to judge them.
func (u *deleting) checkGroups(ctx context.Context) error {
	if !u.features.groups {
		return nil
	}
	var places []int64
	err := u.eachOwnedPage(ctx, ownedPlacesSQL, func(page []int64) (more bool) {
		places = append(places, page...)
		return true
	})
	if err != nil || len(places) == 0 {
		return err
	}
	if err := u.lockOwners(ctx, places, ""); err != nil {
		return err
	}
	err = u.eachOwnedPage(ctx, solelyOwnedGroupsSQL, func(groups []int64) (more bool) {
		u.Groups = append(u.Groups, groups[:min(len(groups), ownedNamed-len(u.Groups))]...)
		return len(u.Groups) < ownedNamed
	}, ownedNamed)
	if len(u.Groups) > 0 {
		u.Refused = reasons.SoleOwnerOfGroup
	}
	return err
}

// eachOwnedPage reads the groups of which the user is a direct owner, until do stops. It reads
// [ownedPage] groups per statement, in the order of their ids. args follow the three parameters of
// the page.
func (u *deleting) eachOwnedPage(
	ctx context.Context, sql string, do func([]int64) (more bool), args ...any,
) error {
	sql = u.features.fill(sql, "{today}", "("+catalog.UtcNow+")::date")
	for last, n, more := int64(-1<<63), ownedPage, true; n == ownedPage && more; {
		var found []int64
		all := append([]any{u.args.UserID, last, ownedPage}, args...)
		err := u.tx.QueryRow(ctx, sql, all...).Scan(&last, &n, &found)
		if err != nil {
			return err
		}
		more = do(found)
	}
	return nil
}
