package repo

import "context"

// waitingDeletionsSQL counts up to $1 of the jobs, and as many of the rows of the ghost migration.
const waitingDeletionsSQL = `
SELECT (SELECT count(*) FROM (
    SELECT FROM maintenance.river_job j
    WHERE j.kind = 'delete_user' AND j.state IN ('available', 'pending', 'scheduled', 'retryable', 'running') LIMIT $1) jobs)
  + (SELECT count(*) FROM (SELECT FROM {ghosts} LIMIT $1) ghosts)`

// WaitingDeletions counts the users who wait for their deletion, as jobs delete_user that have not ended or as rows of the
// ghost migration's queue. What is more than limit may be left out.
func (d *Database) WaitingDeletions(ctx context.Context, f UserFeatures, limit int, l Limits) (n int, err error) {
	sql := fill(waitingDeletionsSQL, "{ghosts}", quote(f.ghosts))
	err = d.readRow(ctx, l, newQuery("count the users who wait for their deletion", sql, limit), &n)
	return n, err
}
