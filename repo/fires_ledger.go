package repo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The ledger of fires: maintenance.schedules says up to when the fires of a worker have their rows.
// One statement records fires as missed, one claims a fire; both move the ledger on. Two servers
// that try at once wait for each other, and one finds that the ledger is not as it has read it, or
// that the fire is taken.

// Ledger is where the fires of a worker stand.
type Ledger struct {
	Worker string
	// Cron is the schedule by which fires were accounted for last, AccountedUntil up to when; zero:
	// never.
	Cron           string
	AccountedUntil time.Time
	// UsedAt is when a server that uses the worker last said so.
	UsedAt time.Time
	// Newest is the time of the newest fire of the ledger that is not in the future, Outcome its
	// outcome; zero: there is none.
	Newest  time.Time
	Outcome string
	// NewestAbandoned: it is claimed, and its replica has not started its run for too long, or has
	// given it back. Abandoned: some fire is.
	NewestAbandoned, Abandoned bool
}

// abandonedClaimSQL is the condition for a claim (alias c) whose replica has died, or has given it
// back. $2 is the patience.
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

// Ledgers reads where the fires of these workers stand, by their names, and the clock. A claim that
// has led to no run for longer than patience is abandoned.
func (d *Database) Ledgers(
	ctx context.Context, workers []string, patience time.Duration,
) (now time.Time, ledgers map[string]Ledger, err error) {
	rows, err := collect(ctx, d, newQuery("read the ledger of fires", readLedgersSQL, workers, patience), func(row pgx.CollectableRow) (l Ledger, err error) {
		var until, used, newest *time.Time
		err = row.Scan(&now, &l.Worker, &l.Cron, &until, &used, &newest, &l.Outcome, &l.NewestAbandoned, &l.Abandoned)
		l.AccountedUntil, l.UsedAt, l.Newest = orZero(until), orZero(used), orZero(newest)
		return l, err
	})
	ledgers = make(map[string]Ledger, len(rows))
	for _, l := range rows {
		ledgers[l.Worker] = l
	}
	return now, ledgers, err
}

// useLedgersSQL: fires before a ledger begins are nobody's.
const useLedgersSQL = `
INSERT INTO maintenance.schedules (worker, cron, accounted_until, in_use_since, used_at)
SELECT w.name, w.cron, $3, $3, $3 FROM unnest($1::text[], $2::text[]) AS w (name, cron)
ON CONFLICT (worker) DO UPDATE SET used_at = clock_timestamp()`

// UseLedgers says that the workers are used, so that nobody closes their ledgers. It begins the
// ledgers of those that have none, at this time and with their schedules.
func (d *Database) UseLedgers(ctx context.Context, workers, crons []string, now time.Time) error {
	_, err := d.exec(ctx, "say that workers are used", useLedgersSQL, workers, crons, now)
	return err
}

// closeLedgerSQL leaves no claim behind: nobody would look at it any more.
const closeLedgerSQL = `
WITH closed AS (
  DELETE FROM maintenance.schedules WHERE worker = $1 AND used_at < clock_timestamp() - $2::interval RETURNING worker
)
UPDATE maintenance.fires c SET outcome = 'missed', reason = $3, run_id = NULL
FROM closed WHERE c.worker = closed.worker AND c.outcome = 'claimed'`

// CloseLedger ends the ledger of a worker that no server has used for so long. A claim in it has
// led to no run: it is recorded as missed, for this reason.
func (d *Database) CloseLedger(
	ctx context.Context, worker string, unused time.Duration, reason string,
) error {
	_, err := d.exec(ctx, "close the ledger of fires", closeLedgerSQL, worker, unused, reason)
	return err
}

// LedgerStep moves a ledger on. Nothing happens if another server has moved it since it was read.
type LedgerStep struct {
	// Ledger as it was read.
	Ledger Ledger
	// Cron is the schedule that now holds, Until up to when its fires are now accounted for.
	Cron  string
	Until time.Time
	// Patience is after how long a claim that has led to no run is abandoned.
	Patience time.Duration
}

