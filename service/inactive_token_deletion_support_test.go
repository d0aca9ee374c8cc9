package service_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
)

const tokenWorker = "inactive_token_deletion"

// tokenSettings are the settings with a JSON value of N.
func tokenSettings(value string) string {
	return `{"inactive_resource_access_tokens_delete_after_days": ` + value + `}`
}

// tokenEstate has the organizations 1 and 2, each with an admin bot, 101 and 102, and N = 42.
func tokenEstate(t *testing.T) *estate {
	t.Helper()
	e := newEstate(t, "main", "main")
	e.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) SELECT i, 'o' || i, now(), now() FROM generate_series(1, 2) i`)
	e.exec("main", `INSERT INTO application_settings (id, resource_access_tokens_settings) VALUES (1, $1)`, tokenSettings("42"))
	e.user(101, 11, 1)
	e.user(102, 11, 2)
	return e
}

const projectBot = 6

// user makes an active user.
func (e *estate) user(id, userType, organization int) {
	e.t.Helper()
	e.exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES ($1, $2, $2, 0, 'active', $3, $4)`,
		id, fmt.Sprintf("u%d", id), userType, organization)
}

// bots makes project bots of organization 1 without tokens.
func (e *estate) bots(ids ...int) {
	e.t.Helper()
	for _, id := range ids {
		e.user(id, projectBot, 1)
	}
}

// token gives a user a token. Its values are SQL expressions in which {today} is the UTC date, {c} the instant 42 days
// ago, in UTC, and {c_date} its date.
func (e *estate) token(user int, revoked, expires, updated string) {
	e.t.Helper()
	sql := fmt.Sprintf(`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, revoked, expires_at, updated_at)
		VALUES (%d, 'token', 1, now(), %s, %s, %s)`, user, revoked, expires, updated)
	c := `(now() AT TIME ZONE 'UTC' - interval '42 days')`
	e.exec("main", strings.NewReplacer("{today}", `(now() AT TIME ZONE 'UTC')::date`, "{c_date}", c+`::date`, "{c}", c).Replace(sql))
}

const (
	longAgo = `timestamp '2001-02-03 04:05:06'`
	never   = `NULL`
)

// alive gives a user a token that keeps it.
func (e *estate) alive(user int) {
	e.t.Helper()
	e.token(user, "false", never, longAgo)
}

func runTokens(t *testing.T, s *service.Service) service.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// queuedUsers are the users with a job delete_user, in order.
const queuedUsers = `SELECT coalesce(string_agg(args ->> 'user_id', ' ' ORDER BY (args ->> 'user_id')::bigint), '') FROM maintenance.river_job WHERE kind = 'delete_user'`

// continuations are the jobs that go on with a pass, by their states.
const continuations = `SELECT coalesce(string_agg(state::text, ' ' ORDER BY id), '') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`

// passes are all passes: cursor, examined, scheduled, and whether they are finished.
const passes = `SELECT coalesce(string_agg(concat_ws('/', cursor, examined, scheduled) || CASE WHEN finished_at IS NULL THEN '' ELSE ' finished' END, ', ' ORDER BY started_at), '') FROM maintenance.token_passes`

// logTo lets a service log JSON into a buffer.
func logTo(log *lockedBuffer) func(*service.Config) {
	return func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) }
}
