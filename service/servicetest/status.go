package servicetest

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/status"
)

// Status is that of loose_foreign_keys_cleanup.
func Status(t *testing.T, s *service.Service) status.Worker {
	t.Helper()
	return StatusOf(t, s, LooseForeignKeys)
}

// StatusOf is the status of a worker.
func StatusOf(t *testing.T, s *service.Service, worker string) status.Worker {
	t.Helper()
	all, err := s.Status(context.Background(), worker)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

// WantCondition fails the test unless the worker's condition is this and its detail has these words.
func WantCondition(
	t *testing.T, s *service.Service, want status.Condition, words ...string,
) status.Worker {
	t.Helper()
	return WantConditionOf(t, s, LooseForeignKeys, want, words...)
}

// WantConditionOf is WantCondition of any worker.
func WantConditionOf(
	t *testing.T, s *service.Service, worker string, want status.Condition, words ...string,
) status.Worker {
	t.Helper()
	st := StatusOf(t, s, worker)
	if st.Condition != want {
		t.Errorf("%s: condition %s (%s), want %s", worker, st.Condition, st.ConditionDetail, want)
	}
	WantDetail(t, st, words...)
	return st
}

// WantDetail fails the test unless the condition's detail has all these words.
func WantDetail(t *testing.T, st status.Worker, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(st.ConditionDetail, w) {
			t.Errorf("%s: detail %q does not contain %q", st.Worker, st.ConditionDetail, w)
		}
	}
}

// Pause pauses a worker, or all, until that is ended.
func Pause(t *testing.T, s *service.Service, name string) status.Worker {
	t.Helper()
	st, err := s.PauseWorker(context.Background(), name, "an incident", "alice", 0)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Resume resumes a worker, or all.
func Resume(t *testing.T, s *service.Service, name string) status.Worker {
	t.Helper()
	st, err := s.ResumeWorker(context.Background(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	return st
}
