package control

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// The recent speed of removing a similar number of rows. The fixed cost of a run or job makes small
// ones slow per row: they predict nothing about many rows, or the other way round.

// comparableSQL: x changed between a quarter and four times as many rows as $1.
const comparableSQL = `x.changed BETWEEN greatest($1::bigint / 4, 1) AND 4 * $1::bigint`

const (
	// migrationSpeedSQL reads the last runs that have changed rows.
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

	// removalSpeedSQL reads the jobs that removed groups among the last 10,000 receipts.
	removalSpeedSQL = `
SELECT coalesce(sum(x.changed), 0)::bigint, coalesce(sum(x.took), interval '0')
FROM (
  SELECT sum(r.rows) AS changed, max(r.at) - min(r.at) AS took
  FROM (SELECT job_id, worker, rows, at FROM maintenance.receipts ORDER BY sequence DESC LIMIT 10000) r
  WHERE r.worker = 'destroy_group' GROUP BY r.job_id
) x WHERE x.took > interval '0' AND ` + comparableSQL
)

// Speed returns the number and duration of recent row changes by comparable runs or jobs. These are
// the migration of ghost users and, for groups, their removal. Comparable ones changed about as
// many rows as planned. Zero means that there were none.
func (d History) Speed(
	ctx context.Context, kind string, planned int64, l fencing.Limits,
) (rows int64, took time.Duration, err error) {
	sql := migrationSpeedSQL
	if kind == KindGroup {
		sql = removalSpeedSQL
	}
	l.ReadOnly = true
	err = pg.ReadRow(ctx, d.db, l, pg.NewQuery("read the deletion speed", sql, planned), &rows, &took)
	return rows, took, err
}
