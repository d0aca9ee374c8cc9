package servicetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/run"
)

// NewTokens has the organizations 1 and 2, each with an admin bot, 101 and 102, and N = 42.
func NewTokens(t *testing.T) *Estate {
	t.Helper()
	return New(t, "main", "main").Tokens()
}

// Tokens makes them on an estate.
func (e *Estate) Tokens() *Estate {
	e.T.Helper()
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) SELECT i, 'o' || i, now(), now() FROM generate_series(1, 2) i`)
	e.Exec("main", `INSERT INTO application_settings (id, resource_access_tokens_settings) VALUES (1, $1)`, TokenSettings("42"))
	e.User(101, 11, 1)
	e.User(102, 11, 2)
	return e
}

// TokenSettingKey is the key of N in the JSON of the settings.
const TokenSettingKey = "inactive_resource_access_tokens_delete_after_days"

// TokenSettings are the settings with a JSON value of N.
func TokenSettings(value string) string {
	return `{"inactive_resource_access_tokens_delete_after_days": ` + value + `}`
}

// StateIsANumber makes users.state a number, so that no user can be blocked.
const StateIsANumber = `ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE integer USING 0`

// StateIsAnEnum makes it an enum of some states.
func StateIsAnEnum(states ...string) string {
	return `CREATE TYPE mood AS ENUM ('` + strings.Join(states, "', '") + `');
		ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE mood USING '` + states[0] + `'`
}

// OneBotARun lets the first range, of one bot, take all of a run's time.
func OneBotARun(c *service.Config) {
	w := service.Settings[token.Config](c)
	w.BatchSize, w.MaxRuntime = 1, time.Millisecond
}

// ProjectBot is the user_type of the bots of projects and groups.
const ProjectBot = 6

// User makes an active user.
func (e *Estate) User(id, userType, organization int) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES ($1, $2, $2, 0, 'active', $3, $4)`,
		id, fmt.Sprintf("u%d", id), userType, organization)
}

// Bots makes project bots of organization 1 without tokens.
func (e *Estate) Bots(ids ...int) {
	e.T.Helper()
	for _, id := range ids {
		e.User(id, ProjectBot, 1)
	}
}

// Token gives a user a token. Its values are SQL expressions in which {today} is the UTC date, {c} the instant 42 days
// ago, in UTC, and {c_date} its date.
func (e *Estate) Token(user int, revoked, expires, updated string) {
	e.T.Helper()
	sql := fmt.Sprintf(`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, revoked, expires_at, updated_at)
		VALUES (%d, 'token', 1, now(), %s, %s, %s)`, user, revoked, expires, updated)
	c := `(now() AT TIME ZONE 'UTC' - interval '42 days')`
	e.Exec("main", strings.NewReplacer("{today}", `(now() AT TIME ZONE 'UTC')::date`, "{c_date}", c+`::date`, "{c}", c).Replace(sql))
}

// LongAgo is when an unused token was updated, as SQL.
const LongAgo = `timestamp '2001-02-03 04:05:06'`

// Never is when a token expires that does not, as SQL.
const Never = `NULL`

// Alive gives a user a token that keeps it.
func (e *Estate) Alive(user int) {
	e.T.Helper()
	e.Token(user, "false", Never, LongAgo)
}

// RunTokens runs inactive_token_deletion and fails the test on an error.
func RunTokens(t *testing.T, s *service.Service) run.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: InactiveTokens})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// QueuedUsers are the users with a job delete_user, in order.
const QueuedUsers = `SELECT coalesce(string_agg(args ->> 'user_id', ' ' ORDER BY (args ->> 'user_id')::bigint), '') FROM maintenance.river_job WHERE kind = 'delete_user'`

// Group makes a group below another one, 0 for none.
func (e *Estate) Group(id, parent int) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id, traversal_ids)
		VALUES ($1, 'g' || $1::bigint, 'g' || $1::bigint, 'Group', nullif($2::bigint, 0), 1,
		coalesce((SELECT traversal_ids FROM namespaces WHERE id = $2), '{}') || $1::bigint)`, id, parent)
}

// Member makes a direct member of group 50.
func (e *Estate) Member(user, level int) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		VALUES ($1, 50, 'Namespace', 'GroupMember', $2, 50)`, user, level)
}

// MemberSQL makes a member of a group of "user, group, level".
func MemberSQL(values string) string {
	return `INSERT INTO members (user_id, source_id, access_level, source_type, type, member_namespace_id)
		SELECT *, 'Namespace', 'GroupMember', 50 FROM (VALUES (` + values + `)) v`
}

// PersonalProjects gives a user a personal namespace, 10 × its id, with projects of the ids given.
// Each has an issue, a note on it, a repository and the user as a member.
func (e *Estate) PersonalProjects(user int, projects ...int) {
	e.T.Helper()
	namespace := 10 * user
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, owner_id, organization_id) VALUES ($1, 'u' || $1::bigint, 'u' || $1::bigint, 'User', $2, 1)`, namespace, user)
	for _, project := range projects {
		for _, sql := range []string{
			`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (10000 + $1::bigint, 'p' || $1::bigint, 'p' || $1::bigint, 'Project', $2, 1)`,
			`INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) VALUES ($1::bigint, 'p', 'p', $2, 10000 + $1::bigint, 1)`,
			`INSERT INTO issues (id, project_id, namespace_id, author_id, iid) VALUES ($1::bigint, $1::bigint, 10000 + $1::bigint, $3, 1)`,
			`INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id) VALUES ('n', 'Issue', $1::bigint, $3, $1::bigint)`,
			`INSERT INTO project_repositories (project_id, disk_path) VALUES ($1::bigint, '@hashed/' || $1::bigint)`,
			`INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES ($3, $1::bigint, 'Project', 'ProjectMember', 50, 10000 + $1::bigint)`,
			`INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES ($3, $1::bigint, 50)`,
		} {
			sql = strings.NewReplacer("$2", fmt.Sprint(namespace), "$3", fmt.Sprint(user)).Replace(sql)
			e.Exec("main", sql, project)
		}
	}
}

// UserRows are a user's rows: state, memberships, authorizations, and the row of the ghost queue.
func (e *Estate) UserRows(user int) string {
	e.T.Helper()
	return e.Value("main", `SELECT concat_ws(' ', (SELECT coalesce(state, 'NULL') FROM users WHERE id = $1),
		(SELECT count(*) FROM members WHERE user_id = $1), (SELECT count(*) FROM project_authorizations WHERE user_id = $1),
		(SELECT concat_ws(',', initiator_user_id, hard_delete, user_type) FROM ghost_user_migrations WHERE user_id = $1))`, user)
}
