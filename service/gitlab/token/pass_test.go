package token_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// everyMinute is the schedule of fires that a test lets happen.
func everyMinute(c *service.Config) {
	service.Settings[token.Config](c).Schedule = servicetest.EveryMinute
}

// newestRun is the newest run: trigger, state, reason and examined users.
const newestRun = `SELECT concat_ws(' ', trigger, state, nullif(reason, ''), counts -> 'examined_users') FROM maintenance.runs ORDER BY id DESC LIMIT 1`

func TestInactiveTokenDeletion_Pass(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		runOverItsTimeQueuesItsContinuation, noNeedlessContinuation,
		withTimeEnoughGoesThroughInRangesOfAThousand, botsBelowTheCursorAreForTheNextPass,
		backlogIsWhatTheUnfinishedPassHasLeft, aRunHeldToAPlanQueuesNobodyElse,
		anUnfinishedPassQueuesWhatWasPlannedAlone, rangesWithoutInactiveBotsPassAFullQueue,
	)
}

func TestInactiveTokenDeletion_Continuation(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		continuationGoesOnUntilThePassIsFinished,
		tickThatComesFirstGoesOnAndTheContinuationEndsQuietly, continuationWaitsForPauseLeaseAndSwitch,
		runForAContinuationOpensNoPass, settingSwitchedOffEndsAContinuedPass, continuationWaitsForRoom,
	)
}

func runOverItsTimeQueuesItsContinuation(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	r := wantTokens(t, s, "examined_users=1 scheduled_jobs=1")
	assert.That(t, r.OverLimit, "over_limit is not set")
	e.Want("main", continuations, "scheduled")
	e.Want("main", `SELECT concat_ws(' ', args ->> 'pass_id' = p.id::text, metadata ->> 'run_id' = r.id::text, j.max_attempts, r.finished_at - j.scheduled_at < interval '-110 s',
			j.scheduled_at - r.started_at >= interval '120 s', r.reason)
		FROM maintenance.river_job j, maintenance.token_passes p, maintenance.runs r WHERE kind = 'continue_inactive_token_deletion'`,
		"t t 25 t t limit reached: max_runtime")
	e.Want("main", servicetest.QueuedUsers, "1")
	e.Want("main", passes, "1/1/1")

	wantTokens(t, s, "examined_users=1 scheduled_jobs=1")
	e.Want("main", servicetest.QueuedUsers, "1 2")
	e.Want("main", continuations, "scheduled")
	r = wantTokens(t, s, "examined_users=1 scheduled_jobs=1")
	assert.That(t, !r.OverLimit, "over_limit is set after the last bot")
	e.Want("main", passes, "3/3/3 finished")
	e.Want("main", continuations, "scheduled")
}

func noNeedlessContinuation(e *servicetest.Estate) {
	t := e.T
	e.Bots(1)
	// The higher ids are no bots.
	e.User(2, 0, 1)
	r := wantTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun), "examined_users=1 scheduled_jobs=1")
	assert.That(t, !r.OverLimit, "over_limit is set")
	e.Want("main", continuations, "")
	e.Want("main", passes, "1/1/1 finished")
}

func withTimeEnoughGoesThroughInRangesOfAThousand(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, user_type, organization_id) SELECT 3 * i, 'b' || i, 'b' || i, 0, 6, 1 FROM generate_series(1000, 3499) i`)
	e.Exec("main", `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) SELECT 3 * i, 't', 1, now(), now() FROM generate_series(2600, 3499) i`)
	log := &servicetest.Buffer{}
	r := wantTokens(t, e.Service("", e.WithQueue, servicetest.LogTo(log)), "examined_users=2500 scheduled_jobs=1600")
	assert.That(t, !r.OverLimit, "over_limit is set")
	e.Want("main", continuations, "")
	e.Want("main", passes, "10497/2500/1600 finished")
	var ranges []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, `"range of bots checked"`) {
			ranges = append(ranges, line[strings.Index(line, `"cursor"`):strings.Index(line, `}`)])
		}
	}
	want := []string{`"cursor":5997,"examined":1000,"scheduled":1000`, `"cursor":8997,"examined":1000,"scheduled":600`, `"cursor":10497,"examined":500,"scheduled":0`}
	assert.That(t, strings.Join(ranges, "|") == strings.Join(want, "|"), "ranges %q, want %q", ranges, want)
}

func continuationGoesOnUntilThePassIsFinished(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	for _, want := range []string{"completed scheduled", "completed completed"} {
		n := e.Work(s, "continue_inactive_token_deletion")
		assert.Require(t, n == 1, "%d continuations worked, want 1", n)
		e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
		e.Want("main", newestRun, "schedule succeeded continuation 1")
		e.Want("main", continuations, want)
	}
	e.Want("main", passes, "3/3/3 finished")
	e.Want("main", servicetest.QueuedUsers, "1 2 3")
	e.Want("main", `SELECT string_agg(metadata ->> 'outcome', ' ') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`, "succeeded succeeded")
}

func tickThatComesFirstGoesOnAndTheContinuationEndsQuietly(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log), everyMinute)
	r := e.Fire(s, servicetest.InactiveTokens)
	servicetest.WantCounts(t, r, "examined_users=2 scheduled_jobs=2")
	assert.That(t, r.Reason == "" && r.Trigger == control.TriggerSchedule, "%+v", r)
	e.Want("main", passes, "3/3/3 finished")
	e.Work(s, "continue_inactive_token_deletion")
	e.Want("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome', metadata ->> 'reason', attempt) FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`,
		"completed skipped TARGET_GONE 1")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
	assert.That(t, !strings.Contains(log.String(), "job finished"), "not quiet: %s", log)
	// A pass that was dropped, or never was.
	e.Insert(jobqueue.Job{Args: jobqueue.ContinueInactiveTokenDeletion{PassID: "no pass"}})
	e.Work(s, "continue_inactive_token_deletion")
	e.Want("main", continuations, "completed completed")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
}

