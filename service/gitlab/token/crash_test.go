package token_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func runsTokens(o *servicetest.Order) {
	o.Definitions, o.Database, o.Worker, o.BatchSize = "", "", servicetest.InactiveTokens, 2
}

// gateJobs puts an open gate before the job of a user.
func gateJobs(e *servicetest.Estate, user string) {
	e.T.Helper()
	e.Gate("main", "application_settings")
	e.Exec("main", `CREATE TRIGGER gate BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'user_id' = '`+user+`') EXECUTE FUNCTION wait_at_gate()`)
}

func resumeRuns(t *testing.T, s *service.Service) {
	t.Helper()
	assert.NoError(t, s.ResumeRuns(context.Background()))
}

func TestFault_InactiveTokenDeletion_KilledInASecondRangeGoesOnWithItWhenTheLeaseHasExpired(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4, 5, 6)
	gateJobs(e, "3")
	e.Shut("main", "doomed")
	p := e.Start("doomed", "", runsTokens)
	e.AtGate("main", "doomed")
	e.Want("main", passes, "2/2/2")
	rules := e.Value("main", `SELECT concat_ws(' ', id, started_at, cut_off, today) FROM maintenance.token_passes`)
	p.Kill()
	e.DoomedGone()
	e.Want("main", passes, "2/2/2")
	e.Want("main", servicetest.QueuedUsers, "1 2")

	s := e.Service("", e.WithQueue)
	resumeRuns(t, s)
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	resumeRuns(t, s)
	e.Eventually("main", passes, "6/6/6 finished")
	e.Eventually("main", newestRun, "schedule succeeded continuation 4")
	e.Want("main", servicetest.QueuedUsers, "1 2 3 4 5 6")
	e.Want("main", `SELECT concat_ws(' ', id, started_at, cut_off, today) FROM maintenance.token_passes`, rules)
	resumeRuns(t, s)
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "2")
}

func TestInactiveTokenDeletion_LeaseThatRunsOutInTheTransactionTakesItsJobsBack(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4, 5)
	e.Exec("main", `CREATE FUNCTION run_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE maintenance.leases SET expires_at = clock_timestamp(); RETURN NEW; END $$;
		CREATE TRIGGER run_out BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'user_id' = '4') EXECUTE FUNCTION run_out()`)
	r := servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.With(func(c *token.Config) { c.BatchSize = 2 })))
	servicetest.WantLost(t, r)
	servicetest.WantCounts(t, r, "examined_users=2 scheduled_jobs=2")
	e.Want("main", passes, "2/2/2")
	e.Want("main", servicetest.QueuedUsers, "1 2")
}

func TestInactiveTokenDeletion_ShutdownIsGoneOnWithLikeACrash(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3)
	gateJobs(e, "1")
	e.Shut("main", servicetest.App)
	c := service.Config{Databases: e.Open, Queue: e.Queue(), Logger: slog.New(slog.DiscardHandler)}
	service.Settings[token.Config](&c).BatchSize = 2
	config.Defaults(&c)
	stopped := assert.Must(service.New(c))(t)
	if _, err := stopped.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, Async: true}); err != nil {
		t.Fatal(err)
	}
	e.AtGate("main", servicetest.App)
	done := make(chan error)
	go func() { done <- stopped.Shutdown(context.Background()) }()
	devdb.Eventually(t, "the service to stop", func() bool {
		_, err := stopped.RunBatch(context.Background(), run.Request{Worker: servicetest.InactiveTokens, DryRun: true})
		return err != nil
	})
	e.Lift("main", servicetest.App)
	assert.NoError(t, <-done)
	e.Want("main", `SELECT state || ' ' || reason FROM maintenance.runs WHERE NOT dry_run`, "cancelled SHUTDOWN")
	e.Want("main", passes, "2/2/2")
	resumeRuns(t, e.Service("", e.WithQueue))
	e.Eventually("main", passes, "3/3/3 finished")
}

