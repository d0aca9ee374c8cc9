package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The ledger of fires: maintenance.schedules says up to when the fires of a worker have their rows. Whoever moves that
// on writes the rows in the same statement; two who try at once wait for each other, and one finds nothing left to do.

// Ledger is where the fires of a worker stand.
type Ledger struct {
	Worker string
	// Cron is the schedule by which fires were accounted for last, AccountedUntil up to when; zero: never.
	Cron           string
	AccountedUntil time.Time
	// UsedAt is when a server that uses the worker last said so.
	UsedAt time.Time
	// Newest is the time of the newest fire of the ledger that is not in the future, Outcome its outcome; zero: there is none.
	Newest  time.Time
	Outcome string
	// NewestAbandoned: it is claimed, and its replica has not started its run for too long, or has given it back.
	// Abandoned: some fire is.
	NewestAbandoned, Abandoned bool
}

// abandonedClaimSQL is the condition for a claim (alias c) whose replica has died, or has given it back. $2 is the patience.
const abandonedClaimSQL = `c.outcome = 'claimed' AND (c.claimed_by = '' OR c.claimed_at < clock_timestamp() - $2::interval)`

// readLedgersSQL: fires of the future have rows if the clock was ahead and has been set back.
const readLedgersSQL = `
SELECT clock_timestamp(), w.name, coalesce(s.cron, ''), s.accounted_until, s.used_at, newest.fire_time, coalesce(newest.outcome, ''),
  coalesce(newest.abandoned, false),
  EXISTS (SELECT FROM maintenance.fires c WHERE c.worker = w.name AND ` + abandonedClaimSQL + `)
FROM unnest($1::text[]) AS w (name)
LEFT JOIN maintenance.schedules s ON s.worker = w.name
LEFT JOIN LATERAL (
  SELECT c.fire_time, c.outcome, ` + abandonedClaimSQL + ` AS abandoned
  FROM maintenance.fires c
  WHERE c.worker = w.name AND c.fire_time <= clock_timestamp() ORDER BY c.fire_time DESC LIMIT 1
) newest ON newest.fire_time > s.in_use_since`

// Ledgers reads where the fires of these workers stand, by their names, and the clock. A claim that has led to no run for longer than
// patience is abandoned.
func (d *Database) Ledgers(ctx context.Context, workers []string, patience time.Duration) (now time.Time, ledgers map[string]Ledger, err error) {
	rows, err := collect(ctx, d, "read the ledger of fires", func(row pgx.CollectableRow) (l Ledger, err error) {
		var until, used, newest *time.Time
		err = row.Scan(&now, &l.Worker, &l.Cron, &until, &used, &newest, &l.Outcome, &l.NewestAbandoned, &l.Abandoned)
		l.AccountedUntil, l.UsedAt, l.Newest = orZero(until), orZero(used), orZero(newest)
		return l, err
	}, readLedgersSQL, workers, patience)
	ledgers = make(map[string]Ledger, len(rows))
	for _, l := range rows {
		ledgers[l.Worker] = l
	}
	return now, ledgers, err
}

const openLedgerSQL = `
INSERT INTO maintenance.schedules (worker, cron, accounted_until, in_use_since, used_at)
VALUES ($1, $2, $3, $3, $3) ON CONFLICT DO NOTHING`

// OpenLedger begins the ledger of a worker that has none: fires up to since are nobody's.
func (d *Database) OpenLedger(ctx context.Context, worker, cron string, since time.Time) error {
	_, err := d.exec(ctx, "begin the ledger of fires", openLedgerSQL, worker, cron, since)
	return err
}

const useLedgersSQL = `
UPDATE maintenance.schedules SET used_at = clock_timestamp() WHERE worker = ANY ($1)`

// UseLedgers says that the workers are used, so that nobody closes their ledgers.
func (d *Database) UseLedgers(ctx context.Context, workers []string) error {
	_, err := d.exec(ctx, "say that workers are used", useLedgersSQL, workers)
	return err
}

// closeLedgerSQL leaves no claim behind: nobody would look at it any more.
const closeLedgerSQL = `
WITH closed AS (
  DELETE FROM maintenance.schedules WHERE worker = $1 AND used_at < clock_timestamp() - $2::interval RETURNING worker
)
UPDATE maintenance.fires c SET outcome = 'missed', reason = $3, run_id = NULL
FROM closed WHERE c.worker = closed.worker AND c.outcome = 'claimed'`

// CloseLedger ends the ledger of a worker that no server has used for so long. A claim in it has led to no run: it is
// recorded as missed, for this reason.
func (d *Database) CloseLedger(ctx context.Context, worker string, unused time.Duration, reason string) error {
	_, err := d.exec(ctx, "close the ledger of fires", closeLedgerSQL, worker, unused, reason)
	return err
}

