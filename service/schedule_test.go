package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// minute is a fire of the schedule: minutes 25772282 and 25772283 are the specification's.
func minute(n int64) time.Time { return time.Unix(n*60, 0) }

func TestRunScheduled_TakesTheDatabaseOfItsMinute(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci", "sec")
	for i, c := range []struct{ first, second string }{{"main", "main"}, {"main", "ci"}, {"sec", "main"}} {
		s := e.Service(servicetest.OneChild, func(config *service.Config) { config.Databases = e.Open[:i+1] })
		for n, want := range map[int64]string{25772282: c.first, 25772283: c.second} {
			r := fired(t, s, servicetest.LooseForeignKeys, minute(n))
			servicetest.WantState(t, r, repo.RunSucceeded)
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
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	for _, database := range []string{"main", "ci"} {
		e.Exec(database, `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1)`)
	}
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	e.Deleted("main", "p", 1, 1)
	s := e.Service(servicetest.OneChild)
	var first service.Run
	done := background(func() (err error) {
		first, _, err = s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772282))
		return err
	})
	e.AtGate("main", servicetest.App)
	e.Deleted("ci", "x", 1, 1)
	r := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	servicetest.WantState(t, r, repo.RunSucceeded)
	assert.Equal(t, r.Database, "ci", "its database")
	// Two minutes later main is still at work: this turn is skipped, not postponed.
	r = fired(t, s, servicetest.LooseForeignKeys, minute(25772284))
	servicetest.WantState(t, r, repo.RunSkipped)
	assert.Equal(t, r.Reason, "LEASE_HELD", "its reason")
	e.Lift("main", servicetest.App)
	assert.NoError(t, <-done)
	servicetest.WantCounts(t, first, "processed_records=1 deleted_rows=2")
}

func TestRunScheduled_SkipsWhatIsNotConfiguredAndDoesNotKnowOthers(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `DROP TABLE ghost_user_migrations CASCADE`)
	s := e.Service("", e.WithQueue)
	_, _, err := s.RunScheduled(context.Background(), "nobody", minute(25772282))
	isError(t, "nobody", err, service.ErrUnknownWorker)
	e.Want("main", `SELECT count(*) FROM maintenance.fires`, "0")
	for worker, missing := range map[string]string{
		servicetest.LooseForeignKeys: "definitions", servicetest.GhostUsers: "ghost_user_migrations",
		servicetest.InactiveTokens: "ghost_user_migrations",
	} {
		r := fired(t, s, worker, minute(25772282))
		servicetest.WantState(t, r, repo.RunSkipped)
		assert.That(t, strings.HasPrefix(r.Reason, "WORKER_NOT_CONFIGURED") && strings.Contains(r.Reason, missing),
			"%s: reason %q", worker, r.Reason)
		e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	}
}

func TestRunScheduled_WhatCannotStartIsOnRecord(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("ci", `DROP SCHEMA maintenance CASCADE`)
	s := e.Service(servicetest.OneChild)
	r := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	servicetest.WantFailed(t, r, "acquire lease loose_foreign_keys_cleanup/ci on ci: 42P01 undefined_table")
	st := servicetest.Status(t, s)
	assert.That(t, st.Condition == service.ConditionFailing && st.LastRun != nil && st.LastRun.ID == r.ID,
		"condition %s, last run %+v", st.Condition, st.LastRun)
}

func TestLooseForeignKeysCleanup_WithoutAQueueIsSkipped(t *testing.T) {
	t.Parallel()
	s := servicetest.New(t, "", "main").Service(servicetest.OneChild)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, repo.RunSkipped)
	assert.That(t, strings.Contains(r.Reason, "lfk install") && strings.Contains(r.Reason, "main"), "reason %q", r.Reason)
	servicetest.WantState(t, fired(t, s, servicetest.LooseForeignKeys, minute(25772282)), repo.RunSkipped)
}

func TestNew_WarnsOfRunsOfLessThanASecondAndOfDatabasesThatHaveNoTurn(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	made := func(change ...func(*service.Config)) (*service.Service, string) {
		log := &servicetest.LogBook{}
		s := e.Service(servicetest.OneChild, append(change, log.KeepAll)...)
		return s, strings.Join(log.Lines("level=WARN"), "\n")
	}
	_, short := made(func(c *service.Config) {
		service.Settings[ghostuser.Config](c).MaxRuntime = 999 * time.Millisecond
		service.Settings[loosefk.Config](c).MaxRuntime = time.Nanosecond
	})
	for _, worker := range []string{servicetest.GhostUsers, servicetest.LooseForeignKeys} {
		assert.That(t, strings.Contains(short, "worker="+worker+" max_runtime="), "no warning of %s: %s", worker, short)
	}
	assert.Equal(t, strings.Count(short, "level=WARN"), 2, "warnings in "+short)
	odd := servicetest.With(func(c *loosefk.Config) { c.Schedule = "*/2 * * * *" })
	s, said := made(odd)
	servicetest.WantCondition(t, s, service.ConditionIdle,
		"the schedule */2 * * * * never fires in a minute in which it is the turn of ci, so only requests start runs there: choose ")
	assert.That(t, strings.Contains(said, "database=ci"), "logged %q", said)
	for _, change := range [][]func(*service.Config){nil, {odd, rotateAll}} {
		s, said := made(change...)
		st := servicetest.WantCondition(t, s, service.ConditionIdle)
		assert.That(t, !strings.Contains(st.ConditionDetail, "never fires") && !strings.Contains(said, "database=ci"),
			"detail %q, logged %q", st.ConditionDetail, said)
	}
}
