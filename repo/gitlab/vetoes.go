package gitlab

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Vetoes keep a user or group from being deleted: a protection, or an operator's cancellation of
// its job. Workers skip it. Jobs check protections again, in the transaction that decides.

// Veto is why a user or group is skipped.
type Veto struct {
	// Target is the user or group.
	Target int64
	// Reason is typed. Detail names the author and the cause.
	Reason, Detail string
}

// cancelledUser is the beginning of a condition. The id of a user, and "OFFSET 0)", which keeps it
// a look-up, follow.
const cancelledUser = `EXISTS (SELECT FROM maintenance.job_cancellations c WHERE c.user_id = `

// cancelledText is the text of who cancelled the job of the row c, why, and how to revert it.
const cancelledText = `'job ' || c.job_id || ' was cancelled by ' || c.cancelled_by || ': '
    || c.reason || '; to undo the cancellation, run ` + "`caretaker jobs retry ' || c.job_id || '`'"

const cancelledGroupsSQL = `
SELECT DISTINCT ON (c.group_id) c.group_id, 'CANCELLED', ` + cancelledText + `
FROM maintenance.job_cancellations c WHERE c.group_id = ANY ($1::bigint[])
ORDER BY c.group_id, c.job_id DESC`

// vetoedGroups are all skipped groups, each once, with a text. cancelled: also groups whose removal
// has started. $4 and $5 are the protected groups, and their texts.
const vetoedGroups = `
vetoed AS MATERIALIZED (
  SELECT DISTINCT ON (v.id) v.id, v.cancelled, v.words
  FROM (
    SELECT k.id, false AS cancelled, 'PROTECTED: ' || k.words AS words
    FROM unnest($4::bigint[], $5::text[]) AS k (id, words)
    UNION ALL
    SELECT c.group_id, true, 'CANCELLED: ' || ` + cancelledText + `
    FROM maintenance.job_cancellations c WHERE c.group_id IS NOT NULL
  ) v
  ORDER BY v.id, NOT v.cancelled, v.words
)`

// listed returns the ids of the kept targets of a kind, in order, and the reasons.
func listed(k protection.Keeping, kind string) (ids []int64, texts []string) {
	ids, texts = []int64{}, []string{}
	for t := range k {
		if t.Kind == kind {
			ids = append(ids, t.ID)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		texts = append(texts, k.Of(kind, id).String())
	}
	return ids, texts
}

// listVetoes reads the skipped targets and the reasons.
func listVetoes(ctx context.Context, d *pg.Database, l fencing.Limits, q pg.Query) ([]Veto, error) {
	return pg.ReadRows(ctx, d, l, q, pgx.RowToStructByPos[Veto])
}

// groupVetoes returns which of the groups are skipped, and why.
func groupVetoes(
	ctx context.Context, d *pg.Database, groups []int64, l fencing.Limits,
) (map[int64]*Veto, error) {
	kept, err := protection.NewProtections(d).Keeping(ctx, l)
	if err != nil {
		return nil, err
	}
	vetoes := map[int64]*Veto{}
	for _, id := range groups {
		if p := kept.Of(control.KindGroup, id); p != nil {
			vetoes[id] = &Veto{id, reasons.Protected, p.String()}
		}
	}
	// They come last: they also hold started removals.
	q := pg.NewQuery("find cancelled group removals", cancelledGroupsSQL, groups)
	cancelled, err := listVetoes(ctx, d, l, q)
	for i := range cancelled {
		vetoes[cancelled[i].Target] = &cancelled[i]
	}
	return vetoes, err
}

// userVetoesSQL reads the vetoes of users, with texts. $4 are the users that protections keep, $5
// the texts.
const userVetoesSQL = `(
  SELECT k.user_id, 'PROTECTED' AS code, k.detail FROM unnest($4::bigint[], $5::text[]) AS k (user_id, detail)
  UNION ALL
  SELECT user_id, code, detail FROM ` + cancelledUsersSQL + ` cancelled)`

// cancelledUsersSQL reads those of them whose deletion an operator has cancelled.
const cancelledUsersSQL = `(
  SELECT c.user_id, 'CANCELLED' AS code, ` + cancelledText + ` AS detail
  FROM maintenance.job_cancellations c WHERE c.user_id IS NOT NULL)`

// vetoesNamed is how many skipped targets are named.
const vetoesNamed = 100

// cancelledBotsSQL begins with the few skipped users. $1 to $3 are the rules.
const cancelledBotsSQL = `
SELECT v.user_id, v.code, v.detail FROM ` + cancelledUsersSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM users u WHERE u.id = v.user_id AND u.user_type = 6 OFFSET 0) bot
WHERE v.user_id > $4::bigint AND v.user_id <= $5::bigint AND NOT EXISTS (
    SELECT FROM personal_access_tokens t WHERE t.user_id = v.user_id AND ` + keepsBotSQL + ` OFFSET 0)
  AND NOT EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = v.user_id OFFSET 0)
ORDER BY v.user_id LIMIT $6`

// CancelledBots returns the first 100 inactive bots after an id, up to last, whose deletion was
// cancelled.
func (d Users) CancelledBots(
	ctx context.Context, f UserFeatures, r TokenRules, after, last int64,
) ([]Veto, error) {
	sql := stmt.Fill(cancelledBotsSQL, "{ghosts}", stmt.Quote(f.ghosts))
	q := pg.NewQuery("find skipped bots", sql, r.args(after, last, vetoesNamed)...)
	return listVetoes(ctx, d.db, fencing.Limits{Statement: stmt.StatementTimeout}, q)
}

// vetoedPlaceholdersSQL begins with the few skipped users. $1 to $4 are the rules.
const vetoedPlaceholdersSQL = `
SELECT DISTINCT v.user_id, v.code, v.detail FROM ` + userVetoesSQL + ` v
CROSS JOIN LATERAL (
  SELECT FROM import_placeholder_user_details d
  WHERE d.placeholder_user_id = v.user_id AND d.namespace_id IS NULL AND d.deletion_attempts < $1
    AND (d.last_deletion_attempt_at IS NULL
      OR d.last_deletion_attempt_at < $2::timestamptz - $3::interval)
  OFFSET 0) due
ORDER BY v.user_id LIMIT $6`

// VetoedPlaceholders returns the first 100 skipped placeholder users that would be due.
func (d Users) VetoedPlaceholders(ctx context.Context, r PlaceholderRules) ([]Veto, error) {
	_, texts := listed(r.Kept, control.KindUser)
	q := pg.NewQuery("find skipped placeholder users", vetoedPlaceholdersSQL,
		r.args(texts, vetoesNamed)...)
	return listVetoes(ctx, d.db, fencing.Limits{Statement: stmt.StatementTimeout}, q)
}
