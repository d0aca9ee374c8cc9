package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// DatabaseSample has the highest figures of a database in one step of the last day. nil means not
// known.
type DatabaseSample struct {
	Database string
	// At is the beginning of the step.
	At time.Time
	// Pending counts the pending items of all workers. Oldest is the age of the oldest in seconds.
	Pending *int64
	Oldest  *float64
	// Load is the highest load as a share of its limit.
	Load *float64
	// P50 and P99 are percentiles of the durations of statements, in seconds.
	P50, P99 *float64
}

// sampleDatabasesSQL keeps one row for each step and database, with the highest values of all
// servers. It prunes samples older than a day, as sampleBacklogsSQL does.
const sampleDatabasesSQL = `
WITH old AS (
  DELETE FROM maintenance.database_samples WHERE (minute, database) IN (
    SELECT minute, database FROM maintenance.database_samples
    WHERE minute < (SELECT clock_timestamp() - interval '25 hours') ORDER BY minute LIMIT 1000)
)
INSERT INTO maintenance.database_samples AS s (minute, database, pending, oldest, load, p50, p99)
SELECT date_bin(make_interval(secs => $1), clock_timestamp(), 'epoch'),
  n.database, n.pending, n.oldest, n.load, n.p50, n.p99
FROM unnest($2::text[], $3::bigint[], $4::float8[], $5::float8[], $6::float8[], $7::float8[])
  n(database, pending, oldest, load, p50, p99)
ON CONFLICT (minute, database) DO UPDATE SET
  pending = greatest(s.pending, excluded.pending), oldest = greatest(s.oldest, excluded.oldest),
  load = greatest(s.load, excluded.load),
  p50 = greatest(s.p50, excluded.p50), p99 = greatest(s.p99, excluded.p99)`

// SampleDatabases adds samples to the current step, by main's clock.
func (d History) SampleDatabases(
	ctx context.Context, step time.Duration, samples []DatabaseSample,
) error {
	var databases []string
	var pending []*int64
	var oldest, load, p50, p99 []*float64
	for _, s := range samples {
		databases, pending = append(databases, s.Database), append(pending, s.Pending)
		oldest, load = append(oldest, s.Oldest), append(load, s.Load)
		p50, p99 = append(p50, s.P50), append(p99, s.P99)
	}
	_, err := pg.Exec(ctx, d.db, "save database samples", sampleDatabasesSQL,
		step.Seconds(), databases, pending, oldest, load, p50, p99)
	return err
}

const databaseSamplesSQL = `
SELECT database, date_bin(make_interval(secs => $1), minute, 'epoch') AS at,
  max(pending), max(oldest), max(load), max(p50), max(p99)
FROM maintenance.database_samples WHERE minute > clock_timestamp() - interval '1 day'
GROUP BY 1, 2 ORDER BY 1, 2`

// DatabaseSamples reads the samples of the last day, the highest of each step, by database and
// time.
func (d History) DatabaseSamples(
	ctx context.Context, step time.Duration,
) ([]DatabaseSample, error) {
	q := pg.NewQuery("read database samples", databaseSamplesSQL, step.Seconds())
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[DatabaseSample])
}

// ChangedRows counts the rows that the runs of a worker changed. Dry runs do not count.
type ChangedRows struct {
	Worker string
	// At is the beginning of the step in which the runs started.
	At                     time.Time
	Runs, Deleted, Updated int64
}

// changedRowsOfDaySQL reads the runs of the last day by their ids, which begin with their time.
const changedRowsOfDaySQL = `
SELECT r.worker, date_bin(make_interval(secs => $1), r.started_at, 'epoch') AS at, count(*),
  coalesce(sum(t.deleted), 0)::bigint, coalesce(sum(t.updated), 0)::bigint
FROM maintenance.runs r CROSS JOIN LATERAL (
  SELECT sum((e ->> 'deleted')::bigint) AS deleted, sum((e ->> 'updated')::bigint) AS updated
  FROM jsonb_array_elements(r.tables) e) t
WHERE r.id >= (lpad(to_hex(floor(extract(epoch FROM now() - interval '24 hours 1 minute') * 1000)::bigint), 12, '0')
    || rpad('', 20, '0'))::uuid
  AND r.started_at > clock_timestamp() - interval '24 hours' AND NOT r.dry_run
GROUP BY 1, 2 ORDER BY 1, 2`

// ChangedRows reads the rows changed by the runs of the last 24 hours, by worker and step.
func (d History) ChangedRows(ctx context.Context, step time.Duration) ([]ChangedRows, error) {
	q := pg.NewQuery("read the changed rows", changedRowsOfDaySQL, step.Seconds())
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[ChangedRows])
}
