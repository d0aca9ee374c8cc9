package token_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// tokenColumns are the values of revoked, expires_at and updated_at.
type tokenColumns [3]string

// judgedBot is a bot by its tokens, and whether it is to be deleted.
type judgedBot struct {
	name   string
	queued bool
	tokens []tokenColumns
}

func judgedBots() []judgedBot {
	return []judgedBot{
		{"active token", false, []tokenColumns{{"false", "{today} + 1", servicetest.LongAgo}}},
		{"token that never expires", false, []tokenColumns{{"false", servicetest.Never, servicetest.LongAgo}}},
		{"revoked is NULL and expiry in the future", false, []tokenColumns{{"NULL", "{today} + 10", servicetest.LongAgo}}},
		{"revoked is NULL and no expiry", false, []tokenColumns{{"NULL", servicetest.Never, servicetest.LongAgo}}},
		{"revoked is NULL and expired long ago", true, []tokenColumns{{"NULL", "{c_date} - 1", "now()"}}},
		{"expired the day before C", true, []tokenColumns{{"false", "{c_date} - 1", servicetest.LongAgo}}},
		{"expired on the day of C", false, []tokenColumns{{"false", "{c_date}", servicetest.LongAgo}}},
		{"expired the day after C", false, []tokenColumns{{"false", "{c_date} + 1", servicetest.LongAgo}}},
		{"expires today", false, []tokenColumns{{"false", "{today}", servicetest.LongAgo}}},
		{"revoked a second before C", true, []tokenColumns{{"true", servicetest.Never, "{c} - interval '1 second'"}}},
		{"revoked an hour after C", false, []tokenColumns{{"true", servicetest.Never, "{c} + interval '1 hour'"}}},
		{"live token last touched long before C", false, []tokenColumns{{"false", "{today} + 300", servicetest.LongAgo}}},
		{"no token at all", true, nil},
		{"rotated chain", false, []tokenColumns{{"true", "{today} + 5", servicetest.LongAgo}, {"false", "{today} + 300", servicetest.LongAgo}}},
		{"rotated chain, the newest dead", false, []tokenColumns{{"false", servicetest.Never, servicetest.LongAgo}, {"true", "{c_date} - 9", servicetest.LongAgo}}},
		{"one dead for long, one expired yesterday", false, []tokenColumns{{"true", "{c_date} - 9", servicetest.LongAgo}, {"false", "{today} - 1", servicetest.LongAgo}}},
		{"revoked long ago, expiry date lately", false, []tokenColumns{{"true", "{today} - 3", servicetest.LongAgo}}},
		{"revoked long ago, expires today", false, []tokenColumns{{"true", "{today}", servicetest.LongAgo}}},
		{"revoked long ago, expires tomorrow", true, []tokenColumns{{"true", "{today} + 1", servicetest.LongAgo}}},
		{"revoked long ago, expiry in the future", true, []tokenColumns{{"true", "{today} + 3", servicetest.LongAgo}}},
		{"expired long ago, revoked last week", false, []tokenColumns{{"true", "{c_date} - 300", "now() AT TIME ZONE 'UTC' - interval '7 days'"}}},
		{"expired long ago, touched last week", true, []tokenColumns{{"false", "{c_date} - 300", "now() AT TIME ZONE 'UTC' - interval '7 days'"}}},
		{"expires in infinity", false, []tokenColumns{{"false", "'infinity'", servicetest.LongAgo}}},
		{"expires in infinity, revoked long ago", true, []tokenColumns{{"true", "'infinity'", servicetest.LongAgo}}},
		{"expired infinitely long ago", true, []tokenColumns{{"false", "'-infinity'", servicetest.LongAgo}}},
		{"revoked in infinity", false, []tokenColumns{{"true", servicetest.Never, "'infinity'"}}},
		{"many dead tokens", true, []tokenColumns{{"true", servicetest.Never, servicetest.LongAgo}, {"false", "{c_date} - 1", "now()"}, {"true", "{c_date} - 2", servicetest.LongAgo}}},
	}
}

