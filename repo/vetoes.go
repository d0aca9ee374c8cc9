package repo

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What keeps a user or group from being deleted: a protection, or that an operator has cancelled its
// job. Workers pass it over. Jobs ask for protections again, in the transaction that decides.

// Typed reasons of what is passed over or refused.
const (
	ReasonProtected = "PROTECTED"
	ReasonCancelled = "CANCELLED"
)

// ProtectedError means that a transaction was rolled back, or something not deleted, because a
// protected user or group would have been deleted too.
type ProtectedError struct {
	Protection
	// By are the tables whose rows were deleted or updated, if the database itself deleted the
	// protected row with them.
	By []string
}

// Error says what to do.
func (e *ProtectedError) Error() string {
	by := ""
	if len(e.By) > 0 {
		by = ", and is deleted with rows of " + strings.Join(e.By, ", ")
	}
	return fmt.Sprintf("%s: %s%s; caretaker unprotect %s %d ends that",
		ReasonProtected, e.String(), by, e.Kind, e.ID)
}

// Public says that the text is fit for clients.
func (e *ProtectedError) Public() {}

// TypedReason is PROTECTED.
func (e *ProtectedError) TypedReason() string { return ReasonProtected }

// Veto is why a user or group is passed over.
type Veto struct {
	// Target is the user or group.
	Target int64
	// Reason is typed, Detail says in words who wants it, and why.
	Reason, Detail string
}

// These are the beginnings of conditions: the id of a user, and "OFFSET 0)", which keeps them look-ups,
// come behind them.
const (
	protectedUser = `EXISTS (
  SELECT FROM maintenance.protected_targets p WHERE p.kind = 'user' AND ` + inForceSQL + ` AND p.id = `
	cancelledUser = `EXISTS (SELECT FROM maintenance.job_cancellations c WHERE c.user_id = `
)

// refuseProtected refuses to delete a user or group that is protected, or what it would take along.
func refuseProtected(ctx context.Context, tx pgx.Tx, kind string, id int64) error {
	p, err := protecting(ctx, tx, kind, id)
	if err == nil && p != nil {
		err = &ProtectedError{Protection: *p}
	}
	return err
}

// cancelledWords say who has cancelled the job of the row c, why, and what takes that back.
const cancelledWords = `'job ' || c.job_id || ' was cancelled by ' || c.cancelled_by || ': '
    || c.reason || '; caretaker jobs retry ' || c.job_id || ' takes that back'`

const cancelledGroupsSQL = `
SELECT DISTINCT ON (c.group_id) c.group_id, 'CANCELLED', ` + cancelledWords + `
FROM maintenance.job_cancellations c WHERE c.group_id = ANY ($1::bigint[])
ORDER BY c.group_id, c.job_id DESC`

// vetoedGroups are all groups that are passed over, each once, with words; cancelled: also one whose
// removal has begun.
const vetoedGroups = protectedUp + `,
vetoed AS MATERIALIZED (
  SELECT DISTINCT ON (v.id) v.id, v.cancelled, v.words
  FROM (
    SELECT up.id, false AS cancelled, up.target <> up.id AS other,
      'PROTECTED: ' || ` + protectedWords + ` AS words
    FROM up JOIN maintenance.protected_targets p ON p.kind = up.kind AND p.id = up.target
    UNION ALL
    SELECT c.group_id, true, false, 'CANCELLED: ' || ` + cancelledWords + `
    FROM maintenance.job_cancellations c WHERE c.group_id IS NOT NULL
  ) v
  ORDER BY v.id, NOT v.cancelled, v.other, v.words
)`

// vetoes reads who is passed over, and why.
func (d *Database) vetoes(ctx context.Context, l Limits, q query) ([]Veto, error) {
	return readRows(ctx, d, l, q, pgx.RowToStructByPos[Veto])
}

