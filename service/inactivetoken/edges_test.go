package inactivetoken_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func dryTokens(t *testing.T, s *service.Service) service.Run {
	t.Helper()
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens, DryRun: true}))(t)
	servicetest.WantState(t, r, repo.RunSucceeded)
	return r
}

func TestInactiveTokenDeletion_DryRunWalksFromTheBeginningBesideAPass(t *testing.T) {
	e := newBots(parallel(t), 1, 2, 3)
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	// Somebody else's lease does not stop it.
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'another', expires_at = now() + interval '1 hour'`)
	before := e.Value("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`)
	servicetest.WantCounts(t, dryTokens(t, e.Service("", e.WithQueue)), "examined_users=3 scheduled_jobs=3")
	r := dryTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	servicetest.WantCounts(t, r, "examined_users=1 scheduled_jobs=1")
	if !r.OverLimit {
		t.Error("over_limit is not set")
	}
	e.Want("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`, before)
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
}

func TestInactiveTokenDeletion_DryRunCountsAsARunNow(t *testing.T) {
	e := newBots(parallel(t), 1, 2, 3, 4, 5, 6, 7, 8)
	for _, bot := range []int{2, 5} {
		e.Alive(bot)
	}
	e.Exec("main", `INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`)
	e.Insert(repo.Job{Args: repo.DeleteUser{UserID: 1, SkipAuthorization: true, Reason: repo.TokenDeletionReason}},
		repo.Job{Args: repo.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: "Group was deleted"}},
		repo.Job{Args: repo.DeleteUser{UserID: 4, SkipAuthorization: true, Reason: repo.TokenDeletionReason}})
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'completed', finalized_at = now() WHERE args @> '{"user_id": 4}'`)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *inactivetoken.Config) { c.BatchSize = 3 }))
	const counts = "examined_users=8 scheduled_jobs=4"
	servicetest.WantCounts(t, dryTokens(t, s), counts)
	servicetest.WantCounts(t, servicetest.RunTokens(t, s), counts)
}

func TestInactiveTokenDeletion_MissingTablesAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, named string }{
		"no tokens":                {`DROP TABLE personal_access_tokens`, "personal_access_tokens"},
		"tokens without an expiry": {`ALTER TABLE personal_access_tokens DROP COLUMN expires_at`, "expires_at"},
		"no users":                 {`DROP TABLE users CASCADE`, "users"},
		"no queue of the ghosts":   {`DROP TABLE ghost_user_migrations`, "no table ghost_user_migrations"},
		"queue without its users":  {`ALTER TABLE ghost_user_migrations DROP COLUMN user_id`, "no column user_id in its table ghost_user_migrations"},
		"users without a state":    {`ALTER TABLE users DROP COLUMN state CASCADE`, "no column state in its table users"},
		"a state that is a number": {servicetest.StateIsANumber, "users.state of database main has the type integer, which has no 'blocked'"},
		"a state that has no such": {servicetest.StateIsAnEnum("active"), "users.state of database main has the type mood, which has no 'blocked'"},
	} {
		t.Run(name, func(t *testing.T) {
			e := servicetest.NewTokens(parallel(t))
			e.Exec("main", c.sql)
			s := e.Service("", e.WithQueue)
			for _, dry := range []bool{false, true} {
				_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens, DryRun: dry})
				if unconfigured, ok := errors.AsType[*service.NotConfiguredError](err); !ok || !strings.Contains(unconfigured.Missing, c.named) {
					t.Errorf("%v, want that %s is missing", err, c.named)
				}
			}
			st, err := s.Status(context.Background(), servicetest.InactiveTokens)
			if err != nil || st[0].Condition != service.ConditionNotConfigured || !strings.Contains(st[0].ConditionDetail, c.named) {
				t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
			}
		})
	}
}

func TestInactiveTokenDeletion_WithoutAQueueIsNotConfigured(t *testing.T) {
	e := servicetest.NewTokens(parallel(t))
	_, err := e.Service("").RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens})
	if _, ok := errors.AsType[*service.NotConfiguredError](err); !ok {
		t.Errorf("%v, want that it is not configured", err)
	}
}

// What a continuation lacks is with the job, for clients.
func TestInactiveTokenDeletion_ContinuationSaysWhatIsMissing(t *testing.T) {
	e := servicetest.NewTokens(parallel(t))
	s := e.Service("", e.WithQueue)
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), now())`)
	pass := e.Value("main", `SELECT id FROM maintenance.token_passes`)
	e.Exec("main", `DROP TABLE personal_access_tokens`)
	_, err := s.WorkJob(context.Background(), e.Running(repo.ContinueInactiveTokenDeletion{PassID: pass}))
	if public := service.PublicJobError(err); public == nil || !strings.Contains(public.Error(), "personal_access_tokens") {
		t.Errorf("%v for clients, of %v, want that personal_access_tokens is missing", public, err)
	}
}

func TestInactiveTokenDeletion_RangeThatMeetsALockIsTriedAgain(t *testing.T) {
	e := newBots(parallel(t), 1, 2, 3, 4, 5)
	e.Insert(repo.Job{Args: repo.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: repo.TokenDeletionReason}})
	release := e.Other(`UPDATE maintenance.river_job SET priority = 2`)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log), servicetest.With(func(c *inactivetoken.Config) { c.BatchSize = 4 }))
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.InactiveTokens, Async: true}))(t)
	devdb.Eventually(t, "a range to be tried again", func() bool { return strings.Contains(log.String(), "range failed, retrying with a smaller one") })
	release()
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "examined_users=5 scheduled_jobs=4")
	e.Want("main", passes, "5/5/4 finished")
	e.Want("main", servicetest.QueuedUsers, "1 2 3 4 5")
}

func TestInactiveTokenDeletion_ChangesOfTheSchemaAreLoggedOnce(t *testing.T) {
	e := newBots(parallel(t), 1)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	servicetest.RunTokens(t, s)
	e.Exec("main", `DROP TABLE organization_users`)
	servicetest.RunTokens(t, s)
	servicetest.RunTokens(t, s)
	e.Work(s, "delete_user")
	if n := strings.Count(log.String(), "the schema has changed"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, log)
	}
}
