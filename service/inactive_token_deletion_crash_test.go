package service_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
)

func runsTokens(o *processOrder) {
	o.Definitions, o.Database, o.Worker, o.BatchSize = "", "", tokenWorker, 2
}

// gateJobs puts an open gate before the job of a user.
func (e *estate) gateJobs(user string) {
	e.t.Helper()
	e.gate("main", "application_settings")
	e.exec("main", `CREATE TRIGGER gate BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'user_id' = '`+user+`') EXECUTE FUNCTION wait_at_gate()`)
}

// doomed waits until the server has given up the statements of the process of that name, which was killed.
func (e *estate) doomed() {
	e.t.Helper()
	e.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
}

func resumeRuns(t *testing.T, s *service.Service) {
	t.Helper()
	if err := s.ResumeRuns(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestInactiveTokenDeletion_KilledInASecondRangeGoesOnWithItWhenTheLeaseHasExpired(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5, 6)
	e.gateJobs("3")
	e.shut("main", "doomed")
	p := e.start("doomed", "", runsTokens)
	e.atGate("main", "doomed")
	e.want("main", passes, "2/2/2")
	rules := e.value("main", `SELECT concat_ws(' ', id, started_at, cut_off, today) FROM maintenance.token_passes`)
	p.kill()
	e.doomed()
	e.want("main", passes, "2/2/2")
	e.want("main", queuedUsers, "1 2")

	s := e.service("", e.withQueue)
	resumeRuns(t, s)
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	resumeRuns(t, s)
	e.eventually("main", passes, "6/6/6 finished")
	e.eventually("main", newestRun, "schedule succeeded continuation 4")
	e.want("main", queuedUsers, "1 2 3 4 5 6")
	e.want("main", `SELECT concat_ws(' ', id, started_at, cut_off, today) FROM maintenance.token_passes`, rules)
	resumeRuns(t, s)
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "2")
}

func TestInactiveTokenDeletion_WhoeverRunsFirstGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3)
	e.gateJobs("3")
	e.shut("main", "doomed")
	p := e.start("doomed", "", runsTokens, shortRun)
	e.atGate("main", "doomed")
	p.kill()
	e.doomed()
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	s := e.service("", e.withQueue)
	wantCounts(t, tokenFire(t, s, 1), "examined_users=1 scheduled_jobs=1")
	e.want("main", passes, "3/3/3 finished")
	e.want("main", queuedUsers, "1 2 3")
	resumeRuns(t, s)
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "2")
}

func TestInactiveTokenDeletion_LeaseThatRunsOutInTheTransactionTakesItsJobsBack(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4, 5)
	e.exec("main", `CREATE FUNCTION run_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE maintenance.leases SET expires_at = clock_timestamp(); RETURN NEW; END $$;
		CREATE TRIGGER run_out BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'user_id' = '4') EXECUTE FUNCTION run_out()`)
	r := runTokens(t, e.service("", e.withQueue, with(func(c *inactivetoken.Config) { c.BatchSize = 2 })))
	wantLost(t, r)
	wantCounts(t, r, "examined_users=2 scheduled_jobs=2")
	e.want("main", passes, "2/2/2")
	e.want("main", queuedUsers, "1 2")
}

func TestInactiveTokenDeletion_ShutdownIsGoneOnWithLikeACrash(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3)
	e.gateJobs("1")
	e.shut("main", caretakerApp)
	c := service.Config{Databases: e.open, Queue: e.queue(), Logger: slog.New(slog.DiscardHandler)}
	service.Settings[inactivetoken.Config](&c).BatchSize = 2
	config.Defaults(&c)
	stopped, err := service.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stopped.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, Async: true}); err != nil {
		t.Fatal(err)
	}
	e.atGate("main", caretakerApp)
	done := make(chan error)
	go func() { done <- stopped.Shutdown(context.Background()) }()
	waitFor(t, "the service to stop", func() bool {
		_, err := stopped.RunBatch(context.Background(), service.RunRequest{Worker: tokenWorker, DryRun: true})
		return err != nil
	})
	e.lift("main", caretakerApp)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	e.want("main", `SELECT state || ' ' || reason FROM maintenance.runs WHERE NOT dry_run`, "cancelled SHUTDOWN")
	e.want("main", passes, "2/2/2")
	resumeRuns(t, e.service("", e.withQueue))
	e.eventually("main", passes, "3/3/3 finished")
}