// The dates are those of UTC, whatever the time zones of the process and of the database. They
// apply when a bot is queued, and when its job checks the tokens again.
func TestInactiveTokenDeletion_QueuesBotsWhoseTokensAreAllDeadForLong(t *testing.T) {
	t.Parallel()
	// Without prepared statements the driver chooses the types of parameters.
	modes := map[string]string{"": "", "Pacific/Kiritimati": "exec", "Pacific/Pago_Pago": "simple_protocol", "America/Los_Angeles": "cache_statement"}
	for _, zone := range append(servicetest.Zones(), "") {
		t.Run(zone, func(t *testing.T) {
			e := servicetest.NewTokens(servicetest.Parallel(t))
			cases, queued := judgedBots(), 0
			var others []jobqueue.Job
			for i, c := range cases {
				id := 1000 + i
				e.Bots(id)
				for _, columns := range c.tokens {
					e.Token(id, columns[0], columns[1], columns[2])
				}
				if c.queued {
					queued++
				} else {
					args := jobqueue.DeleteUser{UserID: int64(id), SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason}
					others = append(others, servicetest.JobOf(args))
				}
			}
			s := e.Service("", e.WithQueue)
			inMode := func(o *servicetest.Order) { o.URLs[0] += "&default_query_exec_mode=" + modes[zone] }
			var r run.Run
			if zone == "" {
				r = servicetest.RunTokens(t, s)
			} else {
				r = e.RunIn(zone, servicetest.InactiveTokens, inMode)
			}
			servicetest.WantState(t, r, control.RunSucceeded)
			servicetest.WantCounts(t, r, fmt.Sprintf("examined_users=%d scheduled_jobs=%d", len(cases), queued))
			got := " " + e.Value("main", servicetest.QueuedUsers) + " "
			e.Insert(others...)
			if zone == "" {
				e.Work(s, "delete_user")
			} else {
				e.Start("zoned", "", servicetest.InZone(zone), inMode, func(o *servicetest.Order) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
				e.Eventually("main", `SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
			}
			for i, c := range cases {
				assert.Equal(t, strings.Contains(got, fmt.Sprintf(" %d ", 1000+i)), c.queued, c.name, "queued")
				want := servicetest.DeletionSkipped + "TOKEN_ACTIVE"
				if c.queued {
					want = servicetest.DeletionDone
				}
				how := e.Value("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', ''))
					FROM maintenance.river_job WHERE (args ->> 'user_id')::integer = $1`, 1000+i)
				assert.That(t, how == want, "%s: job %q, want %q", c.name, how, want)
			}
			e.Want("main", `SELECT count(*) FROM users WHERE state = 'blocked' AND updated_at BETWEEN
				(now() AT TIME ZONE 'UTC') - interval '1 hour' AND now() AT TIME ZONE 'UTC'`, fmt.Sprint(queued))
		})
	}
}

func TestInactiveTokenDeletion_Bots(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		neverTouchesOthersThanProjectBots, stateOfTheBotDoesNotMatter,
		jobNamesTheAdminBotOfTheOrganization, walksOverAllPages, botInTheGhostQueueIsLeftOut,
		runTwiceQueuesOnceAndBesideJobsOfAnotherReason, dryRunWalksFromTheBeginningBesideAPass,
		dryRunCountsAsARunNow,
	)
}

func TestInactiveTokenDeletion_Schema(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		withoutOrganizationsAnyAdminBotWillDo, withoutAQueueIsNotConfigured,
		continuationSaysWhatIsMissing, changesOfTheSchemaAreLoggedOnce,
	)
}

