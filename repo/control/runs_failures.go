package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Failure is where the runs of a worker on a database fail now.
type Failure struct {
	// Database as the runs have it: empty for a worker that has no turn by database.
	Database string
	// Reason and Error are those of the newest run.
	Reason, Error string
	// Since is the end of the first run that failed since the last that succeeded.
	Since time.Time
}

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

// Failures are the databases on which the newest run of a worker failed, the one that has failed
// longest first. Dry runs do not count, nor do cancelled and skipped ones.
func (d Runs) Failures(
	ctx context.Context, worker string, databases []string,
) ([]Failure, error) {
	q := pg.NewQuery("read the last failures", failuresSQL, worker, databases)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[Failure])
}
