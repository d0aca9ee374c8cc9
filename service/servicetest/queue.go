package servicetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// WithQueue gives a service a queue of jobs on main: e.service("", e.withQueue). Nothing is worked until e.work.
func (e *Estate) WithQueue(c *service.Config) { c.Queue = e.Queue() }

// Queue of jobs on main.
func (e *Estate) Queue() *scheduler.Queue {
	e.T.Helper()
	q, err := scheduler.NewQueue(e.Open[0], scheduler.QueueConfig{PollInterval: 50 * time.Millisecond})
	if err != nil {
		e.T.Fatal(err)
	}
	return q
}

// Insert inserts jobs as another session's transaction would, and returns how many were inserted.
func (e *Estate) Insert(jobs ...jobqueue.Job) (inserted int) {
	e.T.Helper()
	ctx := context.Background()
	tx, err := e.SQL["main"].Begin(ctx)
	if err != nil {
		e.T.Fatal(err)
	}
	if inserted, err = e.Queue().InsertJobs(ctx, tx, jobs); err != nil {
		e.T.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		e.T.Fatal(err)
	}
	return inserted
}

// JobOf is a job with nothing but its arguments.
func JobOf(args jobqueue.Args) jobqueue.Job { return jobqueue.Job{Args: args} }

// RescueSQL does what River's rescuer does for jobs whose attempts began too long ago.
const RescueSQL = `
UPDATE maintenance.river_job
SET state = 'retryable', scheduled_at = now(),
    errors = array_append(errors, jsonb_build_object('at', clock_timestamp(), 'attempt', attempt,
      'error', 'Stuck job rescued by JobRescuer', 'trace', '')),
    metadata = metadata || jsonb_build_object('river:rescue_count', coalesce((metadata ->> 'river:rescue_count')::int, 0) + 1)
WHERE state = 'running'`

// Rescue lets all running jobs be tried again, as if the time had passed after which River takes their attempts for dead.
func (e *Estate) Rescue() {
	e.T.Helper()
	e.Exec("main", RescueSQL)
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

// Work does one attempt of every waiting job of a kind, also of those that are due later, as River
// does it. It returns their number. Jobs that these queue wait for the next call. A job that failed
// may be tried again.
func (e *Estate) Work(s *service.Service, kind string) (worked int) {
	e.T.Helper()
	e.Exec("main", `CREATE TEMPORARY TABLE IF NOT EXISTS taken (id bigint, attempt integer, snoozes text)`)
	e.Exec("main", `TRUNCATE pg_temp.taken`)
	tag, err := e.SQL["main"].Exec(context.Background(), takeJobsSQL, kind)
	if err != nil {
		e.T.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		return 0
	}
	q := e.Queue()
	if err := q.Start(oneAttempt{OnlyKind{s, kind}, e}); err != nil {
		e.T.Fatal(err)
	}
	defer func() {
		if err := q.Stop(context.Background()); err != nil {
			e.T.Error(err)
		}
		e.Exec("main", returnWorkedSQL)
	}()
	devdb.Eventually(e.T, fmt.Sprintf("%d jobs %s to be processed", tag.RowsAffected(), kind), func() bool {
		return e.Value("main", leftJobsSQL) == "0"
	})
	return int(tag.RowsAffected())
}

// OnlyKind is a service that works one kind of job.
type OnlyKind struct {
	*service.Service
	Kind string
}

// JobKinds is that kind.
func (o OnlyKind) JobKinds() []string { return []string{o.Kind} }

const setWorkedAsideSQL = `UPDATE maintenance.river_job SET queue = 'worked_' || queue WHERE id = $1`

const returnWorkedSQL = `UPDATE maintenance.river_job SET queue = substr(queue, 8) WHERE queue LIKE 'worked\_%'`

// oneAttempt works every job once, also one that is to be tried again before the queue stops.
type oneAttempt struct {
	OnlyKind
	e *Estate
}

// WorkJob sets the job aside and works it. The database may be one whose transactions are serializable by themselves:
// those collide with what the queue writes meanwhile.
func (o oneAttempt) WorkJob(ctx context.Context, r job.Request) (job.Result, error) {
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err := pgx.BeginTxFunc(ctx, o.e.Open[0].Jobs.Pool(), readCommitted, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, setWorkedAsideSQL, r.ID)
		return err
	})
	if err != nil {
		return job.Result{}, err
	}
	return o.OnlyKind.WorkJob(ctx, r)
}

// Running puts a job that is running into the queue, and returns its attempt as the queue would
// hand it over.
func (e *Estate) Running(args jobqueue.Args) job.Request {
	e.T.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		e.T.Fatal(err)
	}
	r := job.Request{Kind: args.Kind(), Args: raw, Attempt: 1, MaxAttempts: 25}
	err = e.SQL["main"].QueryRow(context.Background(), `
		INSERT INTO maintenance.river_job (kind, args, state, attempt, attempted_at, max_attempts)
		VALUES ($1, $2, 'running', 1, clock_timestamp(), 25) RETURNING id, attempted_at`, r.Kind, string(raw)).Scan(&r.ID, &r.AttemptedAt)
	if err != nil {
		e.T.Fatal(err)
	}
	return r
}

// Written are the tables that the jobs of these tests change.
var Written = []string{
	"users", "members", "project_authorizations", "ghost_user_migrations", "namespaces", "namespace_details", "group_deletion_schedules",
	"projects", "issues", "notes", "project_repositories", "maintenance.group_removals", "maintenance.user_removals",
}

// Holds reports whether a job is held, by working it. The attempt of one that is not held ends as skipped.
func (e *Estate) Holds(s *service.Service, args jobqueue.Args) bool {
	e.T.Helper()
	request := e.Running(args)
	defer e.Exec("main", `DELETE FROM maintenance.river_job WHERE id = $1`, request.ID)
	return WorkHolds(e.T, s, request)
}

// WorkHolds is whether an attempt of a job waits instead of working.
func WorkHolds(t *testing.T, s *service.Service, request job.Request) bool {
	t.Helper()
	r, err := s.WorkJob(context.Background(), request)
	if err != nil || (r.Snooze > 0) == (r.Outcome == "skipped") {
		t.Fatalf("%s: %+v, %v", request.Kind, r, err)
	}
	return r.Snooze > 0
}

// EndJob lets a job be in a final state.
func (e *Estate) EndJob(id int64, state string) {
	e.T.Helper()
	e.Exec("main", `UPDATE maintenance.river_job SET state = $2::text::maintenance.river_job_state, finalized_at = now(),
		attempted_at = now(), attempt = 1 WHERE id = $1`, id, state)
}

// Placeholders are jobs delete_placeholder_user for the users 1 to n.
func Placeholders(n int64) (jobs []jobqueue.Job) {
	for id := range n {
		jobs = append(jobs, jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: id + 1}, RunID: "run"})
	}
	return jobs
}

// AttemptOf does an attempt of a job delete_user without the queue.
func (e *Estate) AttemptOf(s *service.Service, args jobqueue.DeleteUser, stopping chan struct{}) (job.Result, error) {
	e.T.Helper()
	r := e.Running(args)
	r.Stopping = stopping
	return Attempt(s, r)
}

// Attempt does an attempt of a job. One that was held because a busy machine did not tell the pauses
// in time is done again.
func Attempt(s *service.Service, r job.Request) (result job.Result, err error) {
	for range 20 {
		result, err = s.WorkJob(context.Background(), r)
		if err != nil || !strings.HasSuffix(result.Reason, run.PausesUnknown) {
			break
		}
	}
	return result, err
}