// A walk ends after the last bot, neither before nor never. The ids have gaps, and some users are
// no bots.
func walksOverAllPages(e *servicetest.Estate) {
	t := e.T
	whole := servicetest.With(func(c *token.Config) { c.BatchSize = 3 })
	piecewise := servicetest.With(func(c *token.Config) { c.BatchSize, c.MaxRuntime = 3, time.Millisecond })
	for _, n := range servicetest.PageEdges(3) {
		for how, settings := range map[string]func(*service.Config){"in one run": whole, "a range each run": piecewise} {
			e.Exec("main", `DELETE FROM users WHERE id > 1000; DELETE FROM maintenance.river_job; DELETE FROM maintenance.token_passes`)
			e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, user_type, organization_id)
				SELECT 1000 + 7 * i, 'w' || i, 'w' || i, 0, CASE WHEN i % 2 = 0 THEN 6 ELSE 0 END, 1 FROM generate_series(1, 2 * $1::integer + 1) i`, n)
			s := e.Service("", e.WithQueue, settings)
			examined := int64(0)
			for more := true; more; {
				r := servicetest.RunTokens(t, s)
				servicetest.WantState(t, r, control.RunSucceeded)
				examined, more = examined+r.Counts["examined_users"], r.OverLimit
			}
			assert.That(t, examined == int64(n), "%d bots %s: %d examined", n, how, examined)
			e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, fmt.Sprint(n))
			e.Want("main", `SELECT count(*) FROM maintenance.token_passes WHERE finished_at IS NOT NULL`, "1")
		}
	}
}

func neverTouchesOthersThanProjectBots(e *servicetest.Estate) {
	t := e.T
	for i, userType := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 15, 16, 17} {
		e.User(200+i, userType, 1)
		e.User(300+i, userType, 1)
		e.Token(300+i, "true", "{c_date} - 9", servicetest.LongAgo)
	}
	wantTokens(t, e.Service("", e.WithQueue), "")
	e.Want("main", servicetest.QueuedUsers, "")
	e.Want("main", passes, "0/0/0 finished")
}

func stateOfTheBotDoesNotMatter(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3, 4)
	e.Exec("main", `UPDATE users SET state = 'blocked' WHERE id = 1`)
	e.Exec("main", `UPDATE users SET state = NULL WHERE id = 2`)
	e.Token(3, "false", "{c_date} - 1", servicetest.LongAgo)
	e.Exec("main", `UPDATE personal_access_tokens SET impersonation = true, scopes = '--- [api]', last_used_at = now()`)
	e.Exec("main", `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at, impersonation) VALUES (4, 't', 1, now(), now(), true)`)
	wantTokens(t, e.Service("", e.WithQueue), "examined_users=4 scheduled_jobs=3")
	e.Want("main", servicetest.QueuedUsers, "1 2 3")
}

func jobNamesTheAdminBotOfTheOrganization(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (3, 'o3', now(), now())`)
	e.User(99, 11, 2)
	e.User(1, servicetest.ProjectBot, 1)
	e.User(2, servicetest.ProjectBot, 2)
	e.User(3, servicetest.ProjectBot, 3)
	e.User(4, servicetest.ProjectBot, 2)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *token.Config) { c.BatchSize = 2 }))
	r := wantTokens(t, s, "examined_users=4 scheduled_jobs=4")
	e.Want("main", `SELECT string_agg(args::text, E'\n' ORDER BY args ->> 'user_id') FROM maintenance.river_job`,
		`{"reason": "No active token assigned", "user_id": 1, "deleted_by_id": 101, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 2, "deleted_by_id": 99, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 3, "deleted_by_id": null, "skip_authorization": true}
{"reason": "No active token assigned", "user_id": 4, "deleted_by_id": 99, "skip_authorization": true}`)
	e.Want("main", `SELECT string_agg(DISTINCT concat_ws(' ', state, max_attempts, metadata ->> 'run_id' = '`+r.ID+`', scheduled_at <= now()), ',') FROM maintenance.river_job`,
		"available 25 t t")
}

func withoutOrganizationsAnyAdminBotWillDo(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `ALTER TABLE users DROP COLUMN organization_id CASCADE`)
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type) VALUES (1, 'u', 'u', 0, 'active', 6)`)
	s := e.Service("", e.WithQueue)
	wantTokens(t, s, "examined_users=1 scheduled_jobs=1")
	e.Want("main", `SELECT args ->> 'deleted_by_id' FROM maintenance.river_job`, "101")
	e.Exec("main", `TRUNCATE maintenance.river_job`)
	e.Exec("main", `DELETE FROM users WHERE user_type = 11`)
	wantTokens(t, s, "examined_users=1 scheduled_jobs=1")
	e.Want("main", `SELECT args -> 'deleted_by_id' FROM maintenance.river_job`, "null")
}

func botInTheGhostQueueIsLeftOut(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2)
	e.Exec("main", `INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (1, now(), now())`)
	for _, queue := range []string{"ghost_user_migrations", "users_ghost_user_migrations"} {
		e.Exec("main", `ALTER TABLE ghost_user_migrations RENAME TO x; ALTER TABLE x RENAME TO `+queue)
		wantTokens(t, e.Service("", e.WithQueue), "examined_users=2 scheduled_jobs=1")
		e.Want("main", servicetest.QueuedUsers, "2")
		e.Exec("main", `DELETE FROM maintenance.river_job`)
	}
}

func runTwiceQueuesOnceAndBesideJobsOfAnotherReason(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2)
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 1, SkipAuthorization: true, Reason: "Group was deleted"}})
	s := e.Service("", e.WithQueue)
	wantTokens(t, s, "examined_users=2 scheduled_jobs=2")
	wantTokens(t, s, "examined_users=2")
	e.Want("main", servicetest.QueuedUsers, "1 1 2")
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE args @> '{"user_id": 1}'`)
	wantTokens(t, s, "examined_users=2")
	e.Want("main", passes, "2/2/2 finished, 2/2/0 finished, 2/2/0 finished")
}

func dryTokens(t *testing.T, s *service.Service) run.Run {
	t.Helper()
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, DryRun: true}))(t)
	servicetest.WantState(t, r, control.RunSucceeded)
	return r
}

func dryRunWalksFromTheBeginningBesideAPass(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	// Another lease does not stop it.
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'another', expires_at = now() + interval '1 hour'`)
	before := e.Value("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`)
	servicetest.WantCounts(t, dryTokens(t, e.Service("", e.WithQueue)), "examined_users=3 scheduled_jobs=3")
	r := dryTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	servicetest.WantCounts(t, r, "examined_users=1 scheduled_jobs=1")
	assert.That(t, r.OverLimit, "over_limit is not set")
	e.Want("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`, before)
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
}

