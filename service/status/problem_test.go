package status

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// brokenQueue is a queue that works no jobs.
type brokenQueue struct{ jobqueue.Queue }

func (brokenQueue) Problem() (since time.Time, err error) { return since, dberr.ErrNotMigrated }

func TestProblems_QueueThatWorksNoJobsIsAProblemOfWorkersWithJobs(t *testing.T) {
	runner := &run.Runner{}
	r := New(runner, schedule.New(runner), nil, Config{Queue: brokenQueue{}})
	found, _ := r.problems(t.Context(), &run.Worker{}, reading{})
	assert.That(t, len(found) == 1 && found[0].Class == FailureSchema &&
		strings.HasPrefix(found[0].Message, "this server runs no jobs: "), "%+v", found)
}

func TestProblems_SchedulerWithoutHeartbeatIsAProblem(t *testing.T) {
	r := &Reporter{runner: &run.Runner{}}
	now := time.Now()
	last, began := now.Add(-heartbeatTimeout), now.Add(-time.Hour)
	for name, c := range map[string]struct {
		h     schedule.Heartbeat
		class FailureClass
		since time.Time
	}{
		"alive":  {h: schedule.Heartbeat{At: now.Add(time.Second - heartbeatTimeout)}},
		"silent": {schedule.Heartbeat{At: last}, FailureScheduler, last},
		"broken": {schedule.Heartbeat{At: now, Err: dberr.ErrNotMigrated, FailingSince: began}, FailureSchema, began},
		// The status call checks main itself.
		"main is away": {h: schedule.Heartbeat{At: now, Err: dberr.ErrUnreachable, FailingSince: began}},
	} {
		p := r.schedulerProblem(t.Context(), c.h)
		assert.That(t, p.Class == c.class && p.Since.Equal(c.since) &&
			(c.class != FailureScheduler || p.Message != "") && (!c.since.IsZero() || p == (Problem{})),
			"%s: %+v", name, p)
	}
}
