package gitlab

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Project bots whose tokens have all been inactive for long.

// Types of users as the statements have them: 6 is a project bot, 11 an admin bot.

// tokenSettingKey is the key of the setting N, tokenSettingColumn its column.
const (
	tokenSettingKey    = "inactive_resource_access_tokens_delete_after_days"
	tokenSettingColumn = "application_settings.resource_access_tokens_settings"
)

// TokenSettingOff explains how to switch the deletion on again.
const TokenSettingOff = tokenSettingKey + " in " + tokenSettingColumn +
	" is null: set it to a number of days to enable the deletion"

// defaultTokenDays is the default of N, maxTokenDays its maximum.
const (
	defaultTokenDays = 30
	maxTokenDays     = 36500
)

// TokenSetting is the value of the setting N.
type TokenSetting struct {
	// Now is main's clock at that time.
	Now time.Time
	// Days is N. Off: the deletion is switched off.
	Days int
	Off  bool
	// Invalid explains the fault of the setting and its fix, "" for none. Redacted omits the value.
	Invalid, Redacted string
}

// tokenSettingSQL checks the types before it converts: a number may be of any size, and an object
// is none. $1 is the key, $2 the highest N.
const tokenSettingSQL = `
SELECT clock_timestamp(), coalesce(jsonb_typeof(s.settings), ''), coalesce(jsonb_typeof(v.value), ''),
  coalesce(left(coalesce(v.value, s.settings)::text, 200), ''),
  coalesce(CASE jsonb_typeof(v.value) WHEN 'number' THEN
    CASE WHEN v.value::numeric BETWEEN 1 AND $2::integer
      AND v.value::numeric = trunc(v.value::numeric) THEN v.value::integer END END, 0)
FROM (SELECT) AS always
LEFT JOIN {settings} s ON true
LEFT JOIN LATERAL (SELECT s.settings -> $1::text AS value) v ON true`

const (
	settingsSourceSQL   = `(SELECT resource_access_tokens_settings AS settings FROM application_settings {settings.newest} LIMIT 1)`
	noSettingsSourceSQL = `(SELECT NULL::jsonb AS settings)`
)

// foundSetting is a row of tokenSettingSQL.
type foundSetting struct {
	now                     time.Time
	columnType, kind, shown string
	days                    int
}

func (s *foundSetting) columns() []any {
	return []any{&s.now, &s.columnType, &s.kind, &s.shown, &s.days}
}

func (f UserFeatures) tokenSettingSQL() string {
	source := noSettingsSourceSQL
	if f.setting {
		source = settingsSourceSQL
	}
	return f.fill(stmt.Fill(tokenSettingSQL, "{settings}", source))
}

// judge applies the table of values in docs/reference/workers/inactive_token_deletion.md.
func (s *foundSetting) judge() TokenSetting {
	setting := TokenSetting{Now: s.now, Days: s.days}
	switch {
	case s.columnType != "" && s.columnType != "object":
		is := tokenSettingKey + " cannot be read, because " + tokenSettingColumn + " is "
		setting.Invalid = is + s.shown + ": set the column to a JSON object"
		setting.Redacted = is + "not a JSON object"
	case s.kind == "":
		setting.Days = defaultTokenDays
	case s.kind == "null":
		setting.Off = true
	case s.days == 0:
		is := tokenSettingKey + " in " + tokenSettingColumn + " is "
		advice := fmt.Sprintf(": set it to a whole number of days from 1 to %d, or to "+
			"null to disable the deletion", maxTokenDays)
		setting.Invalid, setting.Redacted = is+s.shown+advice, is+"invalid"+advice
	}
	return setting
}

// TokenSetting reads the setting N.
func (d Tokens) TokenSetting(ctx context.Context, f UserFeatures) (TokenSetting, error) {
	var found foundSetting
	err := pg.QueryRow(ctx, d.db, "read "+tokenSettingKey, found.columns(),
		f.tokenSettingSQL(), tokenSettingKey, maxTokenDays)
	return found.judge(), err
}

func tokenSettingIn(ctx context.Context, tx pgx.Tx, f UserFeatures) (TokenSetting, error) {
	var found foundSetting
	err := tx.QueryRow(ctx, f.tokenSettingSQL(), tokenSettingKey, maxTokenDays).
		Scan(found.columns()...)
	return found.judge(), err
}

// TokenRules decide whether a token keeps its bot: At is T, CutOff is C.
type TokenRules struct{ At, CutOff time.Time }

// NewTokenRules returns the rules of an instant of main's clock and a setting of so many days, each
// of 24 hours.
func NewTokenRules(at time.Time, days int) TokenRules {
	return TokenRules{At: at, CutOff: at.Add(-time.Duration(days) * 24 * time.Hour)}
}

// args returns $1 to $3 of the statements with keepsBotSQL: the UTC dates of T and C, and C in UTC.
// Neither the connection's time zone nor the host's matters.
func (r TokenRules) args(more ...any) []any {
	return append([]any{r.At.UTC(), r.CutOff.UTC(), r.CutOff.UTC()}, more...)
}

// keepsBotSQL reports whether a token t keeps its bot: it is active, expired recently, or was
// revoked recently.
const keepsBotSQL = `(t.revoked IS NOT TRUE AND (t.expires_at IS NULL OR t.expires_at > $1::date)
    OR t.expires_at <= $1::date AND t.expires_at >= $2::date
    OR t.revoked IS TRUE AND t.updated_at >= $3::timestamp)`

