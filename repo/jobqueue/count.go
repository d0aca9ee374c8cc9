package jobqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Count is the number of jobs of a kind in a state.
type Count struct {
	Kind, State string
	// Jobs is exact unless AtLeast: at most 10,000 of each kind and state are counted.
	Jobs    int64
	AtLeast bool
	// Overdue is how long the longest-due job has been waiting, among the 10,000 longest-due jobs of
	// each state and queue. 0 means that none is due.
	Overdue time.Duration
}

// countJobsSQL counts by the index of [Jobs.IndexJobs], and finds due jobs by River's fetch index
// in its order. The longest-due job comes first (all jobs have one priority), so the bound hides no
// job that has waited longer than the shown ones. The few kinds and queues are found by searching
// for the next one. A state is a range of one as in [listJobsOfSQL]. Completed jobs do not count.
const countJobsSQL = `
WITH RECURSIVE kinds (kind) AS (
  SELECT min(kind) FROM maintenance.river_job
  UNION ALL
  SELECT (SELECT j.kind FROM maintenance.river_job j WHERE j.kind > k.kind ORDER BY j.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
),
lines (state, queue) AS (
  SELECT s.state, (
    SELECT j.queue FROM maintenance.river_job j WHERE j.state = s.state ORDER BY j.queue LIMIT 1)
  FROM unnest('{available,scheduled,retryable}'::maintenance.river_job_state[]) AS s (state)
  UNION ALL
  SELECT l.state, (
    SELECT j.queue FROM maintenance.river_job j WHERE j.state = l.state AND j.queue > l.queue
    ORDER BY j.queue LIMIT 1)
  FROM lines l WHERE l.queue IS NOT NULL
),
due (kind, state, oldest) AS (
  SELECT j.kind, l.state, min(j.scheduled_at)
  FROM lines l
  CROSS JOIN LATERAL (
    SELECT r.kind, r.scheduled_at FROM maintenance.river_job r
    WHERE r.state = l.state AND r.queue = l.queue
      AND r.priority = 1 AND r.scheduled_at <= (SELECT clock_timestamp())
    ORDER BY r.scheduled_at, r.id LIMIT 10000
  ) j
  GROUP BY 1, 2
)
SELECT k.kind, s.state::text, c.jobs, c.jobs >= 10000, due.oldest, clock_timestamp()
FROM kinds k
CROSS JOIN unnest('{available,pending,scheduled,retryable,running,cancelled,discarded}'
  ::maintenance.river_job_state[]) AS s (state)
CROSS JOIN LATERAL (
  SELECT count(*) AS jobs FROM (
    SELECT FROM maintenance.river_job j
    WHERE j.kind = k.kind AND j.state >= s.state AND j.state <= s.state
    ORDER BY j.state, j.id LIMIT 10000
  ) counted
) c
LEFT JOIN due ON due.kind = k.kind AND due.state = s.state
WHERE c.jobs > 0
ORDER BY k.kind, s.state`

// CountJobs counts the jobs that are not completed, by kind and state.
func (d Jobs) CountJobs(ctx context.Context) ([]Count, error) {
	q := pg.NewQuery("count jobs", countJobsSQL)
	l := fencing.Limits{Statement: stmt.StatementTimeout}
	return pg.ReadRows(ctx, d.db, l, q, func(row pgx.CollectableRow) (c Count, err error) {
		var due, now time.Time
		err = row.Scan(&c.Kind, &c.State, &c.Jobs, &c.AtLeast, &due, &now)
		c.Overdue = stmt.Since(due, now)
		return c, err
	})
}

// FailedJobs counts jobs of one kind and reason (of delete_user) with a failed attempt.
type FailedJobs struct {
	Kind, Reason string
	// Waiting jobs will be retried, Discarded ones not. At most 1,001 of each state are counted, of
	// all kinds. AtLeast reports whether one of the states has more than 1,000.
	Waiting, Discarded int64
	AtLeast            bool
}

// failedJobsSQL has the order of the index: regardless of the statistics, it reads no job in
// another state.
const failedJobsSQL = `
SELECT j.kind, coalesce(j.args ->> 'reason', ''),
  count(*) FILTER (WHERE s.state = 'retryable'), count(*) FILTER (WHERE s.state = 'discarded'),
  greatest(sum(count(*) FILTER (WHERE s.state = 'retryable')) OVER (),
    sum(count(*) FILTER (WHERE s.state = 'discarded')) OVER ()) > 1000
FROM unnest('{retryable,discarded}'::maintenance.river_job_state[]) AS s (state)
CROSS JOIN LATERAL (
  SELECT kind, args FROM maintenance.river_job WHERE state = s.state ORDER BY queue LIMIT 1001) j
GROUP BY 1, 2 ORDER BY 1, 2`

// FailedJobs counts the jobs that wait for another attempt after a failed one, and the discarded
// jobs.
func (d Jobs) FailedJobs(ctx context.Context) ([]FailedJobs, error) {
	q := pg.NewQuery("count failed jobs", failedJobsSQL)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[FailedJobs])
}

// jobsOfRunSQL reads only the newest jobs, without an index by run.
const jobsOfRunSQL = `
SELECT ` + jobColumns + `
FROM maintenance.river_job
WHERE id > (SELECT coalesce(max(id), 0) FROM maintenance.river_job) - $3
  AND metadata ->> 'run_id' = $1
ORDER BY id LIMIT $2`

// JobsOfRun reads up to limit jobs that a run queued, the oldest first, among the newest jobs of
// all.
func (d Jobs) JobsOfRun(
	ctx context.Context, run string, limit, newest int,
) ([]QueuedJob, error) {
	q := pg.NewQuery("list the jobs of a run", jobsOfRunSQL, run, limit, newest)
	return pg.Collect(ctx, d.db, q, scanJob)
}
