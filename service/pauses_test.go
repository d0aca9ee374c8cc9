package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// pause pauses a worker, or all, until that is ended.
func pause(t *testing.T, s *service.Service, name string) service.WorkerStatus {
	t.Helper()
	st, err := s.PauseWorker(context.Background(), name, "an incident", "alice", 0)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func resume(t *testing.T, s *service.Service, name string) service.WorkerStatus {
	t.Helper()
	st, err := s.ResumeWorker(context.Background(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

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
	e := newEstate(t, "main", "main")
	s, replica := e.service(oneChild, e.withQueue), e.service(oneChild, e.withQueue)
	st := pause(t, s, service.AllWorkers)
	if st.Worker != "*" || st.Condition != service.ConditionPaused || st.Paused == nil || st.Paused.Reason != "an incident" || st.Paused.By != "alice" {
		t.Errorf("%+v", st)
	}
	all, err := replica.Status(context.Background(), "")
	if err != nil || len(all) != 5 {
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
	fired, ours, err := replica.RunScheduled(context.Background(), groupWorker, time.Now().Truncate(time.Minute))
	if err != nil || !ours || fired.State != repo.RunSkipped || !strings.Contains(fired.Reason, "WORKER_PAUSED") {
		t.Errorf("%+v, %t, %v", fired, ours, err)
	}
}

func TestResumeWorker_OfAllWorkersLeavesThosePausedByThemselves(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service(oneChild, e.withQueue)
	pause(t, s, groupWorker)
	pause(t, s, service.AllWorkers)
	if by := pausedBy(t, s, groupWorker); by != service.AllWorkers {
		t.Errorf("paused by %q, want that of all first", by)
	}
	st := resume(t, s, service.AllWorkers)
	if st.Paused != nil || st.Condition != service.ConditionIdle || !strings.Contains(st.ConditionDetail, "paused by themselves, whatever becomes of that: "+groupWorker) {
		t.Errorf("%+v", st)
	}
	for worker, want := range map[string]string{cleanupWorker: "", groupWorker: groupWorker} {
		if by := pausedBy(t, s, worker); by != want {
			t.Errorf("%s is paused by %q, want %q", worker, by, want)
		}
	}

	// The other way round: a worker resumed while all are paused.
	pause(t, s, service.AllWorkers)
	if st := resume(t, s, groupWorker); st.Condition != service.ConditionPaused || !strings.Contains(st.ConditionDetail, "all workers are paused") {
		t.Errorf("%+v", st)
	}
	resume(t, s, service.AllWorkers)
	if by := pausedBy(t, s, groupWorker); by != "" {
		t.Errorf("paused by %q", by)
	}
	// The second time there is nothing to resume.
	if st := resume(t, s, service.AllWorkers); st.ConditionDetail != "no pause of all workers is in force" {
		t.Errorf("%+v", st)
	}
}

func TestPauseWorker_OfAllWorkersStopsARunAtWorkOnAnotherReplica(t *testing.T) {
	t.Parallel()
	e, s, r, before := newHalfway(t)
	pause(t, e.service(oneChild), service.AllWorkers)
	e.wantHalf(ended(t, s, r.ID), "PAUSED", before)
}

func TestPauseBySQL_WithoutAReasonStopsARunAtWork(t *testing.T) {
	t.Parallel()
	e, s, r, before := newHalfway(t)
	e.exec("main", `INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('*', '', 'me')`)
	e.wantHalf(ended(t, s, r.ID), "PAUSED", before)
}

func TestPauseWorker_OfAllWorkersEndsByItself(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service(oneChild)
	st, err := s.PauseWorker(context.Background(), " * ", " soon over ", "  ", time.Second)
	if err != nil || st.Paused == nil || st.Paused.Reason != "soon over" || !strings.Contains(st.ConditionDetail, " until ") {
		t.Fatalf("%+v, %v", st, err)
	}
	waitFor(t, "the pause to end", func() bool { return pausedBy(t, s, cleanupWorker) == "" })
}

func TestPauseWorker_TTLIsFromASecondToAYear(t *testing.T) {
	t.Parallel()
	s := newEstate(t, "main", "main").service(oneChild)
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
