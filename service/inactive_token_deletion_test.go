package service_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
)

func TestInactiveTokenDeletion_QueuesBotsWhoseTokensAreAllDeadForLong(t *testing.T) {
	t.Parallel()
	type token struct{ revoked, expires, updated string }
	cases := []struct {
		name   string
		queued bool
		tokens []token
	}{
		{"active token", false, []token{{"false", "{today} + 1", longAgo}}},
		{"token that never expires", false, []token{{"false", never, longAgo}}},
		{"revoked is NULL and expiry in the future", false, []token{{"NULL", "{today} + 10", longAgo}}},
		{"revoked is NULL and no expiry", false, []token{{"NULL", never, longAgo}}},
		{"revoked is NULL and expired long ago", true, []token{{"NULL", "{c_date} - 1", "now()"}}},
		{"expired the day before C", true, []token{{"false", "{c_date} - 1", longAgo}}},
		{"expired on the day of C", false, []token{{"false", "{c_date}", longAgo}}},
		{"expired the day after C", false, []token{{"false", "{c_date} + 1", longAgo}}},
		{"expires today", false, []token{{"false", "{today}", longAgo}}},
		{"revoked a second before C", true, []token{{"true", never, "{c} - interval '1 second'"}}},
		{"revoked an hour after C", false, []token{{"true", never, "{c} + interval '1 hour'"}}},
		{"live token last touched long before C", false, []token{{"false", "{today} + 300", longAgo}}},
		{"no token at all", true, nil},
		{"rotated chain", false, []token{{"true", "{today} + 5", longAgo}, {"false", "{today} + 300", longAgo}}},
		{"rotated chain, the newest dead", false, []token{{"false", never, longAgo}, {"true", "{c_date} - 9", longAgo}}},
		{"one dead for long, one expired yesterday", false, []token{{"true", "{c_date} - 9", longAgo}, {"false", "{today} - 1", longAgo}}},
		{"revoked long ago, expiry date lately", false, []token{{"true", "{today} - 3", longAgo}}},
		{"revoked long ago, expiry in the future", true, []token{{"true", "{today} + 3", longAgo}}},
		{"expired long ago, revoked last week", false, []token{{"true", "{c_date} - 300", "now() AT TIME ZONE 'UTC' - interval '7 days'"}}},
		{"expired long ago, touched last week", true, []token{{"false", "{c_date} - 300", "now() AT TIME ZONE 'UTC' - interval '7 days'"}}},
		{"expires in infinity", false, []token{{"false", "'infinity'", longAgo}}},
		{"expires in infinity, revoked long ago", true, []token{{"true", "'infinity'", longAgo}}},
		{"expired infinitely long ago", true, []token{{"false", "'-infinity'", longAgo}}},
		{"revoked in infinity", false, []token{{"true", never, "'infinity'"}}},
		{"many dead tokens", true, []token{{"true", never, longAgo}, {"false", "{c_date} - 1", "now()"}, {"true", "{c_date} - 2", longAgo}}},
	}
	e := tokenEstate(t)
	var queued []string
	for i, c := range cases {
		id := 1000 + i
		e.bots(id)
		for _, token := range c.tokens {
			e.token(id, token.revoked, token.expires, token.updated)
		}
		if c.queued {
			queued = append(queued, fmt.Sprint(id))
		}
	}
	r := runTokens(t, e.service("", e.withQueue))
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, fmt.Sprintf("examined_users=%d scheduled_jobs=%d", len(cases), len(queued)))
	if got := e.value("main", queuedUsers); got != strings.Join(queued, " ") {
		for i, c := range cases {
			if got := strings.Contains(" "+got+" ", fmt.Sprintf(" %d ", 1000+i)); got != c.queued {
				t.Errorf("%s: queued %t, want %t", c.name, got, c.queued)
			}
		}
	}
}

func TestInactiveTokenDeletion_NeverTouchesOthersThanProjectBots(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	for i, userType := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 15, 16, 17} {
		e.user(200+i, userType, 1)
		e.user(300+i, userType, 1)
		e.token(300+i, "true", "{c_date} - 9", longAgo)
	}
	r := runTokens(t, e.service("", e.withQueue))
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "")
	e.want("main", queuedUsers, "")
}

func TestInactiveTokenDeletion_StateOfTheBotDoesNotMatter(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4)
	e.exec("main", `UPDATE users SET state = 'blocked' WHERE id = 1`)
	e.exec("main", `UPDATE users SET state = NULL WHERE id = 2`)
	e.token(3, "false", "{c_date} - 1", longAgo)
	e.exec("main", `UPDATE personal_access_tokens SET impersonation = true, scopes = '--- [api]', last_used_at = now()`)
	e.exec("main", `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at, impersonation) VALUES (4, 't', 1, now(), now(), true)`)
	wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=4 scheduled_jobs=3")
	e.want("main", queuedUsers, "1 2 3")
}