// groupVetoes says which of the groups are passed over, and why.
func (d *Database) groupVetoes(
	ctx context.Context, groups []int64, l Limits,
) (map[int64]*Veto, error) {
	protected, err := d.protectedGroups(ctx, groups, l)
	if err != nil {
		return nil, err
	}
	vetoes := map[int64]*Veto{}
	for id, p := range protected {
		vetoes[id] = &Veto{id, ReasonProtected, p.String()}
	}
	// They come last: they hold also what has begun.
	q := newQuery("look for cancelled removals of groups", cancelledGroupsSQL, groups)
	cancelled, err := d.vetoes(ctx, l, q)
	for i := range cancelled {
		vetoes[cancelled[i].Target] = &cancelled[i]
	}
	return vetoes, err
}

// userVetoesSQL are those vetoes with words.
const userVetoesSQL = `(
  SELECT p.id AS user_id, 'PROTECTED' AS code, ` + protectedWords + ` AS detail
  FROM maintenance.protected_targets p WHERE p.kind = 'user' AND ` + inForceSQL + `
  UNION ALL
  SELECT c.user_id, 'CANCELLED', ` + cancelledWords + `
  FROM maintenance.job_cancellations c WHERE c.user_id IS NOT NULL)`

// vetoesNamed is how many of those who are passed over are named.
const vetoesNamed = 100

// vetoedBotsSQL begins with those who are passed over, who are few. $1 to $3 are the rules.
const vetoedBotsSQL = `
SELECT v.user_id, v.code, v.detail FROM ` + userVetoesSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM users u WHERE u.id = v.user_id AND u.user_type = 6 OFFSET 0) bot
WHERE v.user_id > $4::bigint AND v.user_id <= $5::bigint AND NOT EXISTS (
    SELECT FROM personal_access_tokens t WHERE t.user_id = v.user_id AND ` + keepsBotSQL + ` OFFSET 0)
  AND NOT EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = v.user_id OFFSET 0)
ORDER BY v.user_id LIMIT $6`

// VetoedBots are the first 100 inactive bots behind one, up to last, that are passed over.
func (d *Database) VetoedBots(
	ctx context.Context, f UserFeatures, r TokenRules, behind, last int64,
) ([]Veto, error) {
	sql := fill(vetoedBotsSQL, "{ghosts}", quote(f.ghosts))
	q := newQuery("look for bots that are passed over", sql, r.args(behind, last, vetoesNamed)...)
	return d.vetoes(ctx, Limits{Statement: statementTimeout}, q)
}

// vetoedPlaceholdersSQL begins with those who are passed over, who are few. $1 to $3 are the rules.
const vetoedPlaceholdersSQL = `
SELECT DISTINCT v.user_id, v.code, v.detail FROM ` + userVetoesSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM import_placeholder_user_details d
  WHERE d.placeholder_user_id = v.user_id AND d.namespace_id IS NULL AND d.deletion_attempts < $1
    AND (d.last_deletion_attempt_at IS NULL
      OR d.last_deletion_attempt_at < $2::timestamptz - $3::interval)
  OFFSET 0) due
ORDER BY v.user_id LIMIT $4`

// VetoedPlaceholders are the first 100 placeholder users that would be due and are passed over.
func (d *Database) VetoedPlaceholders(ctx context.Context, r PlaceholderRules) ([]Veto, error) {
	q := newQuery("look for placeholder users that are passed over", vetoedPlaceholdersSQL,
		r.args(vetoesNamed)...)
	return d.vetoes(ctx, Limits{Statement: statementTimeout}, q)
}

const protectedAmongSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE p.kind = 'group' AND p.id = ANY ($1::bigint[]) AND ` + inForceSQL + ` ORDER BY p.id LIMIT 1`

// RefuseProtectedGroups returns a [*ProtectedError] if one of these groups is protected itself.
func (d *Database) RefuseProtectedGroups(ctx context.Context, groups []int64, l Limits) error {
	q := newQuery("look for protected groups of the tree", protectedAmongSQL, groups)
	found, err := readRows(ctx, d, l, q, scanProtection)
	if err == nil && len(found) > 0 {
		err = &ProtectedError{Protection: found[0]}
	}
	return err
}