func TestInactiveTokenDeletion_OnlyRunsThatDiedAreGoneOnWith(t *testing.T) {
	t.Parallel()
	const died = `UPDATE maintenance.runs SET state = 'running', finished_at = NULL, heartbeat_at = now() - interval '1 hour'`
	unpaused := func(*service.Service) {}
	for name, c := range map[string]struct {
		sql     string
		pause   func(*service.Service)
		resumed bool
	}{
		"died":                        {died, unpaused, true},
		"died before its first beat":  {died + `, lease_epoch = 0`, unpaused, true},
		"taken for dead so early":     {`UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST', lease_epoch = 0`, unpaused, true},
		"taken for dead":              {`UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST'`, unpaused, true},
		"stopped with its server":     {`UPDATE maintenance.runs SET state = 'cancelled', reason = 'SHUTDOWN'`, unpaused, true},
		"cancelled":                   {`UPDATE maintenance.runs SET state = 'cancelled', reason = 'CANCELLED'`, unpaused, false},
		"paused":                      {`UPDATE maintenance.runs SET state = 'cancelled', reason = 'PAUSED'`, unpaused, false},
		"failed":                      {`UPDATE maintenance.runs SET state = 'failed', error = 'something else'`, unpaused, false},
		"over its time":               {`PERFORM 1`, unpaused, false},
		"died, lease not yet expired": {died + `; UPDATE maintenance.leases SET expires_at = now() + interval '1 minute'`, unpaused, false},
		"died, pass finished":         {died + `; UPDATE maintenance.token_passes SET finished_at = now()`, unpaused, false},
		"died, then a skipped tick": {died + `; INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl) VALUES
			('ffffffff-0000-7000-8000-000000000000', 'inactive_token_deletion', 'schedule', 'skipped', '0')`, unpaused, true},
		"died, then a dry run": {died + `; INSERT INTO maintenance.runs (id, worker, trigger, state, dry_run, lease_epoch, heartbeat_ttl) VALUES
			('ffffffff-0000-7000-8000-000000000000', 'inactive_token_deletion', 'request', 'succeeded', true, 0, '0')`, unpaused, true},
		"died, now paused": {died, func(s *service.Service) {
			if _, err := s.PauseWorker(context.Background(), tokenWorker, "test", "me", time.Hour); err != nil {
				t.Error(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			e.bots(1, 2)
			runTokens(t, e.service("", e.withQueue, oneBotARun))
			e.exec("main", `DO $do$ BEGIN `+c.sql+`; END $do$`)
			s := e.service("", e.withQueue)
			c.pause(s)
			resumeRuns(t, s)
			if c.resumed {
				e.eventually("main", passes, "2/2/2 finished")
				e.eventually("main", `SELECT count(*) FROM maintenance.runs WHERE reason = 'continuation' AND state = 'succeeded'`, "1")
				return
			}
			e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
		})
	}
}

func TestInactiveTokenDeletion_SwitchedOffHereNothingIsGoneOnWith(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2)
	runTokens(t, e.service("", e.withQueue, oneBotARun))
	e.exec("main", `UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST'`)
	resumeRuns(t, e.service("", e.withQueue, with(func(c *inactivetoken.Config) { c.Enabled = new(false) })))
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
}

func TestInactiveTokenDeletion_TwoReplicasGoOnOnce(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3, 4)
	runTokens(t, e.service("", e.withQueue, oneBotARun))
	e.exec("main", `UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST'`)
	replicas := []*service.Service{e.service("", e.withQueue), e.service("", e.withQueue), e.service("", e.withQueue)}
	errs := make(chan error)
	for _, s := range replicas {
		go func() { errs <- s.ResumeRuns(context.Background()) }()
	}
	for range replicas {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	e.eventually("main", passes, "4/4/4 finished")
	e.eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	e.want("main", `SELECT sum((counts ->> 'examined_users')::int) FROM maintenance.runs`, "4")
	e.want("main", queuedUsers, "1 2 3 4")
}

func TestDeleteUser_KilledInTheMiddleLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(7)
	e.group(50, 0)
	e.member(7, 30)
	e.gate("main", "members")
	e.shut("main", "doomed")
	e.insert(jobOf(authorized(7)))
	p := e.start("doomed", "", func(o *processOrder) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
	e.atGate("main", "doomed")
	p.kill()
	e.doomed()
	if got := e.userRows(7); got != "active 1 0" {
		t.Error(got)
	}
	s := e.service("", e.withQueue)
	e.rescue()
	wantDeletion(t, e.deletionAgain(s), done)
	if got := e.userRows(7); got != "blocked 0 0 f,6" {
		t.Error(got)
	}
	e.want("main", `SELECT attempt FROM maintenance.river_job`, "2")
}

func TestInactiveTokenDeletion_NoJobWithoutItsCursor(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2)
	e.exec("main", `ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (args ->> 'user_id' <> '2')`)
	s := e.service("", e.withQueue)
	r := runTokens(t, s)
	wantState(t, r, repo.RunFailed)
	wantCounts(t, r, "")
	e.want("main", passes, "0/0/0")
	e.want("main", queuedUsers, "")
	e.exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	wantCounts(t, runTokens(t, s), "examined_users=2 scheduled_jobs=2")
}