const (
	// botRangeSQL is a range of bots of type 6. The comparison of rows admits only the index on both
	// columns, so that PostgreSQL does not read all users to find the bots. $4 is the cursor, $5 the
	// size of the range.
	botRangeSQL = `(
    SELECT id FROM users WHERE (user_type, id) > (6, $4::bigint) AND user_type <= 6
    ORDER BY user_type, id LIMIT $5)`

	// botListSQL returns the bots $5 of the range after $4 that are inactive according to a replica.
	botListSQL = `(SELECT id FROM users WHERE id = ANY ($5::bigint[]) AND user_type = 6)`
)

// inactiveBotsSQL judges bots. It probes the tokens of each, the newest first, which most likely
// keeps its bot. OFFSET 0 preserves that order and keeps the planner from joining all tokens.
const inactiveBotsSQL = `
WITH judged AS MATERIALIZED (
  SELECT count(*) AS examined, max(p.id) AS last, array_agg(p.id) FILTER (WHERE NOT EXISTS (
      SELECT FROM personal_access_tokens t WHERE t.user_id = p.id AND ` + keepsBotSQL + ` ORDER BY t.id DESC OFFSET 0)) AS idle
  FROM {bots} p
),
due AS MATERIALIZED (
  SELECT i.id, (SELECT {organization} FROM users u WHERE u.id = i.id) AS organization_id
  FROM judged CROSS JOIN LATERAL unnest(judged.idle) AS i (id)
  WHERE NOT EXISTS (SELECT FROM {ghosts} q WHERE q.user_id = i.id OFFSET 0)
    AND NOT ` + cancelledUser + `i.id OFFSET 0)
)
SELECT j.examined, coalesce(j.last, $4::bigint),
  EXISTS (SELECT FROM users WHERE (user_type, id) > (6, j.last) AND user_type <= 6),
  ARRAY(SELECT id FROM due ORDER BY id),
  ARRAY(SELECT coalesce(organization_id, 0) FROM due ORDER BY id)
FROM judged j`

// BotRange is the next range of bots in the order of their ids.
type BotRange struct {
	// Examined counts the bots, Last is the highest. Without bots Last is the start of the range.
	Examined int
	Last     int64
	// More: bots with higher ids exist.
	More bool
	// Inactive bots that are not in the queue of the ghost migration yet, nor cancelled, and the organization of
	// each, 0 for none.
	Inactive, Organizations []int64
}

func (r *BotRange) columns() []any {
	return []any{&r.Examined, &r.Last, &r.More, &r.Inactive, &r.Organizations}
}

// BotPage is the next Limit bots with ids above After.
type BotPage struct {
	After int64
	Limit int
}

// InactiveBots judges a page of bots by the rules. A replica's results are only candidates. The
// primary judges the bots again that the replica finds inactive, and the end of the bots.
func (d Tokens) InactiveBots(
	ctx context.Context, f UserFeatures, rules TokenRules, page BotPage, l fencing.Limits,
) (r BotRange, err error) {
	organization := "0::bigint"
	if f.organizations {
		organization = "u.organization_id"
	}
	judge := func(bots string, which any) pg.Query {
		sql := stmt.Fill(inactiveBotsSQL, "{bots}", bots, "{organization}", organization,
			"{ghosts}", stmt.Quote(f.ghosts))
		return pg.NewQuery("find inactive bots", sql, rules.args(page.After, which)...)
	}
	whole := judge(botRangeSQL, page.Limit)
	stale, err := pg.ReplicaRow(ctx, d.db, l, whole, r.columns()...)
	switch {
	case err != nil || !stale:
	case !r.More:
		err = pg.ReadRow(ctx, d.db, l, whole, r.columns()...)
	case len(r.Inactive) > 0:
		var again BotRange
		err = pg.ReadRow(ctx, d.db, l, judge(botListSQL, r.Inactive), again.columns()...)
		r.Inactive, r.Organizations = again.Inactive, again.Organizations
	}
	return r, err
}

const (
	adminBotsSQL = `
SELECT organization_id, min(id) FROM users
WHERE user_type = 11 AND organization_id = ANY ($1::bigint[]) GROUP BY organization_id`

	anyAdminBotSQL = `SELECT 0::bigint, min(id) FROM users WHERE user_type = 11 HAVING min(id) IS NOT NULL`
)

// AdminBots finds the admin bots of organizations, of several the one with the lowest id. If users
// have no organization, all share the number 0.
func (d Tokens) AdminBots(
	ctx context.Context, f UserFeatures, organizations []int64, l fencing.Limits,
) (map[int64]int64, error) {
	sql, args := anyAdminBotSQL, []any{}
	if f.organizations {
		sql, args = adminBotsSQL, []any{organizations}
	}
	type pair struct{ Organization, Bot int64 }
	q := pg.NewQuery("find admin bots", sql, args...)
	pairs, err := pg.ReadRows(ctx, d.db, l, q, pgx.RowToStructByPos[pair])
	bots := map[int64]int64{}
	for _, p := range pairs {
		bots[p.Organization] = p.Bot
	}
	return bots, err
}
