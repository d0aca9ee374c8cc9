package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Failure is where the runs of a worker on a database fail at present.
type Failure struct {
	// Database as the runs have it: empty for a worker that has no turn by database.
	Database string
	// Reason and Error are those of the newest run.
	Reason, Error string
	// Since is the end of the first run that failed since the last that succeeded.
	Since time.Time
}

const failuresSQL = `
SELECT newest.database, newest.reason, newest.error, (
    SELECT x.finished_at FROM maintenance.runs x
    WHERE x.worker = $1 AND x.database = place.name AND x.state = 'failed' AND NOT x.dry_run AND x.id > coalesce((
      SELECT y.id FROM maintenance.runs y
      WHERE y.worker = $1 AND y.database = place.name AND y.state = 'succeeded' AND NOT y.dry_run
      ORDER BY y.id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')
    ORDER BY x.id LIMIT 1)
FROM unnest($2::text[]) AS place (name)
CROSS JOIN LATERAL (
  SELECT x.database, x.state, x.reason, x.error FROM maintenance.runs x
  WHERE x.worker = $1 AND x.database = place.name AND x.state IN ('succeeded', 'failed') AND NOT x.dry_run
  ORDER BY x.id DESC LIMIT 1
) newest
WHERE newest.state = 'failed'
ORDER BY 4`

// Failures are the databases on which the newest run of a worker failed, the one that has failed longest first. Dry runs
// do not count, nor do cancelled and skipped ones.
func (d *Database) Failures(ctx context.Context, worker string, databases []string) ([]Failure, error) {
	return collect(ctx, d, "read the last failures", func(row pgx.CollectableRow) (f Failure, err error) {
		err = row.Scan(&f.Database, &f.Reason, &f.Error, &f.Since)
		return f, err
	}, failuresSQL, worker, databases)
}
