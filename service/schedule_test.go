package service_test

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
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// minute is a fire of the schedule: minutes 25772282 and 25772283 are the specification's.
func minute(n int64) time.Time { return time.Unix(n*60, 0) }

func TestRunScheduled_TakesTheDatabaseOfItsMinute(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci", "sec")
	for i, c := range []struct{ first, second string }{{"main", "main"}, {"main", "ci"}, {"sec", "main"}} {
		s := e.Service(servicetest.OneChild, func(config *service.Config) { config.Databases = e.Open[:i+1] })
		for n, want := range map[int64]string{25772282: c.first, 25772283: c.second} {
			r := fired(t, s, servicetest.LooseForeignKeys, minute(n))
			servicetest.WantState(t, r, control.RunSucceeded)
			assert.Equal(t, r.Database, want, fmt.Sprintf("the database of minute %d of %d databases", n, i+1))
		}
		e.Exec("main", `TRUNCATE maintenance.fires, maintenance.runs, maintenance.schedules`)
	}
	// So does a request that names none.
	s, names := e.Service(servicetest.OneChild), []string{"main", "ci", "sec"}
	for began, ended := int64(0), int64(1); began != ended; {
		began = time.Now().Unix() / 60
		got := servicetest.RunBatch(t, s, "").Database
		if ended = time.Now().Unix() / 60; began == ended { // else the minute has changed in between
			assert.Equal(t, got, names[began%3], "the database of this minute")
		}
	}
	for _, name := range names {
		assert.Equal(t, servicetest.RunBatch(t, s, name).Database, name, "the database of the request")
	}
}