// movedLedgerSQL takes the step: it also locks the ledger. One whose end is a time that cannot be
// read is moved whoever has read it.
const movedLedgerSQL = `
moved AS (
  UPDATE maintenance.schedules SET cron = $4, accounted_until = $5
  WHERE worker = $1 AND cron = $3
    AND (accounted_until = $6 OR accounted_until NOT BETWEEN '0001-01-02' AND '9999-12-30')
  RETURNING worker
)`

func (s LedgerStep) args(more ...any) []any {
	l := s.Ledger
	return append([]any{l.Worker, s.Patience, l.Cron, s.Cron, s.Until, l.AccountedUntil}, more...)
}

// missFiresSQL leaves fires alone that have a row: they have run before the clock was set back, or
// an older version of this program has claimed them. An abandoned claim has no run, because a run
// is recorded in the statement that ends its claim.
const missFiresSQL = `
WITH ` + movedLedgerSQL + `, passed AS (
  INSERT INTO maintenance.fires (worker, fire_time, outcome, claimed_by, claimed_at)
  SELECT moved.worker, fire.due, 'missed', '', NULL
  FROM moved CROSS JOIN unnest($7::timestamptz[]) AS fire (due)
  ON CONFLICT DO NOTHING RETURNING 1
), abandoned AS (
  UPDATE maintenance.fires c SET outcome = 'missed', reason = $9, run_id = NULL
  FROM moved
  WHERE c.worker = moved.worker AND c.fire_time <> $8 AND ` + abandonedClaimSQL + `
  RETURNING 1
)
SELECT (SELECT count(*) FROM moved) = 1, (SELECT count(*) FROM passed), (SELECT count(*) FROM abandoned)`

// Missed is what [Database.MissFires] records as missed.
type Missed struct {
	// Passed are fires that nobody has claimed in time.
	Passed []time.Time
	// Kept is the abandoned fire that stays as it is, to be claimed again; Reason is that of the
	// others.
	Kept   time.Time
	Reason string
}

// MissFires records fires as missed: those that have passed, and those that were claimed and
// abandoned. It says how many there were of each.
func (d *Database) MissFires(
	ctx context.Context, s LedgerStep, m Missed,
) (moved bool, passed, abandoned int, err error) {
	err = d.queryRow(ctx, "record missed fires", []any{&moved, &passed, &abandoned}, missFiresSQL,
		s.args(m.Passed, m.Kept, m.Reason)...)
	return moved, passed, abandoned, err
}

// claimFireSQL: a fire with a row is claimed only if it has no run. It was missed, perhaps by a
// wrong clock, or it is abandoned.
const claimFireSQL = `
WITH ` + movedLedgerSQL + `
INSERT INTO maintenance.fires AS c (worker, fire_time, outcome, reason, run_id, claimed_by, claimed_at)
SELECT moved.worker, $7::timestamptz, 'claimed', $8, $9::text::uuid, $10, clock_timestamp() FROM moved
ON CONFLICT (worker, fire_time) DO UPDATE SET outcome = 'claimed', reason = EXCLUDED.reason,
  run_id = EXCLUDED.run_id, claimed_by = EXCLUDED.claimed_by, claimed_at = EXCLUDED.claimed_at,
  started_at = NULL
WHERE c.outcome = 'missed' OR ` + abandonedClaimSQL

// FireClaim takes a fire for the run RunID, which Replica is about to start. Reason is empty for a
// fire that is due.
type FireClaim struct {
	Time                   time.Time
	Reason, RunID, Replica string
}

// ClaimFire claims a fire: true on one replica alone.
func (d *Database) ClaimFire(ctx context.Context, s LedgerStep, c FireClaim) (bool, error) {
	n, err := d.exec(ctx, "claim the fire", claimFireSQL, s.args(c.Time, c.Reason, c.RunID, c.Replica)...)
	return n == 1, err
}
