package repo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The last look before a user goes. Others wait for the user's row meanwhile, and the server ends a
// transaction that is idle for two seconds: where a look takes longer than this, for want of an
// index, it is left out, and the look before it counts.
const (
	lookTime = time.Second
	// farLookTime is for a statement in another database, farLooksTime for all of them with whatever
	// they wait for.
	farLookTime  = 500 * time.Millisecond
	farLooksTime = 1500 * time.Millisecond
)

const (
	lookSQL     = `SAVEPOINT look`
	lookTimeSQL = `SELECT set_config('statement_timeout', $1, true)`
	lookedSQL   = `ROLLBACK TO SAVEPOINT look`
)

// lastLook says whether there are some of the rows, of this database and others. It leaves the
// settings as they were.
func (d *Database) lastLook(ctx context.Context, tx pgx.Tx, rows []Rows) (left bool, err error) {
	of := map[*Database][]Rows{}
	for _, r := range rows {
		of[r.Database] = append(of[r.Database], r)
	}
	looking, cancel := context.WithTimeoutCause(ctx, farLooksTime, ErrUnreachable)
	defer cancel()
	for far, rows := range of {
		if far == d {
			continue
		}
		has, err := far.Any(looking, rows, Limits{Statement: farLookTime, Lock: farLookTime})
		refused, is := errors.AsType[*Error](err)
		switch {
		case looking.Err() != nil && ctx.Err() == nil:
		case is && (refused.Class() == ClassTimeout || refused.Class() == ClassLock):
		case err != nil, slices.Contains(has, true):
			return err == nil, err
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(lookSQL)
	batch.Queue(lookTimeSQL, milliseconds(lookTime))
	for _, probe := range probes(of[d]) {
		batch.Queue(probe.sql, probe.args...).QueryRow(func(row pgx.Row) error {
			var has []bool
			err := row.Scan(&has)
			left = left || slices.Contains(has, true)
			return err
		})
	}
	batch.Queue(lookedSQL)
	err = tx.SendBatch(ctx, batch).Close()
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == "57014" {
		_, err = tx.Exec(ctx, lookedSQL)
	}
	return left, err
}

// ProcessedByKey is the key, in the metadata of a finished job, of the span (W3C) that has worked
// it.
const ProcessedByKey = "processed_by"

// deletionTracesSQL: materialized, so that the index of arguments is read, and not all jobs from
// the newest on.
const deletionTracesSQL = `
WITH found AS MATERIALIZED (
  SELECT id, metadata ->> 'processed_by' AS span FROM maintenance.river_job
  WHERE kind = 'delete_user' AND args @> jsonb_build_object('user_id', $1::bigint)
    AND metadata ->> 'processed_by' IS NOT NULL AND metadata ->> 'outcome' = 'succeeded'
)
SELECT span FROM found ORDER BY id DESC LIMIT 3`

// DeletionTraces are the spans (W3C) of the last jobs that have sent a user to the ghost migration,
// as long as the queue remembers them.
func (d *Database) DeletionTraces(ctx context.Context, user int64, l Limits) ([]string, error) {
	return readRows(untraced(ctx), d, l, newQuery("read traces of deletions", deletionTracesSQL,
		user), pgx.RowTo[string])
}
