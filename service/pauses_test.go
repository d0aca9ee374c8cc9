package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// pausedBy is the name under which a worker is paused, "" if it is not.
func pausedBy(t *testing.T, s *service.Service, worker string) string {
	t.Helper()
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: worker, DryRun: true})
	var paused *service.WorkerPausedError
	if !errors.As(err, &paused) {
		return ""
	}
	if paused.Worker != worker {
		t.Errorf("%s: the error is about %s", worker, paused.Worker)
	}
	return paused.Pause.Worker
}

func TestPauseWorker_OfAllWorkersHoldsForEachOfThem(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s, replica := e.Service(servicetest.OneChild, e.WithQueue), e.Service(servicetest.OneChild, e.WithQueue, servicetest.Audited)
	st := servicetest.Pause(t, s, service.AllWorkers)
	if st.Worker != "*" || st.Condition != service.ConditionPaused || st.Paused == nil || st.Paused.Reason != "an incident" || st.Paused.By != "alice" {
		t.Errorf("%+v", st)
	}
	all, err := replica.Status(context.Background(), "")
	if err != nil || len(all) != len(servicetest.Workers()) {
		t.Fatal(all, err)
	}
	for _, w := range all {
		if by := pausedBy(t, replica, w.Worker); by != service.AllWorkers {
			t.Errorf("%s is paused by %q", w.Worker, by)
		}
		since := "since " + w.Paused.Since.UTC().Format(time.RFC3339)
		if w.Condition != service.ConditionPaused || w.Paused.By != "alice" || !strings.Contains(w.ConditionDetail, "all workers are paused by alice "+since+": an incident") ||
			!strings.Contains(w.ConditionDetail, "caretaker resume --all") {
			t.Errorf("%s: %s, %s", w.Worker, w.Condition, w.ConditionDetail)
		}
	}
	fired, ours, err := replica.RunScheduled(context.Background(), servicetest.AdjournedGroups, time.Now().Truncate(time.Minute))
	if err != nil || !ours || fired.State != repo.RunSkipped || !strings.Contains(fired.Reason, "WORKER_PAUSED") {
		t.Errorf("%+v, %t, %v", fired, ours, err)
	}
}

func TestResumeWorker_OfAllWorkersLeavesThosePausedByThemselves(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service(servicetest.OneChild, e.WithQueue)
	servicetest.Pause(t, s, servicetest.AdjournedGroups)
	servicetest.Pause(t, s, service.AllWorkers)
	if by := pausedBy(t, s, servicetest.AdjournedGroups); by != service.AllWorkers {
		t.Errorf("paused by %q, want that of all first", by)
	}
	st := servicetest.Resume(t, s, service.AllWorkers)
	if st.Paused != nil || st.Condition != service.ConditionIdle || !strings.Contains(st.ConditionDetail, "also paused individually: "+servicetest.AdjournedGroups) {
		t.Errorf("%+v", st)
	}
	for worker, want := range map[string]string{servicetest.LooseForeignKeys: "", servicetest.AdjournedGroups: servicetest.AdjournedGroups} {
		if by := pausedBy(t, s, worker); by != want {
			t.Errorf("%s is paused by %q, want %q", worker, by, want)
		}
	}

	// The other way round: a worker resumed while all are paused.
	servicetest.Pause(t, s, service.AllWorkers)
	if st := servicetest.Resume(t, s, servicetest.AdjournedGroups); st.Condition != service.ConditionPaused || !strings.Contains(st.ConditionDetail, "all workers are paused") {
		t.Errorf("%+v", st)
	}
	servicetest.Resume(t, s, service.AllWorkers)
	if by := pausedBy(t, s, servicetest.AdjournedGroups); by != "" {
		t.Errorf("paused by %q", by)
	}
	// The second time there is nothing to resume.
	if st := servicetest.Resume(t, s, service.AllWorkers); st.ConditionDetail != "there is no global pause" {
		t.Errorf("%+v", st)
	}
}

func TestPauseWorker_OfAllWorkersStopsARunAtWorkOnAnotherReplica(t *testing.T) {
	t.Parallel()
	e, s, r, before := servicetest.NewHalfway(t)
	servicetest.Pause(t, e.Service(servicetest.OneChild), service.AllWorkers)
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
}

func TestPauseBySQL_WithoutAReasonStopsARunAtWork(t *testing.T) {
	t.Parallel()
	e, s, r, before := servicetest.NewHalfway(t)
	e.Exec("main", `INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', '', 'me')`)
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
}

func TestPauseWorker_OfAllWorkersEndsByItself(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service(servicetest.OneChild)
	st, err := s.PauseWorker(context.Background(), " * ", " soon over ", "  ", time.Second)
	if err != nil || st.Paused == nil || st.Paused.Reason != "soon over" || !strings.Contains(st.ConditionDetail, " until ") {
		t.Fatalf("%+v, %v", st, err)
	}
	devdb.Eventually(t, "the pause to end", func() bool { return pausedBy(t, s, servicetest.LooseForeignKeys) == "" })
}

func TestPauseWorker_TTLIsFromASecondToAYear(t *testing.T) {
	t.Parallel()
	s := servicetest.New(t, "main", "main").Service(servicetest.OneChild)
	for ttl, allowed := range map[time.Duration]bool{
		time.Nanosecond: false, time.Second - 1: false, time.Second: true, 365 * 24 * time.Hour: true, 365*24*time.Hour + 1: false, 1<<63 - 1: false,
	} {
		_, err := s.PauseWorker(context.Background(), service.AllWorkers, "r", "alice", ttl)
		var invalid *service.InvalidArgumentError
		if is := errors.As(err, &invalid); is == allowed || is && (invalid.Field != "ttl" || invalid.Description != service.AllowedTTL) {
			t.Errorf("%s: %v", ttl, err)
		}
	}
	st, err := s.PauseWorker(context.Background(), service.AllWorkers, "r", strings.Repeat("ü", 1000), 0)
	if err != nil || len([]rune(st.Paused.By)) != 200 {
		t.Errorf("%+v, %v", st.Paused, err)
	}
}
