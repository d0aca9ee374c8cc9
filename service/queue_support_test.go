package service_test

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
)

// withQueue gives a service a queue of jobs on main: e.service("", e.withQueue). Nothing is worked until e.work.
func (e *estate) withQueue(c *service.Config) { c.Queue = e.queue() }

// queue of jobs on main.
func (e *estate) queue() *scheduler.Queue {
	e.t.Helper()
	q, err := scheduler.NewQueue(e.open[0], scheduler.QueueConfig{PollInterval: 10 * time.Millisecond})
	if err != nil {
		e.t.Fatal(err)
	}
	return q
}

// insert inserts jobs as somebody else's transaction would, and returns how many were inserted.
func (e *estate) insert(jobs ...repo.Job) (inserted int) {
	e.t.Helper()
	ctx := context.Background()
	tx, err := e.sql["main"].Begin(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	if inserted, err = e.queue().InsertJobs(ctx, tx, jobs); err != nil {
		e.t.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		e.t.Fatal(err)
	}
	return inserted
}

// rescueSQL does what River's rescuer does for jobs whose attempts began too long ago.
const rescueSQL = `
UPDATE maintenance.river_job
SET state = 'retryable', scheduled_at = now(),
    errors = array_append(errors, jsonb_build_object('at', clock_timestamp(), 'attempt', attempt,
      'error', 'Stuck job rescued by JobRescuer', 'trace', '')),
    metadata = metadata || jsonb_build_object('river:rescue_count', coalesce((metadata ->> 'river:rescue_count')::int, 0) + 1)
WHERE state = 'running'`

// rescue lets all running jobs be tried again, as if the time had passed after which River takes their attempts for dead.
func (e *estate) rescue() {
	e.t.Helper()
	e.exec("main", rescueSQL)
}

// takeJobsSQL makes waiting jobs due now, whenever they would be, and remembers how they were.
const takeJobsSQL = `
WITH due AS (
  UPDATE maintenance.river_job SET state = 'available', scheduled_at = now()
  WHERE kind = $1 AND state IN ('available', 'scheduled', 'retryable')
  RETURNING id, attempt, metadata ->> 'snoozes' AS snoozes
)
INSERT INTO pg_temp.taken SELECT id, attempt, snoozes FROM due`

// leftJobsSQL counts those of which no attempt has ended since.
const leftJobsSQL = `
SELECT count(*) FROM pg_temp.taken t JOIN maintenance.river_job j USING (id)
WHERE j.state = 'running'
   OR (j.state = 'available' AND j.attempt = t.attempt AND j.metadata ->> 'snoozes' IS NOT DISTINCT FROM t.snoozes)`

// work does one attempt of every waiting job of a kind, also of those that would be due later, as River does it, and
// returns how many there were. Jobs that these queue wait for the next call; a job that failed may be tried again.
func (e *estate) work(s *service.Service, kind string) (worked int) {
	e.t.Helper()
	e.exec("main", `CREATE TEMPORARY TABLE IF NOT EXISTS taken (id bigint, attempt integer, snoozes text)`)
	e.exec("main", `TRUNCATE pg_temp.taken`)
	tag, err := e.sql["main"].Exec(context.Background(), takeJobsSQL, kind)
	if err != nil {
		e.t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		return 0
	}
	q := e.queue()
	if err := q.Start(oneAttempt{onlyKind{s, kind}, e}); err != nil {
		e.t.Fatal(err)
	}
	defer func() {
		if err := q.Stop(context.Background()); err != nil {
			e.t.Error(err)
		}
		e.exec("main", returnWorkedSQL)
	}()
	for end := time.Now().Add(time.Minute); e.value("main", leftJobsSQL) != "0"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			e.t.Fatalf("%d jobs %s are not worked in a minute", tag.RowsAffected(), kind)
		}
	}
	return int(tag.RowsAffected())
}

// onlyKind is a service that works one kind of job.
type onlyKind struct {
	*service.Service
	kind string
}

func (o onlyKind) JobKinds() []string { return []string{o.kind} }

// Jobs that have been worked are in another queue, from which nobody takes them, until they are returned.
const (
	setWorkedAsideSQL = `UPDATE maintenance.river_job SET queue = 'worked_' || queue WHERE id = $1`
	returnWorkedSQL   = `UPDATE maintenance.river_job SET queue = substr(queue, 8) WHERE queue LIKE 'worked\_%'`
)

// oneAttempt works every job once, also one that is to be tried again before the queue stops.
type oneAttempt struct {
	onlyKind
	e *estate
}

// WorkJob sets the job aside and works it.
func (o oneAttempt) WorkJob(ctx context.Context, r service.JobRequest) (service.JobResult, error) {
	if _, err := o.e.open[0].Pool().Exec(ctx, setWorkedAsideSQL, r.ID); err != nil {
		return service.JobResult{}, err
	}
	return o.onlyKind.WorkJob(ctx, r)
}