func continuationWaitsForPauseLeaseAndSwitch(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.OneBotARun, func(c *service.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	servicetest.RunTokens(t, s)
	const waiting = `SELECT concat_ws(' ', state, attempt, metadata ->> 'snoozes', scheduled_at BETWEEN attempted_at + interval '5 s' AND now() + interval '10 s')
		FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`
	assert.Must(s.PauseWorker(context.Background(), servicetest.InactiveTokens, "test", "me", 0))(t)
	e.Work(s, "continue_inactive_token_deletion")
	e.Want("main", waiting, "scheduled 0 1 t")
	assert.Must(s.ResumeWorker(context.Background(), servicetest.InactiveTokens, ""))(t)
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'another', expires_at = now() + interval '1 hour'`)
	e.Work(s, "continue_inactive_token_deletion")
	e.Want("main", waiting, "scheduled 0 2 t")
	assert.That(t, strings.Contains(log.String(), `"outcome":"snoozed","reason":"LEASE_HELD"`), "%v", log)
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Work(e.Service("", e.WithQueue, servicetest.With(func(c *token.Config) { c.Enabled = new(false) })),
		"continue_inactive_token_deletion")
	e.Want("main", waiting, "scheduled 0 3 t")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Work(s, "continue_inactive_token_deletion")
	e.Eventually("main", passes, "2/2/2 finished")
	e.Eventually("main", newestRun, "schedule succeeded continuation 1")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
}

func runForAContinuationOpensNoPass(e *servicetest.Estate) {
	e.Bots(1)
	// The pass is finished after the job has looked, by a trigger at the run's lease.
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), current_date)`)
	e.Exec("main", `CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE maintenance.token_passes SET finished_at = now(); RETURN NULL; END $$;
		CREATE TRIGGER finish AFTER INSERT ON maintenance.leases EXECUTE FUNCTION finish()`)
	e.Insert(jobqueue.Job{Args: jobqueue.ContinueInactiveTokenDeletion{PassID: e.Value("main", `SELECT id FROM maintenance.token_passes`)}})
	e.Work(e.Service("", e.WithQueue), "continue_inactive_token_deletion")
	e.Eventually("main", newestRun, "schedule skipped TARGET_GONE 0")
	e.Want("main", passes, "0/0/0 finished")
	e.Want("main", servicetest.QueuedUsers, "")
}

func settingSwitchedOffEndsAContinuedPass(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("null"))
	e.Work(s, "continue_inactive_token_deletion")
	e.Eventually("main", newestRun, "schedule skipped SETTING_OFF 0")
	e.Want("main", passes, "")
	e.Want("main", continuations, "completed")
}

func botsBelowTheCursorAreForTheNextPass(e *servicetest.Estate) {
	t := e.T
	e.Bots(10, 20)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	e.Bots(5)
	e.Exec("main", `DELETE FROM users WHERE id = 20`)
	wantTokens(t, s, "")
	e.Want("main", passes, "10/1/1 finished")
	wantTokens(t, e.Service("", e.WithQueue), "examined_users=2 scheduled_jobs=1")
	e.Want("main", servicetest.QueuedUsers, "5 10")
}

