package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// How a run starts: one statement reads the conditions of a start, and one records it. If the lease
// is in main, that statement also acquires it, and claims the fire. So no fire is claimed without a
// recorded run, and no lease is held that no record would close.

// StartState holds the conditions of a run's start.
type StartState struct {
	// Now is the clock of the database.
	Now time.Time
	// Flags are the feature flags that have been set.
	Flags map[string]bool
	// Pause is the current pause. A pause of all workers takes precedence. nil means none.
	Pause *Pause
}

const startStateSQL = `
SELECT clock_timestamp(),
  coalesce((SELECT jsonb_object_agg(name, enabled) FROM maintenance.feature_flags), '{}'),
  coalesce(p.worker, ''), coalesce(p.reason, ''), coalesce(p.paused_by, ''), p.since, p.until
FROM (SELECT) AS one LEFT JOIN LATERAL (
  SELECT worker, reason, paused_by, since, until FROM maintenance.pauses
  WHERE worker IN ($1, '*') AND (until IS NULL OR until > clock_timestamp())
  ORDER BY worker <> '*' LIMIT 1
) p ON true`

// StartState reads the clock, the feature flags and the pause of a worker.
func (d Runs) StartState(ctx context.Context, worker string) (s StartState, err error) {
	var p Pause
	into := []any{&s.Now, &s.Flags, &p.Worker, &p.Reason, &p.By, &p.Since, &p.Until}
	err = pg.QueryRow(ctx, d.db, "read pauses, flags and clock", into, startStateSQL, worker)
	if p.Worker != "" {
		s.Pause = &p
	}
	return s, err
}

// recordLeaseSQL acquires the lease $1 for the holder $2 and the time $3 while a row is recorded in
// the same statement. "" acquires none. It follows a FROM clause.
const recordLeaseSQL = `
  WHERE $1 <> '' AND ` + leaseIsFreeSQL + leaseConflictSQL + `
  RETURNING l.epoch`

//nolint:unqueryvet // run.* are the columns of its RETURNING
const insertRunSQL = `
WITH run AS (
  INSERT INTO maintenance.runs (replica, heartbeat_ttl, id, worker, database, trigger, state, reason,
    dry_run, request_id, requested_by, trace_id, error, finished_at)
  VALUES ($2, $3::interval, $4::text::uuid, $5, $6, $7, $8, $9, $10, nullif($11, ''), $12, $13, $14,
    CASE WHEN $8 <> 'running' THEN clock_timestamp() END)
  ON CONFLICT DO NOTHING
  RETURNING ` + runColumns + `
), lease AS (` + leaseValuesSQL + `
  FROM run` + recordLeaseSQL + `
)
SELECT run.*, coalesce(lease.epoch, 0) FROM run LEFT JOIN lease ON true`

// InsertRun records a new run. A run whose process sends no heartbeat for ttl is presumed dead.
//
// InsertRun also acquires the lease of this name in this database, if it is free, for the run's
// replica and for ttl. Its epoch is then in stored.LeaseEpoch, otherwise 0. The record has the
// epoch from the first [Runs.SaveProgress].
//
// If the request id has been used before, InsertRun returns that run, and created is false. If that
// run has been deleted meanwhile, the error is [dberr.ErrNotFound].
func (d Runs) InsertRun(
	ctx context.Context, run Run, ttl time.Duration, lease string,
) (stored Run, created bool, err error) {
	q := pg.NewQuery("record the run", insertRunSQL, lease, run.Replica, ttl, run.ID, run.Worker,
		run.Database, run.Trigger, run.State, run.Reason, run.DryRun, run.RequestID, run.RequestedBy,
		run.TraceID, run.Error)
	runs, err := pg.Collect(ctx, d.db, q, func(row pgx.CollectableRow) (r Run, err error) {
		var epoch int64
		err = r.scan(row, &epoch)
		r.LeaseEpoch = epoch
		return r, err
	})
	if err != nil {
		return Run{}, false, err
	}
	if len(runs) == 1 {
		return runs[0], true, nil
	}
	stored, err = d.RunByRequest(ctx, run.RequestID)
	return stored, false, err
}

