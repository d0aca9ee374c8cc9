package repo

import (
	"context"
	"time"
)

// How fast rows were removed lately.

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
) x WHERE x.changed > 0`

	// removalSpeedSQL is of the last jobs that have removed groups.
	removalSpeedSQL = `
SELECT coalesce(sum(x.changed), 0)::bigint, coalesce(sum(x.worked), interval '0')
FROM (
  SELECT r.worked, (
    SELECT coalesce(sum((t.value ->> 0)::bigint + (t.value ->> 1)::bigint), 0)
    FROM jsonb_each(r.tables) t) AS changed
  FROM maintenance.job_results r
  WHERE EXISTS (
    SELECT FROM maintenance.river_job j WHERE j.id = r.job_id AND j.kind = 'destroy_group' OFFSET 0)
  ORDER BY r.job_id DESC LIMIT 50
) x WHERE x.changed > 0`
)

// Speed is how many rows were changed in which time, lately: by the migration of ghost users or, of
// groups, by their removal. Zero: nothing has been measured.
func (d *Database) Speed(
	ctx context.Context, kind string, l Limits,
) (rows int64, took time.Duration, err error) {
	sql := migrationSpeedSQL
	if kind == KindGroup {
		sql = removalSpeedSQL
	}
	l.ReadOnly = true
	err = d.readRow(ctx, l, newQuery("read the speed of deletions", sql), &rows, &took)
	return rows, took, err
}