func dryRunCountsAsARunNow(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3, 4, 5, 6, 7, 8)
	for _, bot := range []int{2, 5} {
		e.Alive(bot)
	}
	e.Exec("main", `INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 1, SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason}},
		jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: "Group was deleted"}},
		jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 4, SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason}})
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'completed', finalized_at = now() WHERE args @> '{"user_id": 4}'`)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *token.Config) { c.BatchSize = 3 }))
	const counts = "examined_users=8 scheduled_jobs=4"
	servicetest.WantCounts(t, dryTokens(t, s), counts)
	servicetest.WantCounts(t, servicetest.RunTokens(t, s), counts)
}

func TestInactiveTokenDeletion_MissingTablesAreNamed(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	for name, c := range map[string]struct{ sql, named string }{
		"no tokens":                {`ALTER TABLE personal_access_tokens RENAME TO x`, "personal_access_tokens"},
		"tokens without an expiry": {`ALTER TABLE personal_access_tokens DROP COLUMN expires_at`, "expires_at"},
		"no users":                 {`ALTER TABLE users RENAME TO x`, "users"},
		"no queue of the ghosts":   {`ALTER TABLE ghost_user_migrations RENAME TO x`, "no table ghost_user_migrations"},
		"queue without its users":  {`ALTER TABLE ghost_user_migrations DROP COLUMN user_id`, "no column user_id in table ghost_user_migrations"},
		"users without a state":    {`ALTER TABLE users DROP COLUMN state CASCADE`, "no column state in table users"},
		"a state that is a number": {servicetest.StateIsANumber, "column users.state of database main has type integer, which cannot hold 'blocked'"},
		"a state that has no such": {servicetest.StateIsAnEnum("active"), "column users.state of database main has type mood, which cannot hold 'blocked'"},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", c.sql)
			s := e.Service("", e.WithQueue)
			for _, dry := range []bool{false, true} {
				_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, DryRun: dry})
				unconfigured, ok := errors.AsType[*fault.NotConfiguredError](err)
				assert.That(t, ok && strings.Contains(unconfigured.Missing, c.named), "%v, want that %s is missing", err, c.named)
			}
			servicetest.WantConditionOf(t, s, servicetest.InactiveTokens, status.ConditionNotConfigured, c.named)
		})
	}
}

func withoutAQueueIsNotConfigured(e *servicetest.Estate) {
	t := e.T
	_, err := e.Service("").RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens})
	_, ok := errors.AsType[*fault.NotConfiguredError](err)
	assert.That(t, ok, "%v, want that it is not configured", err)
}

// The job has the continuation's missing settings, for clients.
func continuationSaysWhatIsMissing(e *servicetest.Estate) {
	t := e.T
	s := e.Service("", e.WithQueue)
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), now())`)
	pass := e.Value("main", `SELECT id FROM maintenance.token_passes`)
	e.Exec("main", `ALTER TABLE personal_access_tokens RENAME TO x`)
	_, err := s.WorkJob(context.Background(), e.Running(jobqueue.ContinueInactiveTokenDeletion{PassID: pass}))
	if public := job.PublicError(err); public == nil || !strings.Contains(public.Error(), "personal_access_tokens") {
		t.Errorf("%v for clients, of %v, want that personal_access_tokens is missing", public, err)
	}
}

func TestInactiveTokenDeletion_RangeThatMeetsALockIsTriedAgain(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4, 5)
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason}})
	release := e.Other(`UPDATE maintenance.river_job SET priority = 2`)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log), servicetest.With(func(c *token.Config) { c.BatchSize = 4 }))
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, Async: true}))(t)
	devdb.Eventually(t, "a range to be tried again", func() bool {
		return strings.Contains(log.String(), "check of bots failed, retrying smaller range")
	})
	release()
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, control.RunSucceeded, "examined_users=5 scheduled_jobs=4")
	e.Want("main", passes, "5/5/4 finished")
	e.Want("main", servicetest.QueuedUsers, "1 2 3 4 5")
}

func changesOfTheSchemaAreLoggedOnce(e *servicetest.Estate) {
	t := e.T
	e.Bots(1)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	servicetest.RunTokens(t, s)
	e.Exec("main", `ALTER TABLE organization_users RENAME TO x`)
	servicetest.RunTokens(t, s)
	servicetest.RunTokens(t, s)
	e.Work(s, "delete_user")
	n := strings.Count(log.String(), "schema changed, missing")
	assert.That(t, n == 1, "said %d times, want once: %s", n, log)
}
