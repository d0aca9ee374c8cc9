package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Failure is a database on which the runs of a worker currently fail.
type Failure struct {
	// Database is the one of the runs: empty for a worker that does not take turns by database.
	Database string
	// Reason and Error are those of the newest run.
	Reason, Error string
	// Since is the end of the first run that failed since the last success.
	Since time.Time
}

// failuresSQL compares failed runs of the worker $1 with its last success, for each database of $2.
// A database without a later failure has no row.
const failuresSQL = `
SELECT place.name, newest.reason, newest.error, oldest.finished_at
FROM unnest($2::text[]) AS place (name)
CROSS JOIN LATERAL (
  SELECT coalesce((
    SELECT x.id FROM maintenance.runs x
    WHERE x.worker = $1 AND x.database = place.name AND x.state = 'succeeded' AND NOT x.dry_run
    ORDER BY x.id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000') AS id
) success
CROSS JOIN LATERAL (
  SELECT x.reason, x.error FROM maintenance.runs x
  WHERE x.worker = $1 AND x.database = place.name AND x.state = 'failed' AND NOT x.dry_run AND x.id > success.id
  ORDER BY x.id DESC LIMIT 1
) newest
CROSS JOIN LATERAL (
  SELECT x.finished_at FROM maintenance.runs x
  WHERE x.worker = $1 AND x.database = place.name AND x.state = 'failed' AND NOT x.dry_run AND x.id > success.id
  ORDER BY x.id LIMIT 1
) oldest
ORDER BY oldest.finished_at`

// Failures returns the databases on which the newest run of a worker failed, the longest failing
// first. Dry, cancelled and skipped runs do not count.
func (d Runs) Failures(
	ctx context.Context, worker string, databases []string,
) ([]Failure, error) {
	q := pg.NewQuery("read the last failures", failuresSQL, worker, databases)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[Failure])
}
