package repo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The last look before a user goes. Others wait for the user's row meanwhile, and the server
// ends a transaction that is idle for two seconds: where a look takes longer than this, for want of an index, it is left
// out, and the look before it counts.
const (
	lookTime = time.Second
	// farLookTime is for a statement in another database, farLooksTime for all of them with whatever they wait for.
	farLookTime  = 500 * time.Millisecond
	farLooksTime = 1500 * time.Millisecond
)

const (
	lookSQL     = `SAVEPOINT look`
	lookTimeSQL = `SELECT set_config('statement_timeout', $1, true)`
	lookedSQL   = `ROLLBACK TO SAVEPOINT look`
)

// lastLook says whether there are some of the rows, of this database and others. It leaves the settings as they were.
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
