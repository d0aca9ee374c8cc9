package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
)

// queueOf limits how many users may wait for their deletion, and how many bots a range has.
func queueOf(most, batch int) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[inactivetoken.Config](c)
		w.MaxQueued, w.BatchSize = most, batch
	}
}

const fullQueue = "QUEUE_FULL: 3 users wait for their deletion or more, workers.inactive_token_deletion.max_queued = 3"

func TestInactiveTokenDeletion_SchedulesNoMoreThanTheQueueTakes(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"range by range": 2, "at once": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.bots(1, 2, 3, 4, 5, 6, 7)
			e.alive(2)
			s := e.service("", e.withQueue, queueOf(3, batch))
			r := runTokens(t, s)
			wantEarly(t, r, fullQueue)
			wantCounts(t, r, "examined_users=4 scheduled_jobs=3")
			e.want("main", queuedUsers, "1 3 4")
			e.want("main", passes, "4/4/3")
			e.want("main", continuations, "scheduled")
			if st := tokenStatus(t, s); st.Condition != service.ConditionThrottled || !strings.Contains(st.ConditionDetail, fullQueue) {
				t.Errorf("%s: %s", st.Condition, st.ConditionDetail)
			}

			// Full as it is, the next run schedules nothing, whether users wait as jobs or for the ghost migration.
			wantCounts(t, runTokens(t, s), "")
			if n := e.work(s, "delete_user"); n != 3 {
				t.Errorf("%d jobs worked", n)
			}
			e.want("main", `SELECT count(*) FROM ghost_user_migrations`, "3")
			r = runTokens(t, s)
			wantEarly(t, r, fullQueue)
			wantCounts(t, r, "")
			e.want("main", passes, "4/4/3")
			e.want("main", continuations, "scheduled")

			e.exec("main", `DELETE FROM ghost_user_migrations WHERE user_id = 1`)
			r = runTokens(t, s)
			wantEarly(t, r, fullQueue)
			wantCounts(t, r, "examined_users=1 scheduled_jobs=1")
			e.exec("main", `DELETE FROM ghost_user_migrations`)
			r = runTokens(t, s)
			wantCounts(t, r, "examined_users=2 scheduled_jobs=2")
			if r.OverLimit || r.Reason != "" {
				t.Errorf("over_limit %t, reason %q", r.OverLimit, r.Reason)
			}
			e.want("main", passes, "7/7/6 finished")
		})
	}
}

func tokenStatus(t *testing.T, s *service.Service) service.WorkerStatus {
	t.Helper()
	all, err := s.Status(context.Background(), tokenWorker)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func TestInactiveTokenDeletion_RangesWithoutInactiveBotsPassAFullQueue(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4)
	for _, bot := range []int{1, 2, 3, 4} {
		e.alive(bot)
	}
	e.insert(repo.Job{Args: repo.DeleteUser{UserID: 4711, Reason: "because"}})
	r := runTokens(t, e.service("", e.withQueue, queueOf(1, 2)))
	wantCounts(t, r, "examined_users=4")
	e.want("main", passes, "4/4/0 finished")
}

func TestInactiveTokenDeletion_ContinuationWaitsForRoom(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5)
	s := e.service("", e.withQueue, queueOf(3, 2))
	wantEarly(t, runTokens(t, s), fullQueue)
	e.work(s, "continue_inactive_token_deletion")
	e.want("main", `SELECT concat_ws(' ', state, attempt, metadata ->> 'snoozes') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`, "scheduled 0 1")
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.exec("main", `DELETE FROM maintenance.river_job WHERE kind = 'delete_user'`)
	e.work(s, "continue_inactive_token_deletion")
	e.eventually("main", passes, "5/5/5 finished")
	e.want("main", queuedUsers, "4 5")
}

func TestInactiveTokenDeletion_DryRunKnowsTheQueueTakesNoMore(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5)
	s := e.service("", e.withQueue, queueOf(3, 2))
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	wantEarly(t, r, fullQueue)
	wantCounts(t, r, "examined_users=3 scheduled_jobs=3")
	e.want("main", queuedUsers, "")
	e.want("main", continuations, "")
}

func TestResumeRuns_GoesOnWithWhatTheLoadHasEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason string
		limits service.LoadConfig
		want   string
	}{
		"over by now":        {"THROTTLED: replica", service.LoadConfig{MaxLockWait: time.Minute}, "2"},
		"nothing is limited": {"THROTTLED: replica", service.LoadConfig{}, "1"},
		"ended by its time":  {"limit reached: max_runtime", service.LoadConfig{MaxLockWait: time.Minute}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := placeholderEstate(t)
			s := e.service("", e.withQueue, func(cfg *service.Config) {
				cfg.Load = c.limits
				service.Settings[placeholderuser.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			wantState(t, runPlaceholders(t, s, false), repo.RunSucceeded)
			e.exec("main", `UPDATE maintenance.runs SET reason = $1, over_limit = true`, c.reason)
			if err := s.ResumeRuns(context.Background()); err != nil {
				t.Fatal(err)
			}
			e.eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'succeeded'`, c.want)
		})
	}
}

func TestResumeRuns_OpensThePassThatTheLoadHasKeptFromBeginning(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"42": "2/2/2 finished", "null": ""} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.bots(1, 2)
			e.exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, tokenSettings(setting))
			e.exec("main", `INSERT INTO maintenance.runs (id, worker, trigger, state, reason, over_limit, lease_epoch, heartbeat_ttl, finished_at)
				VALUES ('00000000-0000-7000-8000-000000000000', 'inactive_token_deletion', 'schedule', 'succeeded', 'THROTTLED: replica', true, 1, '40s', now())`)
			s := e.service("", e.withQueue, func(cfg *service.Config) {
				cfg.Load = service.LoadConfig{MaxLockWait: time.Minute}
				service.Settings[inactivetoken.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			for range 3 {
				resumeRuns(t, s)
				e.eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
			}
			e.want("main", passes, want)
			e.want("main", `SELECT count(*) FROM maintenance.runs`, "2")
		})
	}
}