func TestRunScheduled_ARunOnOneDatabaseCostsTheOtherNoTurn(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1)`)
	}
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	e.Deleted("main", "p", 1, 1)
	s := e.Service(servicetest.OneChild)
	var first run.Run
	done := background(func() (err error) {
		first, _, err = s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772282))
		return err
	})
	e.AtGate("main", servicetest.App)
	e.Deleted("ci", "x", 1, 1)
	r := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	servicetest.WantState(t, r, control.RunSucceeded)
	assert.Equal(t, r.Database, "ci", "its database")
	// Two minutes later main is still running: this turn is skipped, not postponed.
	r = fired(t, s, servicetest.LooseForeignKeys, minute(25772284))
	servicetest.WantState(t, r, control.RunSkipped)
	assert.Equal(t, r.Reason, "LEASE_HELD", "its reason")
	e.Lift("main", servicetest.App)
	assert.NoError(t, <-done)
	servicetest.WantCounts(t, first, "processed_records=1 deleted_rows=2")
}

func TestRunScheduled_SkipsWhatIsNotConfiguredAndDoesNotKnowOthers(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	e.Exec("main", `DROP TABLE ghost_user_migrations CASCADE`)
	s := e.Service("", e.WithQueue)
	_, _, err := s.RunScheduled(context.Background(), "nobody", minute(25772282))
	isError(t, "nobody", err, fault.ErrUnknownWorker)
	e.Want("main", `SELECT count(*) FROM maintenance.fires`, "0")
	for worker, missing := range map[string]string{
		servicetest.LooseForeignKeys: "definitions", servicetest.GhostUsers: "ghost_user_migrations",
		servicetest.InactiveTokens: "ghost_user_migrations",
	} {
		r := fired(t, s, worker, minute(25772282))
		servicetest.WantState(t, r, control.RunSkipped)
		assert.That(t, strings.HasPrefix(r.Reason, "WORKER_NOT_CONFIGURED") && strings.Contains(r.Reason, missing),
			"%s: reason %q", worker, r.Reason)
		e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	}
}

func TestRunScheduled_WhatCannotStartIsOnRecord(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	e.Exec("ci", `DROP SCHEMA maintenance CASCADE`)
	s := e.Service(servicetest.OneChild)
	r := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	servicetest.WantFailed(t, r, "cannot acquire lease loose_foreign_keys_cleanup/ci on ci: 42P01 undefined_table")
	st := servicetest.Status(t, s)
	assert.That(t, st.Condition == status.ConditionFailing && st.LastRun != nil && st.LastRun.ID == r.ID,
		"condition %s, last run %+v", st.Condition, st.LastRun)
}

func TestLooseForeignKeysCleanup_WithoutAQueueIsSkipped(t *testing.T) {
	s := servicetest.New(servicetest.Parallel(t), "", "main").Service(servicetest.OneChild)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, control.RunSkipped)
	assert.That(t, strings.Contains(r.Reason, "lfk install") && strings.Contains(r.Reason, "main"), "reason %q", r.Reason)
	servicetest.WantState(t, fired(t, s, servicetest.LooseForeignKeys, minute(25772282)), control.RunSkipped)
}

func TestNew_WarnsOfRunsOfLessThanASecondAndOfDatabasesThatHaveNoTurn(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	made := func(change ...func(*service.Config)) (*service.Service, string) {
		log := &servicetest.Buffer{}
		s := e.Service(servicetest.OneChild, append(change, log.KeepAll)...)
		return s, strings.Join(log.Lines("level=WARN"), "\n")
	}
	_, short := made(func(c *service.Config) {
		service.Settings[ghost.Config](c).MaxRuntime = 999 * time.Millisecond
		service.Settings[lfk.Config](c).MaxRuntime = time.Nanosecond
	})
	for _, worker := range []string{servicetest.GhostUsers, servicetest.LooseForeignKeys} {
		assert.That(t, strings.Contains(short, "worker="+worker+" max_runtime="), "no warning of %s: %s", worker, short)
	}
	assert.Equal(t, strings.Count(short, "level=WARN"), 2, "warnings in "+short)
	odd := servicetest.With(func(c *lfk.Config) { c.Schedule = "*/2 * * * *" })
	s, said := made(odd)
	servicetest.WantCondition(t, s, status.ConditionIdle,
		"with `rotation: minute`, the schedule */2 * * * * never starts a run on ci, so runs on ci start only "+
			"on request: use ")
	assert.That(t, strings.Contains(said, "database=ci"), "logged %q", said)
	for _, change := range [][]func(*service.Config){nil, {odd, rotateAll}} {
		s, said := made(change...)
		st := servicetest.WantCondition(t, s, status.ConditionIdle)
		assert.That(t, !strings.Contains(st.ConditionDetail, "never starts a run") && !strings.Contains(said, "database=ci"),
			"detail %q, logged %q", st.ConditionDetail, said)
	}
}

func TestRunDue_WaitsForAFireThatIsAboutToBegin(t *testing.T) {
	c := newClocked(servicetest.Parallel(t))
	s := c.scheduled("* * * * *")
	c.at("11-20 12:00:59.9")
	c.Exec("main", `CREATE SEQUENCE public.reads;
		CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT at FROM public.clock, pg_catalog.nextval(''public.reads'')'`)
	done := background(func() error { return s.RunDue(context.Background()) })
	// It waits for a tenth of a second, finds that the clock has not moved, and waits again.
	c.Eventually("main", `SELECT last_value >= 3 FROM public.reads`, "true")
	c.wantFires()
	c.at("11-20 12:01:00")
	assert.NoError(t, <-done)
	c.settled()
	c.wantFires("11-20 12:01 ran +0")
	// A wait ends with its caller, and with the service.
	c.at("11-20 12:01:57")
	ctx, stop := context.WithCancelCause(context.Background())
	done = background(func() error { return s.RunDue(ctx) })
	enough := errors.New("enough")
	stop(enough)
	isError(t, "a caller that ends", <-done, enough)
	done = background(func() error { return s.RunDue(context.Background()) })
	assert.NoError(t, s.Shutdown(context.Background()))
	isError(t, "a service that ends", <-done, fault.ErrStopping)
	c.wantFires("11-20 12:01 ran +0")
	// The fire is run by another server.
	c.at("11-20 12:02:01")
	c.due(c.scheduled("* * * * *"))
	c.wantFires("11-20 12:01 ran +0", "11-20 12:02 ran +1")
}

