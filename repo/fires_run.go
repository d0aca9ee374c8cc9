package repo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrFireLost means that a fire is not ours any more: its run did not start in time. Nothing was changed.
var ErrFireLost = errors.New("fire lost")

// startFireSQL: the claim ends and the run begins in one statement, so a claim without a run means that there is none.
const startFireSQL = `
WITH fire AS (
  UPDATE maintenance.fires SET outcome = 'ran', started_at = clock_timestamp()
  WHERE worker = $2 AND fire_time = $3 AND run_id = $1::text::uuid AND outcome = 'claimed'
  RETURNING worker
)
INSERT INTO maintenance.runs (id, worker, database, trigger, state, requested_by, replica, trace_id, heartbeat_ttl)
SELECT $1::text::uuid, fire.worker, $4, 'schedule', 'running', $5, $6, $7, $8::interval FROM fire
RETURNING ` + runColumns

// StartFire records the run of a fire that was claimed for it, or returns [ErrFireLost]. A run whose process gives no
// sign of life for heartbeatTTL is taken for dead.
func (d *Database) StartFire(ctx context.Context, run Run, heartbeatTTL time.Duration) (Run, error) {
	stored, err := d.oneRun(ctx, "record the fire's run", startFireSQL, run.ID, run.Worker, run.Fire, run.Database,
		run.RequestedBy, run.Replica, run.TraceID, heartbeatTTL)
	return stored, d.fireLost(run, err)
}

// endFireSQL: the run has begun if it was its lease that could not be had.
const endFireSQL = `
WITH fire AS (
  UPDATE maintenance.fires SET outcome = $9, reason = CASE WHEN $9 = 'ran' THEN reason ELSE $10 END,
    started_at = CASE WHEN $9 = 'ran' THEN coalesce(started_at, clock_timestamp()) END
  WHERE worker = $2 AND fire_time = $3 AND run_id = $1::text::uuid AND outcome IN ('claimed', 'ran')
  RETURNING worker
)
INSERT INTO maintenance.runs AS r (id, worker, database, trigger, state, requested_by, replica, trace_id, heartbeat_ttl, reason, error, finished_at)
SELECT $1::text::uuid, fire.worker, $4, 'schedule', $7, $5, $6, $11, interval '0', $10, $8, clock_timestamp() FROM fire
ON CONFLICT (id) DO UPDATE
SET state = EXCLUDED.state, reason = EXCLUDED.reason, error = EXCLUDED.error, finished_at = EXCLUDED.finished_at
WHERE r.state = 'running'
RETURNING ` + runColumns

// EndFire records that the run of a fire could not start, with the run as skipped or failed, or returns [ErrFireLost].
func (d *Database) EndFire(ctx context.Context, run Run) (Run, error) {
	outcome := FireRan
	if run.State == RunSkipped {
		outcome = FireSkipped
	}
	stored, err := d.oneRun(ctx, "record the fire's end", endFireSQL, run.ID, run.Worker, run.Fire, run.Database,
		run.RequestedBy, run.Replica, run.State, run.Error, outcome, run.Reason, run.TraceID)
	return stored, d.fireLost(run, err)
}

func (d *Database) fireLost(run Run, err error) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("start the run of %s on %s: %w", run.Fire.UTC().Format(time.RFC3339), d.Name, ErrFireLost)
	}
	return err
}

// giveBackFireSQL leaves the fire no run id: a statement that would start its run, and is still on its way, then finds
// the fire lost. The run may have been taken for dead meanwhile.
const giveBackFireSQL = `
WITH run AS (
  DELETE FROM maintenance.runs WHERE id = $3::text::uuid AND (state = 'running' OR (state = 'failed' AND starts_with(error, ` + abandonedSQL + `)))
  RETURNING 1
)
UPDATE maintenance.fires SET outcome = 'claimed', claimed_by = '', run_id = NULL, started_at = NULL
WHERE worker = $1 AND fire_time = $2 AND run_id = $3::text::uuid
  AND (outcome = 'claimed' OR (outcome = 'ran' AND EXISTS (SELECT FROM run)))`

// GiveBackFire lets others take over a fire whose run will not start here, and forgets the run: it must not have worked,
// and never will.
func (d *Database) GiveBackFire(ctx context.Context, worker string, fire time.Time, runID string) error {
	_, err := d.exec(ctx, "give back the fire", giveBackFireSQL, worker, fire, runID)
	return err
}

// giveBackDeadFiresSQL looks at the newest fire of each worker, the one that may still be taken over. A run of a fire has
// its epoch on record before it works: without one it has done nothing. A lease that it may have taken has expired.
const giveBackDeadFiresSQL = `
WITH newest AS MATERIALIZED (
  SELECT f.worker, f.fire_time, f.run_id
  FROM unnest($1::text[]) AS w (name) CROSS JOIN LATERAL (
    SELECT c.worker, c.fire_time, c.run_id, c.outcome FROM maintenance.fires c
    WHERE c.worker = w.name AND c.fire_time <= clock_timestamp() ORDER BY c.fire_time DESC LIMIT 1
  ) f
  WHERE f.outcome = 'ran'
), dead AS (
  DELETE FROM maintenance.runs r USING newest n
  WHERE r.id = n.run_id AND r.trigger = 'schedule' AND r.lease_epoch = 0
    AND (r.state = 'running' OR (r.state = 'failed' AND starts_with(r.error, ` + abandonedSQL + `)))
    AND r.heartbeat_at < clock_timestamp() - r.heartbeat_ttl - interval '5 s'
  RETURNING r.id
)
UPDATE maintenance.fires c SET outcome = 'claimed', claimed_by = '', run_id = NULL, started_at = NULL
FROM newest n JOIN dead ON dead.id = n.run_id
WHERE c.worker = n.worker AND c.fire_time = n.fire_time AND c.run_id = n.run_id AND c.outcome = 'ran'`

// GiveBackDeadFires lets others take over the newest fires of workers whose processes died before their runs began to
// work, and forgets those runs.
func (d *Database) GiveBackDeadFires(ctx context.Context, workers []string) error {
	_, err := d.exec(ctx, "give back fires", giveBackDeadFiresSQL, workers)
	return err
}
