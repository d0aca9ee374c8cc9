package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// RescuedJob is a job whose attempt had died.
type RescuedJob struct {
	ID                   int64
	Kind                 string
	Attempt, MaxAttempts int
	RunID                string
	// Discarded says that it was the last attempt.
	Discarded bool
}

// rescueBatch is how many jobs are rescued at a time; the next look takes the rest.
const rescueBatch = 1000

// rescueJobsSQL: the delay after attempt n, n⁴ seconds ± 10 %, counts from the attempt's begin, for its end is unknown.
const rescueJobsSQL = `
WITH dead AS MATERIALIZED (
  SELECT id, attempt >= max_attempts AS last,
         attempted_at + make_interval(secs => attempt::float8 ^ 4 * (0.9 + 0.2 * random())) AS retry_at
  FROM maintenance.river_job
  WHERE state = 'running' AND attempted_at < clock_timestamp() - $1::interval
  LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE maintenance.river_job AS j
SET state = CASE WHEN dead.last THEN 'discarded' WHEN dead.retry_at <= now() THEN 'available' ELSE 'retryable' END::maintenance.river_job_state,
    finalized_at = CASE WHEN dead.last THEN now() END,
    scheduled_at = CASE WHEN dead.last THEN j.scheduled_at ELSE greatest(dead.retry_at, now()) END,
    metadata = j.metadata || jsonb_build_object('outcome', CASE WHEN dead.last THEN 'discarded' ELSE 'failed' END),
    errors = array_append(j.errors, jsonb_build_object('at', now(), 'attempt', j.attempt, 'trace', '',
      'error', 'the process that worked it has died or lost the database'))
FROM dead WHERE j.id = dead.id
RETURNING j.id, j.kind, j.attempt, j.max_attempts, coalesce(j.metadata ->> 'run_id', ''), dead.last`

// RescueJobs lets jobs be tried again whose attempt began longer ago than any attempt lasts: the process that worked
// them is gone. It takes 1000 jobs at most.
func (d *Database) RescueJobs(ctx context.Context, lasts time.Duration) ([]RescuedJob, error) {
	return collect(ctx, d, "rescue jobs", func(row pgx.CollectableRow) (j RescuedJob, err error) {
		err = row.Scan(&j.ID, &j.Kind, &j.Attempt, &j.MaxAttempts, &j.RunID, &j.Discarded)
		return j, err
	}, rescueJobsSQL, lasts, rescueBatch)
}
