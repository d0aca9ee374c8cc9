package repo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What keeps a user or group from being deleted: a protection, or that an operator has cancelled its
// job. Workers pass it over. Jobs ask for protections again, in the transaction that decides.

// Typed reasons of what is passed over or refused.
const (
	ReasonProtected = "PROTECTED"
	ReasonCancelled = "CANCELLED"
)

// ProtectedError says that something is not deleted because it is protected, or what it would take
// along.
type ProtectedError struct{ Protection }

// Error says what to do.
func (e *ProtectedError) Error() string {
	return fmt.Sprintf("%s: %s; caretaker unprotect %s %d ends that",
		ReasonProtected, e.String(), e.Kind, e.ID)
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

// unprotectedRowSQL says that the row t of users or namespaces is not protected. It stands where rows
// are deleted by whatever leads to them, in [Database.changeUnprotected]: none that is protected goes.
const unprotectedRowSQL = `NOT EXISTS (
  SELECT FROM maintenance.protected_targets p
  WHERE p.kind = {kind} AND p.id = t.id AND ` + inForceSQL + `)`

// protectedKind is the kind of protections, as SQL, of GitLab's table of that name; "": it has none.
func protectedKind(table string) string {
	return map[string]string{"users": "'user'", "namespaces": "'group'"}[table]
}

// unprotectedRows is that condition for a table of this database, "" if none of its rows can be
// protected. Only main knows protections, and those are of GitLab's users and groups.
func (d *Database) unprotectedRows(table string) string {
	kind := protectedKind(table)
	if d.Name != "main" || d.LooseForeignKeysOnly || kind == "" {
		return ""
	}
	return fill(unprotectedRowSQL, "{kind}", kind)
}

// lockProtectionsSQL lets nobody protect anything until the transaction ends: [Database.Protect] begins
// with the lock that conflicts. It waits for those who are at it.
const lockProtectionsSQL = `LOCK TABLE maintenance.protected_targets IN SHARE MODE`

// changeUnprotected is [Database.change] for a statement with unprotectedRowSQL. One statement could
// not do it: it asks in a snapshot from before it has waited for a row, and whoever protects that row
// leaves it as it was, so that PostgreSQL does not ask again. Behind the lock it sees all protections.
func (d *Database) changeUnprotected(
	ctx context.Context, p Permit, q query, r receipt, into ...any,
) error {
	p.Transaction = p.Statement + p.Lock + netTime
	ctx, into = withAffected(ctx, into)
	return d.transaction(ctx, q.operation, p, func(ctx context.Context, tx *changing) error {
		if _, err := tx.Exec(ctx, lockProtectionsSQL); err != nil {
			return err
		}
		var held bool
		change, receipt := p.fill(q.statement), r.write(p.Source, nil)
		err := tx.QueryRow(ctx, change.sql, change.args...).Scan(append([]any{&held}, into...)...)
		if err == nil && !held {
			err = p.refused(ctx, tx)
		}
		if err == nil {
			_, err = tx.Exec(ctx, receipt.sql, receipt.args...)
		}
		return err
	})
}

// refuseProtected refuses to delete a user or group that is protected, or what it would take along.
func refuseProtected(ctx context.Context, tx pgx.Tx, kind string, id int64) error {
	p, err := protecting(ctx, tx, kind, id)
	if err == nil && p != nil {
		err = &ProtectedError{*p}
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
		err = &ProtectedError{found[0]}
	}
	return err
}