// claimFireSQL: of fires with a row, only a missed one is claimed, which a wrong clock may have
// caused. The ledger stays locked until the commit. Another server waits, and then finds it
// advanced or the fire claimed.
const claimFireSQL = `
WITH moved AS (
  UPDATE maintenance.schedules SET cron = $6, accounted_until = $7
  WHERE worker = $4 AND cron = $5 AND (accounted_until = $8 OR ` + noLedgerTimeSQL + `)
  RETURNING worker
), fire AS (
  INSERT INTO maintenance.fires AS c
    (worker, fire_time, outcome, reason, run_id, claimed_by, claimed_at, started_at)
  SELECT moved.worker, $9::timestamptz, CASE WHEN $10 = 'skipped' THEN 'skipped' ELSE 'ran' END, $11,
    $12::text::uuid, $2, clock_timestamp(), CASE WHEN $10 <> 'skipped' THEN clock_timestamp() END
  FROM moved
  ON CONFLICT (worker, fire_time) DO UPDATE SET outcome = EXCLUDED.outcome, reason = EXCLUDED.reason,
    run_id = EXCLUDED.run_id, claimed_by = EXCLUDED.claimed_by, claimed_at = EXCLUDED.claimed_at,
    started_at = EXCLUDED.started_at
  WHERE c.outcome = 'missed'
  RETURNING worker, started_at
), lease AS (` + leaseValuesSQL + `
  FROM fire` + recordLeaseSQL + `
)
INSERT INTO maintenance.runs (id, worker, replica, heartbeat_ttl, database, trigger, state, reason,
  requested_by, trace_id, error, lease_epoch, started_at, finished_at)
SELECT $12::text::uuid, fire.worker, $2, $3::interval, $13, 'schedule', $10, $14, $15, $16, $17,
  coalesce(lease.epoch, 0), coalesce(fire.started_at, clock_timestamp()),
  CASE WHEN $10 <> 'running' THEN clock_timestamp() END
FROM fire LEFT JOIN lease ON true
RETURNING ` + runColumns

// ClaimFire claims the fire run.Fire and records its run. The run's state decides the fire's
// outcome: [RunSkipped] or any other. ClaimFire also acquires a lease, as [Runs.InsertRun] does. If
// another server has claimed the fire or advanced the ledger, the error is [dberr.ErrNotFound]: no
// run was recorded and no lease acquired. The ledger advances even then, if the fire has a row.
func (d Runs) ClaimFire(
	ctx context.Context, s LedgerStep, run Run, ttl time.Duration, lease string,
) (stored Run, err error) {
	return oneRun(ctx, d.db, "claim the scheduled run", claimFireSQL, lease, run.Replica, ttl,
		s.Ledger.Worker, s.Ledger.Cron, s.Cron, s.Until, s.Ledger.AccountedUntil,
		run.Fire, run.State, s.Reason, run.ID, run.Database, run.Reason,
		run.RequestedBy, run.TraceID, run.Error)
}

const refuseRunSQL = `
WITH fire AS (
  UPDATE maintenance.fires SET outcome = 'skipped', reason = $3, started_at = NULL
  WHERE $2 = 'skipped' AND worker = $5 AND fire_time = $6 AND run_id = $1::text::uuid
)
UPDATE maintenance.runs SET state = $2, reason = $3, error = $4, finished_at = clock_timestamp()
WHERE id = $1::text::uuid AND state = 'running'
RETURNING ` + runColumns

// RefuseRun ends a recorded scheduled run that cannot start, with its fire, as skipped, or as
// failed. If it has ended otherwise, the error is [dberr.ErrNotFound].
func (d Runs) RefuseRun(ctx context.Context, run Run) (Run, error) {
	return oneRun(ctx, d.db, "record why the run does not start", refuseRunSQL,
		run.ID, run.State, run.Reason, run.Error, run.Worker, orNull(run.Fire))
}