func TestInactiveTokenDeletion_OnlyRunsThatDiedAreGoneOnWith(t *testing.T) {
	t.Parallel()
	const died = `UPDATE maintenance.runs SET state = 'running', finished_at = NULL, heartbeat_at = now() - interval '1 hour'`
	const lost = `UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST'`
	e := newBots(t, 1, 2)
	off := servicetest.With(func(c *token.Config) { c.Enabled = new(false) })
	for _, c := range []struct {
		name, sql string
		resumed   bool
		settings  []func(*service.Config)
	}{
		{"died", died, true, nil},
		{"died before its first beat", died + `, lease_epoch = 0`, true, nil},
		{"taken for dead so early", lost + `, lease_epoch = 0`, true, nil},
		{"taken for dead", lost, true, nil},
		{"taken for dead, switched off here", lost, false, []func(*service.Config){off}},
		{"stopped with its server", `UPDATE maintenance.runs SET state = 'cancelled', reason = 'SHUTDOWN'`, true, nil},
		{"cancelled", `UPDATE maintenance.runs SET state = 'cancelled', reason = 'CANCELLED'`, false, nil},
		{"paused", `UPDATE maintenance.runs SET state = 'cancelled', reason = 'PAUSED'`, false, nil},
		{"failed", `UPDATE maintenance.runs SET state = 'failed', error = 'something else'`, false, nil},
		{"over its time", `SELECT 1`, false, nil},
		{"died, lease not yet expired", died + `; UPDATE maintenance.leases SET expires_at = now() + interval '1 minute'`, false, nil},
		{"died, pass finished", died + `; UPDATE maintenance.token_passes SET finished_at = now()`, false, nil},
		{"died, then a skipped tick", died + `; INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl) VALUES
			('ffffffff-0000-7000-8000-000000000000', 'inactive_token_deletion', 'schedule', 'skipped', '0')`, true, nil},
		{"died, then a dry run", died + `; INSERT INTO maintenance.runs (id, worker, trigger, state, dry_run, lease_epoch, heartbeat_ttl) VALUES
			('ffffffff-0000-7000-8000-000000000000', 'inactive_token_deletion', 'request', 'succeeded', true, 0, '0')`, true, nil},
		{"died, now paused", died + `; INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('inactive_token_deletion', 'test',
			'me')`, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.Exec("main", `DELETE FROM maintenance.runs; DELETE FROM maintenance.token_passes; DELETE FROM maintenance.river_job;
				DELETE FROM maintenance.leases`)
			servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
			e.Exec("main", c.sql)
			runs := e.Value("main", `SELECT count(*) FROM maintenance.runs`)
			resumeRuns(t, e.Service("", append(c.settings, e.WithQueue)...))
			if c.resumed {
				e.Eventually("main", passes, "2/2/2 finished")
				e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE reason = 'continuation' AND state = 'succeeded'`, "1")
				return
			}
			e.Want("main", `SELECT count(*) FROM maintenance.runs`, runs)
		})
	}
}

func TestInactiveTokenDeletion_TwoReplicasGoOnOnce(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2, 3, 4)
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.OneBotARun))
	e.Exec("main", `UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST'`)
	replicas := []*service.Service{e.Service("", e.WithQueue), e.Service("", e.WithQueue), e.Service("", e.WithQueue)}
	errs := make(chan error)
	for _, s := range replicas {
		go func() { errs <- s.ResumeRuns(context.Background()) }()
	}
	for range replicas {
		assert.NoError(t, <-errs)
	}
	e.Eventually("main", passes, "4/4/4 finished")
	e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	e.Want("main", `SELECT sum((counts ->> 'examined_users')::int) FROM maintenance.runs`, "4")
	e.Want("main", servicetest.QueuedUsers, "1 2 3 4")
}

func TestInactiveTokenDeletion_NoJobWithoutItsCursor(t *testing.T) {
	e := newBots(servicetest.Parallel(t), 1, 2)
	e.Exec("main", `ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (args ->> 'user_id' <> '2')`)
	s := e.Service("", e.WithQueue)
	servicetest.WantRun(t, servicetest.RunTokens(t, s), control.RunFailed, "")
	e.Want("main", passes, "0/0/0")
	e.Want("main", servicetest.QueuedUsers, "")
	e.Exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	wantTokens(t, s, "examined_users=2 scheduled_jobs=2")
}
