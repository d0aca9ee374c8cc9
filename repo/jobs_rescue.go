package repo

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// RescuedJob is a job whose attempt had died.
type RescuedJob struct {
	AttemptOf
	Kind    string
	Args    json.RawMessage
	Attempt int
	// RunID and TraceParent (W3C) are those of the run or job that has queued it, at QueuedAt.
	RunID, TraceParent  string
	QueuedAt, RescuedAt time.Time
	// Discarded says that it was the last attempt.
	Discarded bool
}

// attemptTraceSQL is the trace of AttemptOf.Trace. An attempt that began at no time began at the epoch, here and below.
const attemptTraceSQL = `encode(substr(sha256(convert_to(j.id || ' ' || (extract(epoch FROM greatest(j.attempted_at, 'epoch')) * 1000000)::bigint, 'UTF8')), 1, 16), 'hex')`

// rescueBatch is how many jobs are rescued at a time; the next look takes the rest.
const rescueBatch = 1000

// rescueJobsSQL: the job is available at once, whatever attempt it was. That its process died is not the job's fault, and
// what a process leaves behind is to be worked again within two minutes; one that kills its process is given up after
// its last attempt all the same.
const rescueJobsSQL = `
WITH dead AS MATERIALIZED (
  SELECT id, attempt >= max_attempts AS last
  FROM maintenance.river_job
  WHERE state = 'running' AND attempted_at < clock_timestamp() - $1::interval
  LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE maintenance.river_job AS j
SET state = CASE WHEN dead.last THEN 'discarded' ELSE 'available' END::maintenance.river_job_state,
    finalized_at = CASE WHEN dead.last THEN now() END,
    scheduled_at = CASE WHEN dead.last THEN j.scheduled_at ELSE now() END,
    metadata = j.metadata || jsonb_build_object('outcome', CASE WHEN dead.last THEN 'discarded' ELSE 'failed' END,
      'reason', '` + ReasonProcessGone + `', 'trace_id', ` + attemptTraceSQL + `),
    errors = array_append(j.errors, jsonb_build_object('at', greatest(j.attempted_at, 'epoch'), 'attempt', j.attempt, 'trace', '',
      'error', 'the process that worked it has died or lost the database'))
FROM dead WHERE j.id = dead.id
RETURNING j.id, j.attempted_at, j.kind, j.args, j.attempt, coalesce(j.metadata ->> 'run_id', ''),
  coalesce(j.metadata ->> 'traceparent', ''), j.created_at, clock_timestamp(), dead.last`

// RescueJobs lets jobs be tried again whose attempt began longer ago than any attempt lasts: the process that worked
// them is gone. It takes 1000 jobs at most.
func (d *Database) RescueJobs(ctx context.Context, lasts time.Duration) ([]RescuedJob, error) {
	return collect(ctx, d, "rescue jobs", func(row pgx.CollectableRow) (j RescuedJob, err error) {
		err = row.Scan(&j.ID, &j.AttemptedAt, &j.Kind, &j.Args, &j.Attempt, &j.RunID, &j.TraceParent, &j.QueuedAt, &j.RescuedAt, &j.Discarded)
		return j, err
	}, rescueJobsSQL, lasts, rescueBatch)
}
