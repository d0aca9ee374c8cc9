package control

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// How fast as many rows were removed lately. What a run or job takes besides its rows makes those that
// changed a few rows slow for each of them: they say nothing about many rows, nor the other way round.

// comparableSQL says that x changed between a quarter and four times as many rows as $1.
const comparableSQL = `x.changed BETWEEN greatest($1::bigint / 4, 1) AND 4 * $1::bigint`

const (
	// migrationSpeedSQL is of the last runs that have changed rows.
	migrationSpeedSQL = `
SELECT coalesce(sum(x.changed), 0)::bigint, coalesce(sum(x.took), interval '0')
FROM (
  SELECT r.finished_at - r.started_at AS took,
    coalesce((r.counts ->> 'moved_rows')::bigint, 0)
      + coalesce((r.counts ->> 'nullified_rows')::bigint, 0)
      + coalesce((r.counts ->> 'deleted_rows')::bigint, 0) AS changed
  FROM maintenance.runs r
  WHERE r.worker = 'ghost_user_migration' AND r.state = 'succeeded' AND NOT r.dry_run
  ORDER BY r.worker, r.state, r.id DESC LIMIT 50
) x WHERE ` + comparableSQL

	// removalSpeedSQL is of the jobs that removed groups among the last 10,000 receipts.
	removalSpeedSQL = `
SELECT coalesce(sum(x.changed), 0)::bigint, coalesce(sum(x.took), interval '0')
FROM (
  SELECT sum(r.rows) AS changed, max(r.at) - min(r.at) AS took
  FROM (SELECT job_id, worker, rows, at FROM maintenance.receipts ORDER BY sequence DESC LIMIT 10000) r
  WHERE r.worker = 'destroy_group' GROUP BY r.job_id
) x WHERE x.took > interval '0' AND ` + comparableSQL
)

// Speed is how many rows were changed in which time, lately, by runs or jobs that changed about as many
// as planned: by the migration of ghost users or, of groups, by their removal. Zero: there were none.
func (d History) Speed(
	ctx context.Context, kind string, planned int64, l fencing.Limits,
) (rows int64, took time.Duration, err error) {
	sql := migrationSpeedSQL
	if kind == KindGroup {
		sql = removalSpeedSQL
	}
	l.ReadOnly = true
	err = pg.ReadRow(ctx, d.db, l, pg.NewQuery("read the speed of deletions", sql, planned), &rows, &took)
	return rows, took, err
}
