package repo

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// idleTime is after how long the server ends a transaction of ours whose process has been stopped.
const idleTime = 2 * time.Second

const txSettingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', $3, true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

const fenceRowSQL = `WITH ` + fenceSQL + ` SELECT held FROM fence`

// fencedTx runs what cannot be one statement, each statement under the limits, in a transaction that begins with the
// fence. If this process is stopped in the middle, the server ends the transaction after two seconds.
func (d *Database) fencedTx(ctx context.Context, operation string, f Fence, l Limits, do func(context.Context, pgx.Tx) error) error {
	return d.limitedTx(ctx, operation, l, statementTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if err := holdFence(ctx, tx, f); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// limitedTx runs a transaction of several statements, each under the limits, all of them within patience. See [again]
// for what do must put up with.
func (d *Database) limitedTx(ctx context.Context, operation string, l Limits, patience time.Duration, do func(context.Context, pgx.Tx) error) error {
	return d.guardedTx(ctx, operation, Guard{}, l, patience, do)
}

// guardedTx is limitedTx that begins with a guard, which holds until its end. That costs no round trip. Whatever the
// server's default is, each statement sees what was committed before it: what is looked at behind a lock must be new.
func (d *Database) guardedTx(ctx context.Context, operation string, g Guard, l Limits, patience time.Duration, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	err := again(ctx, func() error {
		return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := beginUnder(ctx, tx, l, g); err != nil {
				return err
			}
			return do(ctx, tx)
		})
	})
	o.end(ctx, err)
	return d.wrap(ctx, operation, err)
}

// beginUnder sends the settings of a transaction and its guard together.
func beginUnder(ctx context.Context, tx pgx.Tx, l Limits, g Guard) error {
	batch := &pgx.Batch{}
	batch.Queue(txSettingsSQL, milliseconds(l.Statement), milliseconds(l.Lock), milliseconds(idleTime), traceParentOf(ctx))
	held := true
	if g != (Guard{}) {
		check := g.check()
		batch.Queue(check.sql, check.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !held {
		return g.refused(ctx, tx)
	}
	return nil
}

// holdFence makes sure that a fence holds until the transaction ends; it must come first in it.
func holdFence(ctx context.Context, tx pgx.Tx, f Fence) error {
	var held int
	err := tx.QueryRow(ctx, fenceRowSQL, f.Name, f.Holder, f.Epoch).Scan(&held)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseLost
	}
	return err
}
