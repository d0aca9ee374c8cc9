package service_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
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

func TestJobs_EveryKindCanBeWorked(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	if got, want := e.service("", e.withQueue).JobKinds(), slices.Sorted(slices.Values(repo.JobKinds())); !slices.Equal(got, want) {
		t.Errorf("works %v, of %v", got, want)
	}
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }

// Jobs of dead processes: an attempt that began longer ago than any lasts is over.
func TestRescueJobs_TriesAgainWhatADeadProcessHadAtWork(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	s := e.service("", e.withQueue)
	e.insert(placeholders(6)...)
	for id, c := range map[int64]struct {
		state, age string
		attempt    int
	}{
		1: {"running", "79 s", 1}, 2: {"running", "81 s", 1}, 3: {"running", "81 s", 4}, 4: {"running", "2 h", 25},
		5: {"running", "2 h", 4}, 6: {"retryable", "2 h", 1},
	} {
		e.exec("main", `UPDATE maintenance.river_job SET state = $2::text::maintenance.river_job_state, attempt = $4,
			attempted_at = now() - $3::text::interval WHERE id = $1`, id, c.state, c.age, c.attempt)
	}
	if err := s.RescueJobs(context.Background(), 80*time.Second); err != nil {
		t.Fatal(err)
	}
	e.want("main", `SELECT string_agg(state::text, ' ' ORDER BY id) FROM maintenance.river_job`,
		"running available available discarded available retryable")
	e.want("main", `SELECT string_agg(id || ' ' || (metadata ->> 'outcome'), ', ' ORDER BY id) FROM maintenance.river_job WHERE errors IS NOT NULL`,
		"2 failed, 3 failed, 4 discarded, 5 failed")
	e.want("main", `SELECT finalized_at IS NOT NULL FROM maintenance.river_job WHERE id = 4`, "true")
	// A killed process is no failure of its jobs: they do not wait n⁴ seconds.
	e.want("main", `SELECT bool_and(scheduled_at <= now()) FROM maintenance.river_job WHERE id IN (2, 3, 5)`, "true")
	jobs, err := s.Jobs(context.Background(), service.JobFilter{State: "discarded", Limit: 1})
	if err != nil || len(jobs) != 1 || jobs[0].Errors[0].Attempt != 25 {
		t.Fatalf("got %+v, %v", jobs, err)
	}
}
