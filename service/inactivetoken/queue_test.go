package inactivetoken_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
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
			e := newBots(servicetest.Parallel(t), 1, 2, 3, 4, 5, 6, 7)
			e.Alive(2)
			s := e.Service("", e.WithQueue, queueOf(3, batch))
			dry := dryTokens(t, s)
			servicetest.WantEarly(t, dry, fullQueue)
			servicetest.WantCounts(t, dry, "examined_users=4 scheduled_jobs=3")
			e.Want("main", servicetest.QueuedUsers, "")
			e.Want("main", continuations, "")
			r := servicetest.RunTokens(t, s)
			servicetest.WantEarly(t, r, fullQueue)
			servicetest.WantCounts(t, r, "examined_users=4 scheduled_jobs=3")
			e.Want("main", servicetest.QueuedUsers, "1 3 4")
			e.Want("main", passes, "4/4/3")
			e.Want("main", continuations, "scheduled")
			if st := servicetest.StatusOf(t, s, servicetest.InactiveTokens); st.Condition != service.ConditionThrottled ||
				!strings.Contains(st.ConditionDetail, fullQueue) {
				t.Errorf("%s: %s", st.Condition, st.ConditionDetail)
			}

			// Full as it is, the next run schedules nothing, whether users wait as jobs or for the ghost migration.
			wantTokens(t, s, "")
			n := e.Work(s, "delete_user")
			assert.That(t, n == 3, "%d jobs worked", n)
			e.Want("main", `SELECT count(*) FROM ghost_user_migrations`, "3")
			r = servicetest.RunTokens(t, s)
			servicetest.WantEarly(t, r, fullQueue)
			servicetest.WantCounts(t, r, "")
			e.Want("main", passes, "4/4/3")
			e.Want("main", continuations, "scheduled")

			e.Exec("main", `DELETE FROM ghost_user_migrations WHERE user_id = 1`)
			r = servicetest.RunTokens(t, s)
			servicetest.WantEarly(t, r, fullQueue)
			servicetest.WantCounts(t, r, "examined_users=1 scheduled_jobs=1")
			e.Exec("main", `DELETE FROM ghost_user_migrations`)
			r = wantTokens(t, s, "examined_users=2 scheduled_jobs=2")
			assert.That(t, !r.OverLimit && r.Reason == "", "over_limit %t, reason %q", r.OverLimit, r.Reason)
			e.Want("main", passes, "7/7/6 finished")
		})
	}
}

func TestInactiveTokenDeletion_RangesWithoutInactiveBotsPassAFullQueue(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4)
	for _, bot := range []int{1, 2, 3, 4} {
		e.Alive(bot)
	}
	e.Insert(repo.Job{Args: repo.DeleteUser{UserID: 4711, Reason: "because"}})
	wantTokens(t, e.Service("", e.WithQueue, queueOf(1, 2)), "examined_users=4")
	e.Want("main", passes, "4/4/0 finished")
}

func TestInactiveTokenDeletion_ContinuationWaitsForRoom(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4, 5)
	s := e.Service("", e.WithQueue, queueOf(3, 2))
	servicetest.WantEarly(t, servicetest.RunTokens(t, s), fullQueue)
	e.Work(s, "continue_inactive_token_deletion")
	e.Want("main", `SELECT concat_ws(' ', state, attempt, metadata ->> 'snoozes') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`, "scheduled 0 1")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Exec("main", `DELETE FROM maintenance.river_job WHERE kind = 'delete_user'`)
	e.Work(s, "continue_inactive_token_deletion")
	e.Eventually("main", passes, "5/5/5 finished")
	e.Want("main", servicetest.QueuedUsers, "4 5")
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
			e := servicetest.NewPlaceholders(servicetest.Parallel(t))
			s := e.Service("", e.WithQueue, func(cfg *service.Config) {
				cfg.Load = c.limits
				service.Settings[placeholderuser.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			servicetest.WantState(t, servicetest.RunPlaceholders(t, s, false), repo.RunSucceeded)
			e.Exec("main", `UPDATE maintenance.runs SET reason = $1, over_limit = true`, c.reason)
			assert.NoError(t, s.ResumeRuns(context.Background()))
			e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'succeeded'`, c.want)
		})
	}
}

func TestResumeRuns_OpensThePassThatTheLoadHasKeptFromBeginning(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"42": "2/2/2 finished", "null": ""} {
		t.Run(setting, func(t *testing.T) {
			e := newBots(servicetest.Parallel(t), 1, 2)
			e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings(setting))
			e.Exec("main", `INSERT INTO maintenance.runs (id, worker, trigger, state, reason, over_limit, lease_epoch, heartbeat_ttl, finished_at)
				VALUES ('00000000-0000-7000-8000-000000000000', 'inactive_token_deletion', 'schedule', 'succeeded', 'THROTTLED: replica', true, 1, '40s', now())`)
			s := e.Service("", e.WithQueue, func(cfg *service.Config) {
				cfg.Load = service.LoadConfig{MaxLockWait: time.Minute}
				service.Settings[inactivetoken.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			for range 3 {
				resumeRuns(t, s)
				e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
			}
			e.Want("main", passes, want)
			e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
		})
	}
}
