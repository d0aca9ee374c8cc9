package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// The ledger of fires: maintenance.schedules says up to when the fires of a worker have their rows.
// One statement records fires as missed, one claims a fire ([Runs.ClaimFire]). Both move the
// ledger on, and change nothing if another server has moved it since it was read.

// Ledger is where the fires of a worker stand.
type Ledger struct {
	Worker string
	// Cron is the schedule by which fires were accounted for last, AccountedUntil up to when; zero:
	// never.
	Cron           string
	AccountedUntil time.Time
	// UsedAt is when a server that uses the worker last recorded that.
	UsedAt time.Time
	// Newest is the time of the newest fire of the ledger that is not in the future, Outcome its
	// outcome; zero: there is none.
	Newest  time.Time
	Outcome string
}

// readLedgersSQL: fires of the future have rows if the clock was ahead and has been set back.
const readLedgersSQL = `
SELECT clock_timestamp(), w.name, coalesce(s.cron, ''), s.accounted_until, s.used_at,
  newest.fire_time, coalesce(newest.outcome, '')
FROM unnest($1::text[]) AS w (name)
LEFT JOIN maintenance.schedules s ON s.worker = w.name
LEFT JOIN LATERAL (
  SELECT c.fire_time, c.outcome FROM maintenance.fires c
  WHERE c.worker = w.name AND c.fire_time <= clock_timestamp() ORDER BY c.fire_time DESC LIMIT 1
) newest ON newest.fire_time > s.in_use_since`

// Ledgers reads where the fires of these workers stand, by their names, and the clock.
func (d Fires) Ledgers(
	ctx context.Context, workers []string,
) (now time.Time, ledgers map[string]Ledger, err error) {
	read := func(row pgx.CollectableRow) (l Ledger, err error) {
		err = row.Scan(&now, &l.Worker, &l.Cron, &l.AccountedUntil, &l.UsedAt, &l.Newest, &l.Outcome)
		return l, err
	}
	rows, err := pg.Collect(ctx, d.db, pg.NewQuery("read the ledger of fires", readLedgersSQL, workers), read)
	ledgers = make(map[string]Ledger, len(rows))
	for _, l := range rows {
		ledgers[l.Worker] = l
	}
	return now, ledgers, err
}

// useLedgersSQL: fires before a ledger begins belong to no run. The row without a worker is of all
// servers: it is in use since they have looked without a gap. Between two looks of a server that
// uses a worker are 20 seconds at most, a gap is 25: so after a gap no ledger ends whose server lives.
const useLedgersSQL = `
WITH unused AS (
  DELETE FROM maintenance.schedules l USING maintenance.schedules s
  WHERE s.worker = '' AND s.used_at > clock_timestamp() - interval '25 s'
    AND greatest(s.in_use_since, l.used_at) < clock_timestamp() - interval '50 s' AND l.worker <> ALL ($1)
)
INSERT INTO maintenance.schedules AS s (worker, cron, accounted_until, in_use_since, used_at)
SELECT w.name, w.cron, $3, $3, clock_timestamp()
FROM unnest(array_prepend('', $1::text[]), array_prepend('', $2::text[])) AS w (name, cron)
ON CONFLICT (worker) DO UPDATE SET used_at = clock_timestamp(), in_use_since = CASE
  WHEN s.worker = '' AND s.used_at < clock_timestamp() - interval '25 s' THEN clock_timestamp()
  ELSE s.in_use_since END`

// UseLedgers records that the workers are used, and that a server looks. It begins the ledgers of
// those that have none, at this time and with their schedules. It ends the ledgers that no server
// has used for 50 seconds, while one has looked all that time.
func (d Fires) UseLedgers(ctx context.Context, workers, crons []string, now time.Time) error {
	_, err := pg.Exec(ctx, d.db, "record that workers are used", useLedgersSQL, workers, crons, now)
	return err
}

// LedgerStep moves a ledger on. Nothing happens if another server has moved it since it was read.
type LedgerStep struct {
	// Ledger as it was read.
	Ledger Ledger
	// Cron is the schedule that now holds, Until up to when its fires are now accounted for.
	Cron  string
	Until time.Time
	// Reason is why a fire is claimed that is not simply due, or why it gets no run.
	Reason string
}

// noLedgerTimeSQL: a ledger whose end is a time that cannot be read is moved whoever has read it.
const noLedgerTimeSQL = `accounted_until NOT BETWEEN '0001-01-02' AND '9999-12-30'`

// missFiresSQL leaves fires alone that have a row: they have run before the clock was set back.
const missFiresSQL = `
WITH moved AS (
  UPDATE maintenance.schedules SET cron = $3, accounted_until = $4
  WHERE worker = $1 AND cron = $2 AND (accounted_until = $5 OR ` + noLedgerTimeSQL + `)
  RETURNING worker
), missed AS (
  INSERT INTO maintenance.fires (worker, fire_time, outcome, claimed_by, claimed_at)
  SELECT moved.worker, fire.due, 'missed', '', NULL
  FROM moved CROSS JOIN unnest($6::timestamptz[]) AS fire (due)
  ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM moved) = 1, (SELECT count(*) FROM missed)`

// MissFires records fires as missed that nobody has claimed in time, and returns how many of them
// had no row. moved is false if another server has moved the ledger.
func (d Fires) MissFires(
	ctx context.Context, s LedgerStep, fires []time.Time,
) (moved bool, missed int, err error) {
	l := s.Ledger
	err = pg.QueryRow(ctx, d.db, "record missed fires", []any{&moved, &missed}, missFiresSQL,
		l.Worker, l.Cron, s.Cron, s.Until, l.AccountedUntil, fires)
	return moved, missed, err
}
