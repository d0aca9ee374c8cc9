package service_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

func TestJobs_KindThatThisVersionDoesNotKnowFailsAndWaits(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	s := e.service("", e.withQueue)
	e.insert(repo.Job{Args: unknownArgs{}})
	if n := e.work(s, "unknown"); n != 1 {
		t.Fatalf("%d jobs worked, want 1", n)
	}
	e.want("main", `SELECT metadata ->> 'outcome' FROM maintenance.river_job`, "failed")
	e.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, `this version of caretaker knows no kind "unknown"`)
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }
