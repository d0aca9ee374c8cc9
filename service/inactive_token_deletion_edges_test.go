package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
)

func dryTokens(t *testing.T, s *service.Service) service.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, r, repo.RunSucceeded)
	return r
}

func TestInactiveTokenDeletion_DryRunWalksFromTheBeginningBesideAPass(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3)
	runTokens(t, e.service("", e.withQueue, oneBotARun))
	e.exec("main", `DELETE FROM maintenance.river_job`)
	// Somebody else's lease does not stop it.
	e.exec("main", `UPDATE maintenance.leases SET holder = 'another', expires_at = now() + interval '1 hour'`)
	before := e.value("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`)
	wantCounts(t, dryTokens(t, e.service("", e.withQueue)), "examined_users=3 scheduled_jobs=3")
	r := dryTokens(t, e.service("", e.withQueue, oneBotARun))
	wantCounts(t, r, "examined_users=1 scheduled_jobs=1")
	if !r.OverLimit {
		t.Error("over_limit is not set")
	}
	e.want("main", `SELECT concat_ws(' ', p.ctid, p.xmin, p) FROM maintenance.token_passes p`, before)
	e.want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
}

func TestInactiveTokenDeletion_DryRunCountsAsARunNow(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5, 6, 7, 8)
	for _, bot := range []int{2, 5} {
		e.alive(bot)
	}
	e.exec("main", `INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`)
	e.insert(repo.Job{Args: repo.DeleteUser{UserID: 1, SkipAuthorization: true, Reason: repo.TokenDeletionReason}},
		repo.Job{Args: repo.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: "Group was deleted"}},
		repo.Job{Args: repo.DeleteUser{UserID: 4, SkipAuthorization: true, Reason: repo.TokenDeletionReason}})
	e.exec("main", `UPDATE maintenance.river_job SET state = 'completed', finalized_at = now() WHERE args @> '{"user_id": 4}'`)
	s := e.service("", e.withQueue, with(func(c *inactivetoken.Config) { c.BatchSize = 3 }))
	const counts = "examined_users=8 scheduled_jobs=4"
	wantCounts(t, dryTokens(t, s), counts)
	wantCounts(t, runTokens(t, s), counts)
}

// stateIsANumber makes users.state what nobody can be blocked in.
const stateIsANumber = `ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE integer USING 0`

// stateIsAnEnum makes it an enum of some states.
func stateIsAnEnum(states ...string) string {
	return `CREATE TYPE mood AS ENUM ('` + strings.Join(states, "', '") + `');
		ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE mood USING '` + states[0] + `'`
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
		"a state that is a number": {stateIsANumber, "users.state of database main has the type integer, which has no 'blocked'"},
		"a state that has no such": {stateIsAnEnum("active"), "users.state of database main has the type mood, which has no 'blocked'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.exec("main", c.sql)
			s := e.service("", e.withQueue)
			for _, dry := range []bool{false, true} {
				_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: dry})
				if unconfigured, is := errors.AsType[*service.NotConfiguredError](err); !is || !strings.Contains(unconfigured.Missing, c.named) {
					t.Errorf("%v, want that %s is missing", err, c.named)
				}
			}
			r := tokenFire(t, s, 1)
			if r.State != repo.RunSkipped || !strings.Contains(r.Reason, "WORKER_NOT_CONFIGURED") {
				t.Errorf("tick: %+v", r)
			}
			st, err := s.Status(context.Background(), tokenWorker)
			if err != nil || st[0].Condition != service.ConditionNotConfigured || !strings.Contains(st[0].ConditionDetail, c.named) {
				t.Errorf("%v %q, %v", st[0].Condition, st[0].ConditionDetail, err)
			}
		})
	}
}

func TestInactiveTokenDeletion_WithoutAQueueIsNotConfigured(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	_, err := e.service("").RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker})
	if _, is := errors.AsType[*service.NotConfiguredError](err); !is {
		t.Errorf("%v, want that it is not configured", err)
	}
}

func TestInactiveTokenDeletion_RangeThatMeetsALockIsTriedAgain(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5)
	e.insert(repo.Job{Args: repo.DeleteUser{UserID: 3, SkipAuthorization: true, Reason: repo.TokenDeletionReason}})
	release := e.other(`UPDATE maintenance.river_job SET priority = 2`)
	log := &lockedBuffer{}
	s := e.service("", e.withQueue, logTo(log), with(func(c *inactivetoken.Config) { c.BatchSize = 4 }))
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a range to be tried again", func() bool { return strings.Contains(log.String(), "range tried again in smaller parts") })
	release()
	r = ended(t, s, r.ID)
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "examined_users=5 scheduled_jobs=4")
	e.want("main", passes, "5/5/4 finished")
	e.want("main", queuedUsers, "1 2 3 4 5")
}

func TestInactiveTokenDeletion_ChangesOfTheSchemaAreLoggedOnce(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1)
	log := &lockedBuffer{}
	s := e.service("", e.withQueue, logTo(log))
	runTokens(t, s)
	e.exec("main", `DROP TABLE organization_users`)
	runTokens(t, s)
	runTokens(t, s)
	e.work(s, "delete_user")
	if n := strings.Count(log.String(), "the schema has changed"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, log)
	}
}