// Accounting moves a ledger on.
type Accounting struct {
	// Ledger as it was read: if it has been moved since, nothing happens.
	Ledger Ledger
	// Cron is the schedule that now holds, Until up to when its fires are now accounted for.
	Cron  string
	Until time.Time
	// Passed are fires that nobody has run in time.
	Passed []time.Time
	// Claim, if it is not zero, is the fire that Replica takes in order to start the run RunID.
	Claim          time.Time
	RunID, Replica string
}

// accountFiresSQL moves any ledger whose end is a time that cannot be read. It leaves fires alone that have a row: they
// have run before the clock was set back, or an older version of this program has claimed them. A missed one has no run: it
// was missed by the wrong clock.
const accountFiresSQL = `
WITH moved AS (
  UPDATE maintenance.schedules SET cron = $4, accounted_until = $5
  WHERE worker = $1 AND cron = $2 AND (accounted_until = $3 OR accounted_until NOT BETWEEN '0001-01-02' AND '9999-12-30')
  RETURNING worker
), passed AS (
  INSERT INTO maintenance.fires (worker, fire_time, outcome, claimed_by, claimed_at)
  SELECT moved.worker, fire.due, 'missed', '', NULL
  FROM moved CROSS JOIN unnest($6::timestamptz[]) AS fire (due)
  ON CONFLICT DO NOTHING RETURNING 1
), claimed AS (
  INSERT INTO maintenance.fires (worker, fire_time, outcome, run_id, claimed_by, claimed_at)
  SELECT moved.worker, $7::timestamptz, 'claimed', $8::text::uuid, $9, clock_timestamp()
  FROM moved WHERE $7::timestamptz IS NOT NULL
  ON CONFLICT (worker, fire_time) DO UPDATE SET outcome = 'claimed', reason = '', run_id = EXCLUDED.run_id,
    claimed_by = EXCLUDED.claimed_by, claimed_at = EXCLUDED.claimed_at, started_at = NULL
  WHERE fires.outcome = 'missed' RETURNING 1
)
SELECT (SELECT count(*) FROM moved) = 1, (SELECT count(*) FROM passed), (SELECT count(*) FROM claimed) = 1`

// Accounted is what an [Accounting] came to.
type Accounted struct {
	// Moved: the ledger was as expected. Claimed: the fire is ours.
	Moved, Claimed bool
	// Passed is how many fires were recorded as missed.
	Passed int
}

// AccountFires writes what became of fires, and claims one, on one replica alone.
func (d *Database) AccountFires(ctx context.Context, a Accounting) (done Accounted, err error) {
	var runID *string
	if a.RunID != "" {
		runID = &a.RunID
	}
	err = d.queryRow(ctx, "account for fires", []any{&done.Moved, &done.Passed, &done.Claimed}, accountFiresSQL,
		a.Ledger.Worker, a.Ledger.Cron, a.Ledger.AccountedUntil, a.Cron, a.Until, a.Passed, orNull(a.Claim), runID, a.Replica)
	return done, err
}

// takeOverFireSQL locks the ledger, so that none is caught up in the same moment in which the next one is claimed.
const takeOverFireSQL = `
WITH ledger AS MATERIALIZED (
  SELECT worker FROM maintenance.schedules WHERE worker = $1 AND accounted_until = $4 FOR UPDATE
)
UPDATE maintenance.fires c
SET outcome = 'claimed', reason = $5, run_id = $6::text::uuid, claimed_by = $7, claimed_at = clock_timestamp(), started_at = NULL
FROM ledger
WHERE c.worker = ledger.worker AND c.fire_time = $3 AND (c.outcome = 'missed' OR ` + abandonedClaimSQL + `)`

// TakeOverFire claims the newest fire of a ledger, which was missed or abandoned: true for one replica alone, and only if
// the ledger has not been moved since it was read.
func (d *Database) TakeOverFire(ctx context.Context, l Ledger, patience time.Duration, reason, runID, replica string) (bool, error) {
	n, err := d.exec(ctx, "take over the fire", takeOverFireSQL, l.Worker, patience, l.Newest, l.AccountedUntil, reason, runID, replica)
	return n == 1, err
}

// missAbandonedFiresSQL: a claim leads to a run in the statement that ends it, so there is none.
const missAbandonedFiresSQL = `
UPDATE maintenance.fires c SET outcome = 'missed', reason = $4, run_id = NULL
WHERE c.worker = $1 AND c.fire_time <> $3 AND ` + abandonedClaimSQL

// MissAbandonedFires records the abandoned fires of a worker, all but the one at the time kept, as missed.
func (d *Database) MissAbandonedFires(ctx context.Context, worker string, patience time.Duration, kept time.Time, reason string) (int, error) {
	n, err := d.exec(ctx, "record abandoned fires", missAbandonedFiresSQL, worker, patience, kept, reason)
	return int(n), err
}
