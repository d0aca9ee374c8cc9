package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// The ledger of fires: maintenance.schedules records until when the fires of a worker have rows.
// One statement records fires as missed, one claims a fire ([Runs.ClaimFire]). Both advance the
// ledger, and change nothing if another server has advanced it since it was read.

// Ledger is the state of a worker's fires.
type Ledger struct {
	Worker string
	// Cron is the schedule of the last accounting, AccountedUntil its end. Zero means never.
	Cron           string
	AccountedUntil time.Time
	// UsedAt is when a server that uses the worker last recorded its use.
	UsedAt time.Time
	// Newest is the time of the newest fire of the ledger that is not in the future, Outcome its
	// outcome. Zero means none.
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

// Ledgers returns the ledgers of these workers, by their names, and the clock.
func (d Fires) Ledgers(
	ctx context.Context, workers []string,
) (now time.Time, ledgers map[string]Ledger, err error) {
	read := func(row pgx.CollectableRow) (l Ledger, err error) {
		err = row.Scan(&now, &l.Worker, &l.Cron, &l.AccountedUntil, &l.UsedAt, &l.Newest, &l.Outcome)
		return l, err
	}
	rows, err := pg.Collect(ctx, d.db, pg.NewQuery("read scheduled runs", readLedgersSQL, workers), read)
	ledgers = make(map[string]Ledger, len(rows))
	for _, l := range rows {
		ledgers[l.Worker] = l
	}
	return now, ledgers, err
}

// useLedgersSQL: fires before the start of a ledger belong to no run. The row without a worker is
// for all servers: it records since when they have checked without a gap. A server checks a worker
// at least every 20 seconds, and a gap is 25. So after a gap no ledger of a live server ends.
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

// UseLedgers records that the workers are used, and that a server has checked. It starts missing
// ledgers at this time, with their schedules. It ends ledgers that no server has used for 50
// seconds, if a server has checked throughout.
func (d Fires) UseLedgers(ctx context.Context, workers, crons []string, now time.Time) error {
	_, err := pg.Exec(ctx, d.db, "record the active workers", useLedgersSQL, workers, crons, now)
	return err
}

// LedgerStep advances a ledger. It does nothing if another server has advanced it since it was
// read.
type LedgerStep struct {
	// Ledger is the ledger as it was read.
	Ledger Ledger
	// Cron is the current schedule, Until the new end of the accounting.
	Cron  string
	Until time.Time
	// Reason is why a fire is claimed that is not simply due, or why it gets no run.
	Reason string
}

// noLedgerTimeSQL: a ledger whose end cannot be read as a time is advanced regardless of its
// reader.
const noLedgerTimeSQL = `accounted_until NOT BETWEEN '0001-01-02' AND '9999-12-30'`

// missFiresSQL skips fires that have a row: they ran before the clock was set back.
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

// MissFires records fires as missed that no server claimed in time. It returns how many of them had
// no row. moved is false if another server has advanced the ledger.
func (d Fires) MissFires(
	ctx context.Context, s LedgerStep, fires []time.Time,
) (moved bool, missed int, err error) {
	l := s.Ledger
	err = pg.QueryRow(ctx, d.db, "record missed scheduled runs", []any{&moved, &missed}, missFiresSQL,
		l.Worker, l.Cron, s.Cron, s.Until, l.AccountedUntil, fires)
	return moved, missed, err
}
