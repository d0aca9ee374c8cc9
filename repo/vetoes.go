package repo

import (
	"context"
	"fmt"
	"slices"
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

// cancelledUser is the beginning of a condition: the id of a user, and "OFFSET 0)", which keeps it a
// look-up, come behind it.
const cancelledUser = `EXISTS (SELECT FROM maintenance.job_cancellations c WHERE c.user_id = `

// cancelledWords say who has cancelled the job of the row c, why, and what takes that back.
const cancelledWords = `'job ' || c.job_id || ' was cancelled by ' || c.cancelled_by || ': '
    || c.reason || '; caretaker jobs retry ' || c.job_id || ' takes that back'`

const cancelledGroupsSQL = `
SELECT DISTINCT ON (c.group_id) c.group_id, 'CANCELLED', ` + cancelledWords + `
FROM maintenance.job_cancellations c WHERE c.group_id = ANY ($1::bigint[])
ORDER BY c.group_id, c.job_id DESC`

// vetoedGroups are all groups that are passed over, each once, with words; cancelled: also one whose
// removal has begun. $4 and $5 are those that are protected, and the words.
const vetoedGroups = `
vetoed AS MATERIALIZED (
  SELECT DISTINCT ON (v.id) v.id, v.cancelled, v.words
  FROM (
    SELECT k.id, false AS cancelled, 'PROTECTED: ' || k.words AS words
    FROM unnest($4::bigint[], $5::text[]) AS k (id, words)
    UNION ALL
    SELECT c.group_id, true, 'CANCELLED: ' || ` + cancelledWords + `
    FROM maintenance.job_cancellations c WHERE c.group_id IS NOT NULL
  ) v
  ORDER BY v.id, NOT v.cancelled, v.words
)`

// listed are the ids of what is kept of a kind, in order, and why.
func (k Keeping) listed(kind string) (ids []int64, words []string) {
	ids, words = []int64{}, []string{}
	for t := range k {
		if t.kind == kind {
			ids = append(ids, t.id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		words = append(words, k.Of(kind, id).String())
	}
	return ids, words
}

// vetoes reads who is passed over, and why.
func (d *Database) vetoes(ctx context.Context, l Limits, q query) ([]Veto, error) {
	return readRows(ctx, d, l, q, pgx.RowToStructByPos[Veto])
}

// groupVetoes says which of the groups are passed over, and why.
func (d *Database) groupVetoes(
	ctx context.Context, groups []int64, l Limits,
) (map[int64]*Veto, error) {
	kept, err := d.Keeping(ctx, l)
	if err != nil {
		return nil, err
	}
	vetoes := map[int64]*Veto{}
	for _, id := range groups {
		if p := kept.Of(KindGroup, id); p != nil {
			vetoes[id] = &Veto{id, ReasonProtected, p.String()}
		}
	}
	// They come last: they hold also what has begun.
	q := newQuery("look for cancelled removals of groups", cancelledGroupsSQL, groups)
	cancelled, err := d.vetoes(ctx, l, q)
	for i := range cancelled {
		vetoes[cancelled[i].Target] = &cancelled[i]
	}
	return vetoes, err
}

// userVetoesSQL are the vetoes of users, with words. $4 are those whom protections keep, $5 the words.
const userVetoesSQL = `(
  SELECT k.user_id, 'PROTECTED' AS code, k.detail FROM unnest($4::bigint[], $5::text[]) AS k (user_id, detail)
  UNION ALL
  SELECT user_id, code, detail FROM ` + cancelledUsersSQL + ` cancelled)`

// cancelledUsersSQL are those of them whose deletion an operator has cancelled.
const cancelledUsersSQL = `(
  SELECT c.user_id, 'CANCELLED' AS code, ` + cancelledWords + ` AS detail
  FROM maintenance.job_cancellations c WHERE c.user_id IS NOT NULL)`

// vetoesNamed is how many of those who are passed over are named.
const vetoesNamed = 100

// cancelledBotsSQL begins with those who are passed over, who are few. $1 to $3 are the rules.
const cancelledBotsSQL = `
SELECT v.user_id, v.code, v.detail FROM ` + cancelledUsersSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM users u WHERE u.id = v.user_id AND u.user_type = 6 OFFSET 0) bot
WHERE v.user_id > $4::bigint AND v.user_id <= $5::bigint AND NOT EXISTS (
    SELECT FROM personal_access_tokens t WHERE t.user_id = v.user_id AND ` + keepsBotSQL + ` OFFSET 0)
  AND NOT EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = v.user_id OFFSET 0)
ORDER BY v.user_id LIMIT $6`

// CancelledBots are the first 100 inactive bots behind one, up to last, whose deletion was cancelled.
func (d *Database) CancelledBots(
	ctx context.Context, f UserFeatures, r TokenRules, behind, last int64,
) ([]Veto, error) {
	sql := fill(cancelledBotsSQL, "{ghosts}", quote(f.ghosts))
	q := newQuery("look for bots that are passed over", sql, r.args(behind, last, vetoesNamed)...)
	return d.vetoes(ctx, Limits{Statement: statementTimeout}, q)
}

// vetoedPlaceholdersSQL begins with those who are passed over, who are few. $1 to $4 are the rules.
const vetoedPlaceholdersSQL = `
SELECT DISTINCT v.user_id, v.code, v.detail FROM ` + userVetoesSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM import_placeholder_user_details d
  WHERE d.placeholder_user_id = v.user_id AND d.namespace_id IS NULL AND d.deletion_attempts < $1
    AND (d.last_deletion_attempt_at IS NULL
      OR d.last_deletion_attempt_at < $2::timestamptz - $3::interval)
  OFFSET 0) due
ORDER BY v.user_id LIMIT $6`

// VetoedPlaceholders are the first 100 placeholder users that would be due and are passed over.
func (d *Database) VetoedPlaceholders(ctx context.Context, r PlaceholderRules) ([]Veto, error) {
	_, words := r.Kept.listed(KindUser)
	q := newQuery("look for placeholder users that are passed over", vetoedPlaceholdersSQL,
		r.args(words, vetoesNamed)...)
	return d.vetoes(ctx, Limits{Statement: statementTimeout}, q)
}
