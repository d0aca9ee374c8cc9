package scheduler

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// modelJob is what must be true of a job.
type modelJob struct {
	id, user int64
	state    string
	// cancelled: an operator has cancelled it, and not retried it since.
	cancelled bool
	// outcome is that of a finished one.
	outcome string
	// attempts are when each has started. The last one is running if the job runs.
	attempts []time.Time
}

func (j *modelJob) waits() bool { return j.state == "available" || j.state == "retryable" }

func (j *modelJob) ended() bool { return !j.waits() && j.state != "running" }

// jobMachine is a queue of jobs delete_user for three users.
type jobMachine struct {
	*lab
	jobs []*modelJob
}

func (m *jobMachine) sqlOf(t *rapid.T, into any, sql string, args ...any) {
	if err := m.sql.QueryRow(context.Background(), sql, args...).Scan(into); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// any is one of the jobs that are so, nil without one.
func (m *jobMachine) any(t *rapid.T, so func(*modelJob) bool) *modelJob {
	var found []*modelJob
	for _, j := range m.jobs {
		if so(j) {
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return rapid.SampledFrom(found).Draw(t, "job")
}

// active reports whether a job for a user waits or runs.
func (m *jobMachine) active(user int64) bool {
	return slices.ContainsFunc(m.jobs, func(j *modelJob) bool { return j.user == user && !j.ended() })
}

func (m *jobMachine) queue(t *rapid.T) {
	user := rapid.Int64Range(1, 3).Draw(t, "user")
	fresh := !m.active(user)
	if n := m.insert(deleteUser(user)); (n == 1) != fresh {
		t.Fatalf("%d jobs for user %d were inserted, another one is there: %t", n, user, !fresh)
	}
	if fresh {
		j := &modelJob{user: user, state: "available"}
		m.sqlOf(t, &j.id, `SELECT max(id) FROM maintenance.river_job`)
		m.jobs = append(m.jobs, j)
	}
}

// fetch begins an attempt, as River does.
func (m *jobMachine) fetch(t *rapid.T) {
	j := m.any(t, (*modelJob).waits)
	if j == nil {
		return
	}
	var at time.Time
	m.sqlOf(t, &at, `UPDATE maintenance.river_job SET state = 'running', attempt = attempt + 1, attempted_at = clock_timestamp()
		WHERE id = $1 RETURNING attempted_at`, j.id)
	j.state, j.attempts = "running", append(j.attempts, at)
}

// attempt is any that a job has ever had, and whether it is running.
func (m *jobMachine) attempt(t *rapid.T) (j *modelJob, a fencing.AttemptOf, works bool) {
	if j = m.any(t, func(j *modelJob) bool { return len(j.attempts) > 0 }); j == nil {
		return nil, a, false
	}
	n := rapid.IntRange(0, len(j.attempts)-1).Draw(t, "attempt")
	return j, fencing.AttemptOf{ID: j.id, AttemptedAt: j.attempts[n]}, j.state == "running" && n == len(j.attempts)-1
}

func (m *jobMachine) write(t *rapid.T) {
	j, a, works := m.attempt(t)
	if j == nil {
		return
	}
	limits := fencing.Limits{Statement: time.Minute, Lock: time.Minute}
	_, err := m.main.Tokens.DropTokenPass(context.Background(), fencing.Permit{Guard: a.Guard(), Limits: limits})
	switch may := works && !j.cancelled; {
	case may != (err == nil):
		t.Fatalf("an attempt of a job that is %s, at work: %t, cancelled: %t, writes: %v", j.state, works, j.cancelled, err)
	case works && j.cancelled && !errors.Is(err, dberr.ErrJobCancelled), !works && !errors.Is(err, dberr.ErrJobLost):
		t.Fatalf("the write is refused with %v", err)
	}
}

// rescue takes a job from its attempt, which may go on.
func (m *jobMachine) rescue(t *rapid.T) {
	if j := m.any(t, func(j *modelJob) bool { return j.state == "running" }); j != nil {
		m.exec(`UPDATE maintenance.river_job SET state = 'retryable', scheduled_at = now() WHERE id = $1`, j.id)
		j.state = "retryable"
	}
}

// finish ends an attempt that has its job.
func (m *jobMachine) finish(t *rapid.T) {
	if j := m.any(t, func(j *modelJob) bool { return j.state == "running" }); j != nil {
		m.exec(`UPDATE maintenance.river_job SET state = 'completed', finalized_at = now(),
			metadata = metadata || '{"outcome": "succeeded", "reason": ""}' WHERE id = $1`, j.id)
		j.state, j.outcome = "completed", "succeeded"
	}
}

// late is the end of an earlier attempt, which River stores with the job.
func (m *jobMachine) late(t *rapid.T) {
	if j := m.any(t, (*modelJob).ended); j != nil {
		m.exec(`UPDATE maintenance.river_job SET metadata = metadata || '{"outcome": "failed", "reason": "late"}' WHERE id = $1`, j.id)
	}
}

func (m *jobMachine) cancelOne(t *rapid.T) {
	j := m.any(t, func(*modelJob) bool { return true })
	if j == nil {
		return
	}
	if _, err := m.main.Jobs.CancelJob(context.Background(), j.id, "a test", "tester"); err != nil {
		t.Fatal(err)
	}
	j.cancelled = j.cancelled || !j.ended()
	if j.waits() {
		j.state, j.outcome = "cancelled", "cancelled"
	}
}

func (m *jobMachine) retry(t *rapid.T) {
	j := m.any(t, (*modelJob).ended)
	if j == nil {
		return
	}
	_, err := m.main.Jobs.RetryJob(context.Background(), j.id)
	duplicate, ok := errors.AsType[*jobqueue.DuplicateJobError](err)
	if ok != m.active(j.user) || err != nil && !ok {
		t.Fatalf("retried is one of user %d, another one is there: %t: %v %v", j.user, m.active(j.user), duplicate, err)
	}
	if err == nil {
		j.state, j.outcome, j.cancelled = "available", "", false
	}
}

// check compares all jobs with the model.
func (m *jobMachine) check(t *rapid.T) {
	for _, j := range m.jobs {
		var state, outcome string
		row := m.sql.QueryRow(context.Background(), `SELECT state::text, coalesce(metadata ->> 'outcome', '')
			FROM maintenance.river_job WHERE id = $1`, j.id)
		if err := row.Scan(&state, &outcome); err != nil {
			t.Fatal(err)
		}
		if state != j.state || j.ended() && outcome != j.outcome {
			t.Fatalf("job %d is %s %s, want %s %s", j.id, state, outcome, j.state, j.outcome)
		}
	}
}

func TestJobs_WhateverHappensOneAttemptAtATimeWritesAndOneJobATargetWaits(t *testing.T) {
	l := newLab(assert.Parallel(t))
	rapid.Check(t, func(t *rapid.T) {
		l.exec(`TRUNCATE maintenance.river_job, maintenance.job_cancellations`)
		m := &jobMachine{lab: l}
		t.Repeat(map[string]func(*rapid.T){
			"queue": m.queue, "fetch": m.fetch, "write": m.write, "rescue": m.rescue, "finish": m.finish, "late": m.late,
			"cancel": m.cancelOne, "retry": m.retry, "": m.check,
		})
	})
}
