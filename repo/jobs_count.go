package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// JobCount is how many jobs of a kind are in a state.
type JobCount struct {
	Kind, State string
	// Jobs is exact unless AtLeast: of each state, 10,000 in each of River's queues are counted,
	// whatever their kinds.
	Jobs    int64
	AtLeast bool
	// Overdue is for how long the one that is due longest has waited to be worked, among those that
	// are counted; 0: none is due.
	Overdue time.Duration
}

// countJobsSQL reads each state and queue by River's index of what to fetch, in its order: what is
// due longest comes first (all jobs have one priority), so the bound hides no job that has waited
// longer than those it shows. The queues of a state are found by looking for the next one. What has
// been completed is not counted.
const countJobsSQL = `
WITH RECURSIVE lines (state, queue) AS (
  SELECT s.state, (
    SELECT j.queue FROM maintenance.river_job j WHERE j.state = s.state ORDER BY j.queue LIMIT 1)
  FROM unnest('{available,pending,scheduled,retryable,running,cancelled,discarded}'
    ::maintenance.river_job_state[]) AS s (state)
  UNION ALL
  SELECT l.state, (
    SELECT j.queue FROM maintenance.river_job j WHERE j.state = l.state AND j.queue > l.queue
    ORDER BY j.queue LIMIT 1)
  FROM lines l WHERE l.queue IS NOT NULL
)
SELECT c.kind, c.state::text, sum(c.jobs)::bigint, bool_or(c.full),
  min(c.oldest) FILTER (WHERE c.state IN ('available', 'retryable', 'scheduled')), clock_timestamp()
FROM (
  SELECT j.kind, l.state, count(*) AS jobs, min(j.scheduled_at) AS oldest,
    sum(count(*)) OVER (PARTITION BY l.state, l.queue) >= 10000 AS full
  FROM lines l
  CROSS JOIN LATERAL (
    SELECT r.kind, r.scheduled_at FROM maintenance.river_job r
    WHERE r.state = l.state AND r.queue = l.queue
    ORDER BY r.priority, r.scheduled_at, r.id LIMIT 10000
  ) j
  GROUP BY j.kind, l.state, l.queue
) c
GROUP BY 1, c.state ORDER BY 1, c.state`

// CountJobs counts the jobs that are not completed, by kind and state.
func (d *Database) CountJobs(ctx context.Context) ([]JobCount, error) {
	q := newQuery("count jobs", countJobsSQL)
	return collect(ctx, d, q, func(row pgx.CollectableRow) (c JobCount, err error) {
		var due *time.Time
		var now time.Time
		err = row.Scan(&c.Kind, &c.State, &c.Jobs, &c.AtLeast, &due, &now)
		c.Overdue = since(due, now)
		return c, err
	})
}

// FailedJobs are jobs of one kind and reason (of delete_user) of which an attempt has failed.
type FailedJobs struct {
	Kind, Reason string
	// Waiting will be retried, Discarded not. AtLeast says that of one of the states there are
	// more than the 10,000, of all kinds, that are counted.
	Waiting, Discarded int64
	AtLeast            bool
}

// failedJobsSQL is ordered as the index is: whatever the statistics say, no job in another state is
// read.
const failedJobsSQL = `
SELECT j.kind, coalesce(j.args ->> 'reason', ''),
  count(*) FILTER (WHERE s.state = 'retryable'), count(*) FILTER (WHERE s.state = 'discarded'),
  greatest(sum(count(*) FILTER (WHERE s.state = 'retryable')) OVER (),
    sum(count(*) FILTER (WHERE s.state = 'discarded')) OVER ()) >= 10000
FROM unnest('{retryable,discarded}'::maintenance.river_job_state[]) AS s (state)
CROSS JOIN LATERAL (
  SELECT kind, args FROM maintenance.river_job WHERE state = s.state ORDER BY queue LIMIT 10000) j
GROUP BY 1, 2 ORDER BY 1, 2`

// FailedJobs counts the jobs that wait for another attempt after one that failed, and those that
// have been given up.
func (d *Database) FailedJobs(ctx context.Context) ([]FailedJobs, error) {
	q := newQuery("count failed jobs", failedJobsSQL)
	return collect(ctx, d, q, pgx.RowToStructByPos[FailedJobs])
}

// jobsOfRunSQL looks among the newest jobs only: there is no index by run.
const jobsOfRunSQL = `
SELECT ` + jobColumns + `
FROM maintenance.river_job
WHERE id > (SELECT coalesce(max(id), 0) FROM maintenance.river_job) - $3
  AND metadata ->> 'run_id' = $1
ORDER BY id LIMIT $2`

// JobsOfRun reads up to limit jobs that a run queued, the oldest first, as far as they are among so
// many newest of all.
func (d *Database) JobsOfRun(
	ctx context.Context, run string, limit, newest int,
) ([]QueuedJob, error) {
	q := newQuery("list the jobs of a run", jobsOfRunSQL, run, limit, newest)
	return collect(ctx, d, q, scanJob)
}
