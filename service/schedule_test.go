package service_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// minute is a fire of the schedule: minutes 25772282 and 25772283 are the specification's.
func minute(n int64) time.Time { return time.Unix(n*60, 0) }

func TestRunScheduled_OneReplicaRunsAFireOnce(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	replicas := []*service.Service{e.Service(servicetest.OneChild), e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)}
	fire := minute(25772282)
	var mu sync.Mutex
	var runs []service.Run
	var wait sync.WaitGroup
	for i := range 9 {
		wait.Go(func() {
			// The same moment in another time zone is the same fire.
			at := fire.In(time.FixedZone("", i*3600))
			r, ours, err := replicas[i%3].RunScheduled(context.Background(), servicetest.LooseForeignKeys, at)
			if err != nil {
				t.Error(err)
			}
			if mu.Lock(); ours {
				runs = append(runs, r)
			}
			mu.Unlock()
		})
	}
	wait.Wait()
	if len(runs) != 1 {
		t.Fatalf("%d runs, want 1", len(runs))
	}
	servicetest.WantState(t, runs[0], repo.RunSucceeded)
	servicetest.WantCounts(t, runs[0], "processed_records=3 deleted_rows=9")
	if runs[0].Trigger != repo.TriggerSchedule {
		t.Errorf("trigger %s", runs[0].Trigger)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Want("main", `SELECT epoch FROM maintenance.leases`, "1")
	// Hours later it is still done; the next fire is another.
	if _, ours, err := replicas[0].RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire); ours || err != nil {
		t.Error(ours, err)
	}
	if _, ours, err := replicas[0].RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire.Add(time.Minute)); !ours || err != nil {
		t.Error(ours, err)
	}
}

func TestRunScheduled_TakesTheDatabaseOfItsMinute(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci", "sec")
	for i, c := range []struct{ first, second string }{{"main", "main"}, {"main", "ci"}, {"sec", "main"}} {
		s := e.Service(servicetest.OneChild, func(config *service.Config) { config.Databases = e.Open[:i+1] })
		for n, want := range map[int64]string{25772282: c.first, 25772283: c.second} {
			r, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(n))
			if err != nil || !ours {
				t.Fatal(ours, err)
			}
			if servicetest.WantState(t, r, repo.RunSucceeded); r.Database != want {
				t.Errorf("minute %d of %d databases: %s, want %s", n, i+1, r.Database, want)
			}
		}
		e.Exec("main", `TRUNCATE maintenance.fires, maintenance.runs, maintenance.schedules`)
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
	first := make(chan service.Run, 1)
	go func() {
		r, _, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772282))
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	e.AtGate("main", servicetest.App)
	e.Deleted("ci", "x", 1, 1)
	r, _, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772283))
	if err != nil {
		t.Fatal(err)
	}
	if servicetest.WantState(t, r, repo.RunSucceeded); r.Database != "ci" {
		t.Errorf("database %s", r.Database)
	}
	// Two minutes later main is still at work: this turn is skipped, not postponed.
	r, _, err = s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772284))
	if err != nil {
		t.Fatal(err)
	}
	if servicetest.WantState(t, r, repo.RunSkipped); r.Reason != "LEASE_HELD" {
		t.Errorf("reason %q", r.Reason)
	}
	e.Lift("main", servicetest.App)
	servicetest.WantCounts(t, <-first, "processed_records=1 deleted_rows=2")
}

func TestRunScheduled_SkipsWhatIsNotConfiguredAndDoesNotKnowOthers(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `DROP TABLE ghost_user_migrations CASCADE`)
	s := e.Service("", e.WithQueue)
	if _, ours, err := s.RunScheduled(context.Background(), "nobody", minute(25772282)); ours || !errors.Is(err, service.ErrUnknownWorker) {
		t.Error(ours, err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.fires`, "0")
	for worker, missing := range map[string]string{
		servicetest.LooseForeignKeys: "definitions", servicetest.GhostUsers: "ghost_user_migrations",
		servicetest.InactiveTokens: "ghost_user_migrations",
	} {
		r, ours, err := s.RunScheduled(context.Background(), worker, minute(25772282))
		if err != nil || !ours {
			t.Fatal(ours, err)
		}
		servicetest.WantState(t, r, repo.RunSkipped)
		if !strings.HasPrefix(r.Reason, "WORKER_NOT_CONFIGURED") || !strings.Contains(r.Reason, missing) {
			t.Errorf("%s: reason %q", worker, r.Reason)
		}
		e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	}
}

func TestRunScheduled_WhatCannotStartIsOnRecord(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("ci", `DROP SCHEMA maintenance CASCADE`)
	s := e.Service(servicetest.OneChild)
	r, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772283))
	if err != nil || !ours {
		t.Fatal(ours, err)
	}
	servicetest.WantFailed(t, r, "acquire lease loose_foreign_keys_cleanup/ci on ci: 42P01 undefined_table")
	if st := servicetest.Status(t, s); st.Condition != service.ConditionFailing || st.LastRun == nil || st.LastRun.ID != r.ID {
		t.Errorf("condition %s, last run %+v", st.Condition, st.LastRun)
	}
}

func TestRunScheduled_AFireIsNotLostWithItsCaller(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	s := e.Service(servicetest.OneChild)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	ctx, stop := context.WithCancel(context.Background())
	answered := make(chan error, 1)
	go func() {
		_, _, err := s.RunScheduled(ctx, servicetest.LooseForeignKeys, minute(25772282))
		answered <- err
	}()
	e.AtGate("main", servicetest.App)
	stop()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	e.Lift("main", servicetest.App)
	e.Eventually("main", `SELECT string_agg(state, ' ') FROM maintenance.runs`, "succeeded")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_WithoutAQueueIsSkipped(t *testing.T) {
	t.Parallel()
	s := servicetest.New(t, "", "main").Service(servicetest.OneChild)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, repo.RunSkipped)
	if !strings.Contains(r.Reason, "lfk install") || !strings.Contains(r.Reason, "main") {
		t.Errorf("reason %q", r.Reason)
	}
	r, _, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772282))
	if err != nil {
		t.Fatal(err)
	}
	servicetest.WantState(t, r, repo.RunSkipped)
}

func TestNew_WarnsOfRunsOfLessThanASecondAndOfDatabasesThatHaveNoTurn(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	warnings := func(change func(*service.Config)) string {
		log := &servicetest.LogBook{}
		e.Service(servicetest.OneChild, log.KeepAll, change)
		return strings.Join(log.Lines("level=WARN"), "\n")
	}
	short := warnings(func(c *service.Config) {
		service.Settings[ghostuser.Config](c).MaxRuntime = 999 * time.Millisecond
		service.Settings[loosefk.Config](c).MaxRuntime = time.Nanosecond
	})
	for _, worker := range []string{servicetest.GhostUsers, servicetest.LooseForeignKeys} {
		if !strings.Contains(short, "worker="+worker+" max_runtime=") {
			t.Errorf("no warning of %s: %s", worker, short)
		}
	}
	if n := strings.Count(short, "level=WARN"); n != 2 {
		t.Errorf("%d warnings: %s", n, short)
	}
	for schedule, warned := range map[string]bool{"*/2 * * * *": true, "* * * * *": false} {
		said := warnings(servicetest.With(func(c *loosefk.Config) { c.Schedule = schedule }))
		if strings.Contains(said, "database=ci") != warned {
			t.Errorf("%s: %q", schedule, said)
		}
	}
}
