package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Backlog counts the pending work of a worker in one database.
type Backlog struct {
	Pending, Due, Deferred, Dead int64
	// OldestAt is zero when nothing is pending.
	OldestAt time.Time
	// Partitions is the number of partitions of the queue, if it has any.
	Partitions int
	// Untracked is the number of parents whose deletions are not recorded, if TrackingKnown.
	Untracked     int
	TrackingKnown bool
	// AtLeast: counting stopped, so the figures are lower bounds.
	AtLeast bool
	// ReadAt is the time of reading, by the clock of the database.
	ReadAt time.Time
}

// BacklogCap is the limit up to which a backlog is counted exactly.
const BacklogCap = 1_000_000

// Capped turns counts above the cap into lower bounds.
func (b Backlog) Capped() Backlog {
	b.AtLeast = max(b.Pending, b.Due, b.Dead) > BacklogCap
	b.Pending, b.Due = min(b.Pending, BacklogCap), min(b.Due, BacklogCap)
	b.Dead = min(b.Dead, BacklogCap)
	b.Deferred = b.Pending - b.Due
	return b
}

// BacklogSample is the highest remaining work of a worker in all of its databases, in one step of
// the last day.
type BacklogSample struct {
	Worker string
	// At is the beginning of the step.
	At                           time.Time
	Pending, Due, Deferred, Dead int64
}

// sampleBacklogsSQL keeps one row for each step and worker, with the highest values of all servers.
// It prunes samples older than a day.
const sampleBacklogsSQL = `
WITH old AS (
  DELETE FROM maintenance.backlog_samples WHERE (minute, worker) IN (
    SELECT minute, worker FROM maintenance.backlog_samples
    WHERE minute < (SELECT clock_timestamp() - interval '25 hours') ORDER BY minute LIMIT 1000)
)
INSERT INTO maintenance.backlog_samples AS s (minute, worker, pending, due, deferred, dead)
SELECT date_bin(make_interval(secs => $1), clock_timestamp(), 'epoch'), n.worker, n.pending, n.due, n.deferred, n.dead
FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
  n(worker, pending, due, deferred, dead)
ON CONFLICT (minute, worker) DO UPDATE SET
  pending = greatest(s.pending, excluded.pending), due = greatest(s.due, excluded.due),
  deferred = greatest(s.deferred, excluded.deferred), dead = greatest(s.dead, excluded.dead)`

// SampleBacklogs adds samples to the current step, by the database's clock.
func (d History) SampleBacklogs(
	ctx context.Context, step time.Duration, samples []BacklogSample,
) error {
	var workers []string
	var pending, due, deferred, dead []int64
	for _, s := range samples {
		workers = append(workers, s.Worker)
		pending, due = append(pending, s.Pending), append(due, s.Due)
		deferred, dead = append(deferred, s.Deferred), append(dead, s.Dead)
	}
	_, err := pg.Exec(ctx, d.db, "save backlog samples", sampleBacklogsSQL,
		step.Seconds(), workers, pending, due, deferred, dead)
	return err
}

const backlogSamplesSQL = `
SELECT worker, date_bin(make_interval(secs => $1), minute, 'epoch') AS at,
  max(pending), max(due), max(deferred), max(dead)
FROM maintenance.backlog_samples WHERE minute > clock_timestamp() - interval '1 day'
GROUP BY 1, 2 ORDER BY 1, 2`

// BacklogSamples reads the samples of the last day, the highest of each step, by worker and time.
func (d History) BacklogSamples(ctx context.Context, step time.Duration) ([]BacklogSample, error) {
	q := pg.NewQuery("read backlog samples", backlogSamplesSQL, step.Seconds())
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[BacklogSample])
}
