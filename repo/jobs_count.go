package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// JobCount is how many jobs of a kind are in a state.
type JobCount struct {
	Kind, State string
	Jobs        int64
	// AtLeast: counting stopped.
	AtLeast bool
}

// countJobsSQL counts a state up to a limit, so that a queue of millions costs no more than a short one. What has been
// completed is not counted.
const countJobsSQL = `
SELECT found.kind, s.state::text, count(*), sum(count(*)) OVER (PARTITION BY s.state) >= $1
FROM unnest('{available,pending,scheduled,retryable,running,cancelled,discarded}'::maintenance.river_job_state[]) s(state)
CROSS JOIN LATERAL (SELECT j.kind FROM maintenance.river_job j WHERE j.state = s.state LIMIT $1) found
GROUP BY 1, s.state ORDER BY 1, s.state`

// CountJobs counts the jobs that are not completed, of each state up to limit.
func (d *Database) CountJobs(ctx context.Context, limit int) ([]JobCount, error) {
	return collect(ctx, d, "count jobs", func(row pgx.CollectableRow) (c JobCount, err error) {
		err = row.Scan(&c.Kind, &c.State, &c.Jobs, &c.AtLeast)
		return c, err
	}, countJobsSQL, limit)
}

// jobsOfRunSQL looks among the newest jobs only: there is no index by run.
const jobsOfRunSQL = `
SELECT ` + jobColumns + `
FROM maintenance.river_job
WHERE id > (SELECT coalesce(max(id), 0) FROM maintenance.river_job) - $3 AND metadata ->> 'run_id' = $1
ORDER BY id LIMIT $2`

// JobsOfRun reads up to limit jobs that a run queued, the oldest first, as far as they are among so many newest of all.
func (d *Database) JobsOfRun(ctx context.Context, run string, limit, newest int) ([]QueuedJob, error) {
	return collect(ctx, d, "list the jobs of a run", scanJob, jobsOfRunSQL, run, limit, newest)
}