func backlogIsWhatTheUnfinishedPassHasLeft(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	backlog := func() status.Backlog {
		st := assert.Must(s.Status(context.Background(), servicetest.InactiveTokens))(t)
		b := st[0].Backlog
		b.ReadAt = time.Time{}
		return b
	}
	assert.Equal(t, backlog(), (status.Backlog{}), "before")
	r := servicetest.RunTokens(t, s)
	if b := backlog(); !b.OldestAt.Equal(r.StartedAt) || b.Pending != 2 || b.Deferred != 2 || b.Due != 0 || b.Dead != 0 {
		t.Errorf("while the continuation waits: %+v", b)
	}
	e.Exec("main", `DELETE FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now()`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 5, Reason: "Group was deleted"}})
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now()`)
	s = e.Service("", e.WithQueue)
	if b := backlog(); !b.OldestAt.Equal(r.StartedAt) || b.Pending != 2 || b.Deferred != 0 || b.Due != 2 || b.Dead != 1 {
		t.Errorf("without a continuation: %+v", b)
	}
	servicetest.RunTokens(t, s)
	assert.Equal(t, backlog(), (status.Backlog{Dead: 1}), "after")
}

func aRunHeldToAPlanQueuesNobodyElse(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 4)
	e.Alive(4)
	gateJobs(e, "1")
	s := e.Service("", e.WithQueue, servicetest.With(func(c *token.Config) { c.BatchSize = 1 }))
	r := servicetest.RunPlanned(e, s, servicetest.InactiveTokens, func() {
		e.Bots(9)
		e.Exec("main", `DELETE FROM personal_access_tokens WHERE user_id = 4`)
	})
	servicetest.WantCounts(t, r, "examined_users=4 scheduled_jobs=2")
	e.Want("main", servicetest.QueuedUsers, "1 2")
	servicetest.RunTokens(t, s)
	e.Want("main", servicetest.QueuedUsers, "1 2 4 9")
}

func anUnfinishedPassQueuesWhatWasPlannedAlone(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3)
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	s := e.Service("", e.WithQueue)
	dry := dryTokens(t, s)
	servicetest.WantCandidates(t, dry, "user 2 u2 queue", "user 3 u3 queue")
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, ExpectedDigest: dry.CandidatesDigest}))(t)
	servicetest.WantCounts(t, r, "examined_users=2 scheduled_jobs=2")
	e.Want("main", servicetest.QueuedUsers, "1 2 3")
}

// queueOf limits how many users may wait for their deletion, and how many bots a range has.
func queueOf(most, batch int) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[token.Config](c)
		w.MaxQueued, w.BatchSize = most, batch
	}
}

const fullQueue = "QUEUE_FULL: at least 3 users are queued for deletion " +
	"(workers.inactive_token_deletion.max_queued = 3)"

func TestInactiveTokenDeletion_SchedulesNoMoreThanTheQueueTakes(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	for name, batch := range map[string]int{"range by range": 2, "at once": 100} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Bots(1, 2, 3, 4, 5, 6, 7)
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
			st := servicetest.StatusOf(t, s, servicetest.InactiveTokens)
			assert.That(t, st.Condition == status.ConditionThrottled &&
				strings.Contains(st.ConditionDetail, fullQueue), "%s: %s", st.Condition, st.ConditionDetail)

			// Full as it is, the next run schedules nothing, whether users wait as jobs or for the ghost migration.
			wantTokens(t, s, "")
			assert.Equal(t, e.Work(s, "delete_user"), 3, "jobs worked")
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

func rangesWithoutInactiveBotsPassAFullQueue(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3, 4)
	for _, bot := range []int{1, 2, 3, 4} {
		e.Alive(bot)
	}
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 4711, Reason: "because"}})
	wantTokens(t, e.Service("", e.WithQueue, queueOf(1, 2)), "examined_users=4")
	e.Want("main", passes, "4/4/0 finished")
}

func continuationWaitsForRoom(e *servicetest.Estate) {
	t := e.T
	e.Bots(1, 2, 3, 4, 5)
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
		limits load.Config
		want   string
	}{
		"over by now":        {"THROTTLED: replica", load.Config{MaxLockWait: time.Minute}, "2"},
		"nothing is limited": {"THROTTLED: replica", load.Config{}, "1"},
		"ended by its time":  {"limit reached: max_runtime", load.Config{MaxLockWait: time.Minute}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := servicetest.NewPlaceholders(servicetest.Parallel(t))
			s := e.Service("", e.WithQueue, func(cfg *service.Config) {
				cfg.Load = c.limits
				service.Settings[placeholder.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			servicetest.WantState(t, servicetest.RunPlaceholders(t, s, false), control.RunSucceeded)
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
				cfg.Load = load.Config{MaxLockWait: time.Minute}
				service.Settings[token.Config](cfg).Schedule = time.Now().Add(-time.Hour).UTC().Format("4 15 * * *") // not soon
			})
			for range 3 {
				resumeRuns(t, s)
				e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state <> 'running'`, "2")
			}
			e.Want("main", passes, want)
			e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
		})
	}
}