func TestRunDue_DoesNotWaitForRuns(t *testing.T) {
	c := newClocked(servicetest.Parallel(t), "ci")
	c.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1)`)
	c.Gate("ci", "c")
	c.Shut("ci", servicetest.App)
	c.Deleted("ci", "p", 1, 1)
	s := c.scheduled("* * * * *")
	// The minutes of ci are the odd ones.
	c.at("11-20 12:01:00")
	assert.NoError(t, s.RunDue(context.Background()))
	c.AtGate("ci", servicetest.App)
	c.Want("main", `SELECT string_agg(database, ' ') FROM maintenance.runs WHERE state = 'running'`, "ci")
	c.Lift("ci", servicetest.App)
	c.settled()
	c.wantFires("11-20 12:01 ran +0")
	c.wantRuns(1)
}

func TestStatus_TellsTheNextFireAndThoseThatWereMissed(t *testing.T) {
	c := newClocked(servicetest.Parallel(t))
	s := c.scheduled("*/10 * * * *")
	const (
		next   = "waiting for 2026-11-20T12:"
		late   = "no scheduler has claimed the scheduled run of 2026-11-20T12:10:00Z"
		missed = "the last 3 scheduled runs were missed since 2026-11-20T12:10:00Z"
	)
	for _, step := range []struct {
		at, next     string
		look         bool
		late, missed bool
	}{
		{at: "12:09:59", next: "10"},
		{at: "12:11:00", next: "20"},
		{at: "12:12:00", next: "20", late: true},
		{at: "12:35:00", look: true, next: "40", missed: true},
		{at: "12:40:01", look: true, next: "50"},
	} {
		c.at("11-20 " + step.at)
		if step.look {
			c.due(s)
		}
		st := servicetest.Status(t, s)
		said := func(words string) bool { return strings.Contains(st.ConditionDetail, words) }
		if said(late) != step.late || said(missed) != step.missed || !said(next+step.next+":00Z") || st.NextRunAt.UTC().Format("15:04:05") != "12:"+step.next+":00" {
			t.Errorf("%s: next run at %s, %s", step.at, st.NextRunAt, st.ConditionDetail)
		}
	}
}

func TestRunDue_MetricCountsFiresByOutcome(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClocked(t)
	s := c.scheduled("*/10 * * * *")
	c.at("11-20 12:40:10")
	c.due(s)
	c.Exec("main", `UPDATE maintenance.leases SET expires_at = now() + interval '1 day'`)
	c.at("11-20 12:50:10")
	c.due(s)
	const fires = "fires worker=loose_foreign_keys_cleanup outcome="
	wantCounters(m, map[string]int64{fires + control.FireMissed: 3, fires + control.FireRan: 1, fires + control.FireSkipped: 1})
}

func TestFault_RunDue_ADatabaseThatWasDownLosesNoFireAndNoLedger(t *testing.T) {
	own := servicetest.NewServer(servicetest.Parallel(t), "main")
	c := clocked{servicetest.New(t, "main")}
	c.Add("main", byTheClock(own.Cluster.URL("main")))
	c.Exec("main", clockSQL)
	s := c.scheduled("* * * * *")
	for _, at := range []string{"11-20 12:01:20", "11-20 12:05:10"} {
		own.Stop()
		isError(t, "while main is down", s.RunDue(context.Background()), fault.ErrUnreachable)
		// Its tables cannot be seen, but the worker is used all the same.
		st := servicetest.StatusOf(t, s, servicetest.GhostUsers)
		assert.That(t, st.NotUsed == "" && st.Condition == status.ConditionFailing, "status %+v", st)
		own.Start()
		c.SQL["main"] = c.Connect("main")
		c.at(at)
		devdb.Eventually(t, "main to answer", func() bool { return s.RunDue(context.Background()) == nil })
		c.settled()
	}
	c.wantFires("11-20 12:01 ran +20", "11-20 12:02 missed", "11-20 12:03 missed", "11-20 12:04 missed", "11-20 12:05 ran +10")
}

func TestPrune_KeepsHistoryAndTheNewestFire(t *testing.T) {
	c := newClocked(servicetest.Parallel(t))
	s := c.Service(servicetest.OneChild, func(config *service.Config) { config.HistoryKeep = 24 * time.Hour })
	// More than one statement deletes.
	c.Exec("main", `INSERT INTO maintenance.fires (worker, fire_time, claimed_by)
		SELECT w, clock_timestamp() - i * interval '1 hour', '' FROM generate_series(0, 2499) i, unnest(ARRAY['a', 'b']) w
		UNION ALL SELECT 'monthly', clock_timestamp() - i * interval '30 days', '' FROM generate_series(2, 4) i`)
	c.Exec("main", `INSERT INTO maintenance.audit (at, by, address, role, action, target, reason, outcome)
		SELECT clock_timestamp() - i * interval '1 hour', '', '', '', '', '', '', '' FROM generate_series(1, 2500) i`)
	c.Exec("main", `INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, started_at)
		SELECT gen_random_uuid(), 'x', 'request', CASE i WHEN 1 THEN 'running' ELSE 'failed' END, '90 days',
			clock_timestamp() - CASE i WHEN 2 THEN interval '23 hours' ELSE '25 hours' END FROM generate_series(1, 2502) i`)
	assert.NoError(t, s.RunDue(context.Background()))
	c.Eventually("main", `SELECT string_agg(n || ' ' || state, ', ' ORDER BY state) FROM
		(SELECT state, count(*) AS n FROM maintenance.runs WHERE worker = 'x' GROUP BY state) x`, "1 failed, 1 running")
	c.Eventually("main", `SELECT string_agg(worker || ' ' || n, ', ' ORDER BY worker) FROM
		(SELECT worker, count(*) AS n FROM maintenance.fires WHERE worker IN ('a', 'b', 'monthly') GROUP BY worker) f`, "a 25, b 25, monthly 1")
	c.Eventually("main", `SELECT count(*) BETWEEN 23 AND 24 FROM maintenance.audit`, "true")
	c.Want("main", `SELECT fire_time = clock_timestamp() - interval '60 days' FROM maintenance.fires WHERE worker = 'monthly'`, "true")
}

func TestFires_AreWrittenAndListedInEveryModeOfTheDriver(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			c := newClocked(servicetest.Parallel(t))
			c.Open = nil
			c.Add("main", c.URLs["main"]+"&default_query_exec_mode="+mode)
			story{
				replicas: map[string]string{"a": "*/10 * * * *, catch up"}, runs: 1, steps: `
					11-20 12:00:30 a
					11-20 12:25:00 a
					UPDATE maintenance.leases SET expires_at = clock_timestamp() + interval '1 hour'
					11-20 12:30:01 a
					11-20 12:50:00 a a => 11-20 12:10 missed, 11-20 12:20 ran CAUGHT_UP +300, 11-20 12:30 skipped LEASE_HELD, 11-20 12:40 missed, 11-20 12:50 skipped LEASE_HELD`,
			}.tellOn(c)
			s := c.scheduled("*/10 * * * *")
			const worker = servicetest.LooseForeignKeys
			for want, f := range map[string]schedule.Filter{
				"12:50 skipped, 12:40 missed, 12:30 skipped, 12:20 ran 5m0s, 12:10 missed": {Worker: worker, Limit: 10},
				"12:20 ran 5m0s":                                            {Worker: worker, Outcome: control.FireRan, Limit: 10},
				"12:50 skipped, 12:40 missed":                               {Worker: worker, Limit: 2},
				"12:20 ran 5m0s, 12:10 missed":                              {Worker: worker, Limit: 2, AfterWorker: worker, After: time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC)},
				"12:40 missed, 12:30 skipped, 12:20 ran 5m0s, 12:10 missed": {Worker: worker, Limit: 10, AfterWorker: "z", After: time.Date(2026, 11, 20, 12, 40, 0, 0, time.UTC)},
			} {
				fires, err := s.Fires(context.Background(), f)
				var got []string
				for _, f := range fires {
					line := f.Time.UTC().Format("15:04") + " " + f.Outcome
					if f.Outcome == control.FireRan && f.RunID != "" && f.ClaimedBy != "" && !f.ClaimedAt.IsZero() {
						line += " " + f.Late().String()
					}
					got = append(got, line)
				}
				text := strings.Join(got, ", ")
				assert.That(t, err == nil && text == want, "%+v: %s, %v, want %s", f, text, err, want)
			}
			_, err := s.Fires(context.Background(), schedule.Filter{Worker: "nobody"})
			isError(t, "nobody", err, fault.ErrUnknownWorker)
			servicetest.Status(t, s)
		})
	}
}