func TestInactiveTokenDeletion_JobNamesTheAdminBotOfTheOrganization(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (3, 'o3', now(), now())`)
	e.user(99, 11, 2)
	e.user(1, projectBot, 1)
	e.user(2, projectBot, 2)
	e.user(3, projectBot, 3)
	e.user(4, projectBot, 2)
	s := e.service("", e.withQueue, with(func(c *inactivetoken.Config) { c.BatchSize = 2 }))
	r := runTokens(t, s)
	wantCounts(t, r, "examined_users=4 scheduled_jobs=4")
	e.want("main", `SELECT string_agg(args::text, E'\n' ORDER BY args ->> 'user_id') FROM maintenance.river_job`,
		`{"reason": "No active token assigned", "user_id": 1, "deleted_by_id": 101, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 2, "deleted_by_id": 99, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 3, "deleted_by_id": null, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 4, "deleted_by_id": 99, "skip_authorization": true}`)
	e.want("main", `SELECT string_agg(DISTINCT concat_ws(' ', state, max_attempts, metadata ->> 'run_id' = '`+r.ID+`', scheduled_at <= now()), ',') FROM maintenance.river_job`,
		"available 25 t t")
}

func TestInactiveTokenDeletion_WithoutOrganizationsAnyAdminBotWillDo(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.exec("main", `ALTER TABLE users DROP COLUMN organization_id CASCADE`)
	e.exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type) VALUES (1, 'u', 'u', 0, 'active', 6)`)
	s := e.service("", e.withQueue)
	wantCounts(t, runTokens(t, s), "examined_users=1 scheduled_jobs=1")
	e.want("main", `SELECT args ->> 'deleted_by_id' FROM maintenance.river_job`, "101")
	e.exec("main", `TRUNCATE maintenance.river_job`)
	e.exec("main", `DELETE FROM users WHERE user_type = 11`)
	wantCounts(t, runTokens(t, s), "examined_users=1 scheduled_jobs=1")
	e.want("main", `SELECT args -> 'deleted_by_id' FROM maintenance.river_job`, "null")
}

func TestInactiveTokenDeletion_BotInTheGhostQueueIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"ghost_user_migrations", "users_ghost_user_migrations"} {
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.bots(1, 2)
			e.exec("main", `ALTER TABLE ghost_user_migrations RENAME TO `+queue+`_x; ALTER TABLE `+queue+`_x RENAME TO `+queue)
			e.exec("main", `INSERT INTO `+queue+` (user_id, created_at, updated_at) VALUES (1, now(), now())`)
			wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=2 scheduled_jobs=1")
			e.want("main", queuedUsers, "2")
		})
	}
}

func TestInactiveTokenDeletion_RunTwiceQueuesOnce(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2)
	s := e.service("", e.withQueue)
	wantCounts(t, runTokens(t, s), "examined_users=2 scheduled_jobs=2")
	wantCounts(t, runTokens(t, s), "examined_users=2")
	e.want("main", queuedUsers, "1 2")
	e.exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE args @> '{"user_id": 1}'`)
	wantCounts(t, runTokens(t, s), "examined_users=2")
	e.want("main", passes, "2/2/2 finished, 2/2/0 finished, 2/2/0 finished")
}

func TestInactiveTokenDeletion_JobWithAnotherReasonSwallowsNone(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1)
	e.insert(repo.Job{Args: repo.DeleteUser{UserID: 1, SkipAuthorization: true, Reason: "Group was deleted"}})
	wantCounts(t, runTokens(t, e.service("", e.withQueue)), "examined_users=1 scheduled_jobs=1")
	e.want("main", queuedUsers, "1 1")
}

func TestInactiveTokenDeletion_GoesByUTCWhateverTheConnectionsTimeZone(t *testing.T) {
	t.Parallel()
	for zone, mode := range map[string]string{"Pacific/Kiritimati": "exec", "Pacific/Pago_Pago": "simple_protocol", "Asia/Kolkata": "cache_statement"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			for i, token := range [][3]string{
				{"false", "{today}", longAgo},
				{"false", "{today} + 1", longAgo},
				{"false", "{c_date}", longAgo},
				{"false", "{c_date} - 1", longAgo},
				{"true", never, "{c} + interval '1 minute'"},
				{"true", never, "{c} - interval '1 second'"},
			} {
				e.bots(i + 1)
				e.token(i+1, token[0], token[1], token[2])
			}
			e.exec("main", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), '`+zone+`'); END $$`)
			elsewhere := &estate{t: t, urls: maps.Clone(e.urls), sql: maps.Clone(e.sql)}
			elsewhere.add("main", e.urls["main"]+"&default_query_exec_mode="+mode)
			elsewhere.want("main", `SELECT current_setting('timezone')`, zone)
			s := elsewhere.service("", elsewhere.withQueue)
			wantCounts(t, runTokens(t, s), "examined_users=6 scheduled_jobs=2")
			e.want("main", newestRun, "request succeeded 6")
			e.want("main", queuedUsers, "4 6")
			if n := elsewhere.work(s, "delete_user"); n != 2 {
				t.Fatalf("%d jobs worked, want 2", n)
			}
			e.want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE state = 'blocked' AND updated_at BETWEEN
				(now() AT TIME ZONE 'UTC') - interval '1 minute' AND now() AT TIME ZONE 'UTC'`, "4 6")
		})
	}
}

func TestInactiveTokenDeletion_DryRunCountsAndWritesNothing(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5, 6, 7, 8, 9)
	for _, id := range []int{2, 4, 6} {
		e.alive(id)
	}
	e.insert(repo.Job{Args: repo.DeleteUser{UserID: 9, SkipAuthorization: true, Reason: repo.TokenDeletionReason}})
	s := e.service("", e.withQueue, with(func(c *inactivetoken.Config) { c.BatchSize = 3 }))
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "examined_users=9 scheduled_jobs=5")
	e.want("main", queuedUsers, "9")
	e.want("main", passes, "")
	e.want("main", `SELECT count(*) FROM maintenance.leases`, "0")
}
