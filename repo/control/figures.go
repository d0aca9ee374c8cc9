package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// WorkerFigures are the figures of a worker, from the records in main, for metrics and the status.
type WorkerFigures struct {
	Worker string
	// Paused is how long the worker's pause, or that of all workers, has been in force. 0 means none.
	Paused time.Duration
	// Missed is the number of scheduled runs missed since the last one that was not, among the newest
	// 100 of the ledger. Since is the time of the first.
	Missed int
	Since  time.Time
	// Unsuccessful counts those of these 100 that are later than the start of the last successful run.
	// They were missed, found the lease held, or have a failed run. Databases are not separated: for a
	// worker that takes turns, a success on any of them restarts the count.
	Unsuccessful int64
	// Cron is the schedule of the last accounting, AccountedUntil its end. Zero means never. Now is
	// the clock.
	Cron                string
	AccountedUntil, Now time.Time
}

const workerFiguresSQL = `
SELECT w.name, coalesce(s.cron, ''), s.accounted_until, clock_timestamp(),
  (SELECT min(p.since) FROM maintenance.pauses p
   WHERE p.worker IN (w.name, '*') AND (p.until IS NULL OR p.until > clock_timestamp())),
  newest.missed, newest.since, newest.unsuccessful
FROM unnest($1::text[]) AS w (name)
LEFT JOIN maintenance.schedules s ON s.worker = w.name
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE f.streak) AS missed, min(f.fire_time) FILTER (WHERE f.streak) AS since,
    count(*) FILTER (WHERE (f.outcome = 'missed' OR f.reason = 'LEASE_HELD' OR r.state = 'failed')
      AND f.fire_time > coalesce((
        SELECT x.started_at FROM maintenance.runs x
        WHERE x.worker = w.name AND x.state = 'succeeded' AND NOT x.dry_run ORDER BY x.id DESC LIMIT 1), '-infinity')
    ) AS unsuccessful
  FROM (
    SELECT fire_time, outcome, reason, run_id, bool_and(outcome = 'missed') OVER (ORDER BY fire_time DESC) AS streak
    FROM maintenance.fires
    WHERE worker = w.name AND fire_time > s.in_use_since AND fire_time <= clock_timestamp()
    ORDER BY fire_time DESC LIMIT 100
  ) f
  LEFT JOIN maintenance.runs r ON r.id = f.run_id
) newest`

// WorkerFigures reads the figures of these workers.
func (d History) WorkerFigures(ctx context.Context, workers []string) ([]WorkerFigures, error) {
	q := pg.NewQuery("read worker statistics", workerFiguresSQL, workers)
	return pg.Collect(ctx, d.db, q, func(row pgx.CollectableRow) (f WorkerFigures, err error) {
		var paused time.Time
		err = row.Scan(&f.Worker, &f.Cron, &f.AccountedUntil, &f.Now, &paused, &f.Missed, &f.Since, &f.Unsuccessful)
		f.Paused = stmt.Since(paused, f.Now)
		return f, err
	})
}

// RunFigures are the figures of a worker's runs on a database, for metrics. Dry runs do not count.
type RunFigures struct {
	// Worker and Database are the requested ones. Database is empty for a worker that does not take
	// turns by database.
	Worker, Database string
	// Running is how long the current run has been running. Failing is how long runs have failed
	// without a success, up to now, while the worker is in use. 0 means none.
	Running, Failing time.Duration
	// LastSuccess is the end of the last run that succeeded. Zero means that none is on record.
	LastSuccess time.Time
}

// runFiguresSQL reads failures from the end of the last success on, and from a day before the
// worker came into use. The ids of runs contain the time of other clocks, and started_at has no
// index.
const runFiguresSQL = `
SELECT p.worker, p.database, success.finished_at, clock_timestamp(),
  (SELECT min(x.started_at) FROM maintenance.runs x
   WHERE x.worker = p.worker AND x.database = p.database AND x.state = 'running' AND NOT x.dry_run
     AND x.heartbeat_at >= clock_timestamp() - x.heartbeat_ttl),
  (SELECT x.finished_at FROM maintenance.runs x
   WHERE x.worker = p.worker AND x.database = p.database AND x.state = 'failed' AND NOT x.dry_run
     AND x.id > greatest(success.id, '00000000-0000-0000-0000-000000000000', rpad(lpad(to_hex((1000 *
       extract(epoch FROM least(greatest(s.in_use_since, '1970-01-02'), '9999-12-31') - interval '1 day'))::bigint),
       12, '0'), 32, '0')::uuid)
     AND x.started_at > coalesce(s.in_use_since, '-infinity')
   ORDER BY x.id LIMIT 1)
FROM unnest($1::text[], $2::text[]) AS p (worker, database)
LEFT JOIN maintenance.schedules s ON s.worker = p.worker
LEFT JOIN LATERAL (
  SELECT x.id, x.finished_at FROM maintenance.runs x
  WHERE x.worker = p.worker AND x.database = p.database AND x.state = 'succeeded' AND NOT x.dry_run
  ORDER BY x.id DESC LIMIT 1
) success ON true`

// RunFigures reads the figures of the runs of workers[i] on databases[i].
func (d History) RunFigures(
	ctx context.Context, workers, databases []string,
) ([]RunFigures, error) {
	q := pg.NewQuery("read run statistics", runFiguresSQL, workers, databases)
	return pg.Collect(ctx, d.db, q, func(row pgx.CollectableRow) (f RunFigures, err error) {
		var now, began, failed time.Time
		err = row.Scan(&f.Worker, &f.Database, &f.LastSuccess, &now, &began, &failed)
		f.Running, f.Failing = stmt.Since(began, now), stmt.Since(failed, now)
		return f, err
	})
}
