package service_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRunDue_FirstStartOfAllMissesNothing(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *")
	c.due(s)
	c.wantFires()
	c.at("11-20 12:01:00")
	c.due(s)
	c.due(s)
	c.wantFires("11-20 12:01 ran +0")
	c.wantRuns(1)
}

func TestRunDue_ManyReplicasRunAFireOnce(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	var replicas []*service.Service
	for range 3 {
		replicas = append(replicas, c.replica("* * * * *"))
	}
	var want []string
	for _, minute := range []string{"12:01", "12:02", "12:03", "12:04", "12:05"} {
		c.at("11-20 " + minute + ":00.5")
		var wait sync.WaitGroup
		for _, s := range replicas {
			for range 3 {
				wait.Go(func() {
					if err := s.RunDue(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wait.Wait()
		c.settled()
		want = append(want, "11-20 "+minute+" ran +1")
	}
	c.wantFires(want...)
	c.wantRuns(5)
}

func TestRunDue_WaitsForAFireThatIsAboutToBegin(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *")
	c.at("11-20 12:00:59.9")
	done := make(chan error, 1)
	go func() { done <- s.RunDue(context.Background()) }()
	// It waits for a tenth of a second, finds that the clock has not moved, and waits again.
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	c.wantFires()
	c.at("11-20 12:01:00")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	c.settled()
	c.wantFires("11-20 12:01 ran +0")
	// Who waits stops with its caller, and with the service.
	c.at("11-20 12:01:57")
	ctx, stop := context.WithCancelCause(context.Background())
	go func() { done <- s.RunDue(ctx) }()
	enough := errors.New("enough")
	stop(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
	go func() { done <- s.RunDue(context.Background()) }()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, service.ErrStopping) {
		t.Errorf("error %v", err)
	}
	c.wantFires("11-20 12:01 ran +0")
}

func TestRunDue_DoesNotWaitForRuns(t *testing.T) {
	t.Parallel()
	c := newClocked(t, "ci")
	c.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) VALUES (1)`)
	c.Gate("ci", "c")
	c.Shut("ci", servicetest.App)
	c.Deleted("ci", "p", 1, 1)
	s := c.replica("* * * * *")
	// The minutes of ci are the odd ones.
	c.at("11-20 12:01:00")
	if err := s.RunDue(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.AtGate("ci", servicetest.App)
	c.Want("main", `SELECT string_agg(database, ' ') FROM maintenance.runs WHERE state = 'running'`, "ci")
	c.Lift("ci", servicetest.App)
	c.settled()
	c.wantFires("11-20 12:01 ran +0")
	c.wantRuns(1)
}

func TestRunDue_AFireWithinItsGraceIsRunLate(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *")
	c.at("11-20 12:01:20")
	c.due(s)
	c.at("11-20 12:02:54")
	c.due(s)
	c.wantFires("11-20 12:01 ran +20", "11-20 12:02 ran +54")
}

func TestRunDue_FiresThatNobodyRanAreMissed(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("*/10 * * * *")
	c.at("11-20 12:35:00")
	c.due(s)
	c.wantFires("11-20 12:10 missed", "11-20 12:20 missed", "11-20 12:30 missed")
	c.Want("main", `SELECT bool_and(claimed_by = '' AND claimed_at IS NULL AND run_id IS NULL AND started_at IS NULL) FROM maintenance.fires
		WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "true")
	c.wantRuns(0)
	if st := servicetest.Status(t, s); !strings.Contains(st.ConditionDetail, "the last 3 fires were missed, since 2026-11-20T12:10:00Z") {
		t.Errorf("detail %s", st.ConditionDetail)
	}
	c.at("11-20 12:40:01")
	c.due(s)
	if st := servicetest.Status(t, s); strings.Contains(st.ConditionDetail, "missed") {
		t.Errorf("detail %s", st.ConditionDetail)
	}
	c.wantRuns(1)
}

func TestStatus_SaysThatNoSchedulerIsAtWork(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("*/10 * * * *")
	for at, late := range map[string]bool{"11-20 12:09:59": false, "11-20 12:11:00": false, "11-20 12:12:00": true} {
		c.at(at)
		if st := servicetest.Status(t, s); strings.Contains(st.ConditionDetail, "the fire of 2026-11-20T12:10:00Z has found no scheduler") != late {
			t.Errorf("%s: %s", at, st.ConditionDetail)
		}
	}
}

func TestStatus_TheNextRunIsByTheClockOfMain(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("*/10 * * * *")
	c.at("11-20 12:34:56")
	if st := servicetest.Status(t, s); st.NextRunAt.UTC().Format(time.RFC3339) != "2026-11-20T12:40:00Z" || !strings.Contains(st.ConditionDetail, "waiting for 2026-11-20T12:40:00Z") {
		t.Errorf("next run at %s: %s", st.NextRunAt, st.ConditionDetail)
	}
}

func TestRunDue_OneRunMakesUpForAllMissedFires(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	one, other := c.replica("0 0 * * *", catchUp(true)), c.replica("0 0 * * *", catchUp(true))
	c.at("11-24 08:00:00")
	c.due(one)
	c.due(other)
	c.due(one)
	c.wantFires("11-21 00:00 missed", "11-22 00:00 missed", "11-23 00:00 missed", "11-24 00:00 ran CAUGHT_UP +28800")
	c.wantRuns(1)
}

func TestRunDue_AFireThatIsDueMakesUpForMissedOnes(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("0 0 * * *", catchUp(true))
	c.at("11-24 00:00:05")
	c.due(s)
	c.due(s)
	c.wantFires("11-21 00:00 missed", "11-22 00:00 missed", "11-23 00:00 missed", "11-24 00:00 ran +5")
	c.wantRuns(1)
}

func TestRunDue_WithoutCatchUpMissedFiresStayMissed(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("0 0 * * *", catchUp(false))
	c.at("11-22 08:00:00")
	c.due(s)
	c.due(s)
	c.wantFires("11-21 00:00 missed", "11-22 00:00 missed")
	// It is not too late to change one's mind.
	c.due(c.replica("0 0 * * *", catchUp(true)))
	c.wantFires("11-21 00:00 missed", "11-22 00:00 ran CAUGHT_UP +28800")
}

func TestRunDue_ManyReplicasCatchUpOnce(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	var replicas []*service.Service
	for range 4 {
		replicas = append(replicas, c.replica("0 0 * * *", catchUp(true)))
	}
	c.at("11-22 08:00:00")
	var wait sync.WaitGroup
	for _, s := range replicas {
		wait.Go(func() {
			for range 5 {
				if err := s.RunDue(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	c.settled()
	c.wantFires("11-21 00:00 missed", "11-22 00:00 ran CAUGHT_UP +28800")
	c.wantRuns(1)
}

func TestRunDue_WhatWasSkippedIsNotCaughtUp(t *testing.T) {
	for name, prepare := range map[string]func(c clocked, s *service.Service) (lift func(), reason string){
		"paused": func(c clocked, s *service.Service) (func(), string) {
			if _, err := s.PauseWorker(context.Background(), servicetest.LooseForeignKeys, "disks", "alice", 0); err != nil {
				c.T.Fatal(err)
			}
			return func() { c.Exec("main", `DELETE FROM maintenance.pauses`) }, "WORKER_PAUSED"
		},
		"lease held": func(c clocked, _ *service.Service) (func(), string) {
			c.ForeignLease("main", servicetest.LooseForeignKeys+"/main", "3 days")
			return func() { c.Exec("main", `DELETE FROM maintenance.leases`) }, "LEASE_HELD"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			s := c.replica("0 0 * * *", catchUp(true))
			lift, reason := prepare(c, s)
			c.at("11-22 00:00:10")
			c.due(s)
			lift()
			c.at("11-22 00:05:00")
			c.due(s)
			c.Want("main", `SELECT string_agg(outcome, ' ' ORDER BY fire_time) FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "missed skipped")
			c.Want("main", `SELECT count(*) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id AND r.reason = f.reason
				WHERE f.outcome = 'skipped' AND f.reason LIKE '`+reason+`%' AND r.state = 'skipped' AND f.worker = '`+servicetest.LooseForeignKeys+`'`, "1")
		})
	}
}

func TestRunDue_MetricCountsFiresByOutcome(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClocked(t)
	s := c.replica("*/10 * * * *")
	c.at("11-20 12:40:10")
	c.due(s)
	c.Exec("main", `UPDATE maintenance.leases SET expires_at = now() + interval '1 day'`)
	c.at("11-20 12:50:10")
	c.due(s)
	for outcome, want := range map[string]int64{repo.FireMissed: 3, repo.FireRan: 1, repo.FireSkipped: 1} {
		if got := m.Counter("maintenance.fires", "worker="+servicetest.LooseForeignKeys+" outcome="+outcome); got != want {
			t.Errorf("%s: %d, want %d", outcome, got, want)
		}
	}
}

func TestFault_RunDue_ADatabaseThatWasDownAroundTheMinuteLosesNothing(t *testing.T) {
	t.Parallel()
	own := servicetest.NewServer(t, "main")
	c := clocked{servicetest.New(t, "main")}
	c.Add("main", byTheClock(own.Cluster.URL("main")))
	c.Exec("main", clockSQL)
	s := c.replica("* * * * *")
	own.Stop()
	if err := s.RunDue(context.Background()); !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that main is unreachable", err)
	}
	own.Start()
	c.SQL["main"] = c.Connect("main")
	c.at("11-20 12:01:20")
	devdb.Eventually(t, "main to answer", func() bool { return s.RunDue(context.Background()) == nil })
	c.settled()
	c.wantFires("11-20 12:01 ran +20")
}
