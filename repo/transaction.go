package repo

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// idleTime is after how long the server ends a transaction of ours whose process has been stopped.
const idleTime = 2 * time.Second

const txSettingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', $3, true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

// heldSQL reports whether the guard before it holds, as it then does until the end of its
// transaction.
const heldSQL = ` SELECT count(*) = 1 FROM guard`

// errDryRun rolls a dry run back.
var errDryRun = errors.New("dry run rolled back")

const constraintsSQL = `SET CONSTRAINTS ALL IMMEDIATE`

// transaction runs what cannot be one statement. It begins with the guard, which costs no round
// trip and holds until the end; each statement is bounded by the limits. See [retryConflicts] for what do
// must put up with. If this process is stopped in the middle, the server ends the transaction after
// two seconds.
//
// Whatever the server's default is, each statement sees what was committed before it: what is read
// behind a lock must be new.
func (d *Database) transaction(
	ctx context.Context, operation string, p Permit, do func(context.Context, *changing) error,
) error {
	patience := cmp.Or(p.Transaction, statementTimeout)
	ctx = p.finishing(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrUnreachable)
	defer cancel()
	p, err := d.watching(ctx, p)
	if err != nil {
		return err
	}
	changes := &changing{}
	ctx, o := d.begin(ctx, operation)
	err = retryConflicts(ctx, func() error {
		o.try(p.DryRun)
		return pgx.BeginTxFunc(ctx, d.pool, p.options(), func(tx pgx.Tx) error {
			changes = &changing{Tx: tx, database: d, rule: operation}
			if err := p.begin(ctx, changes); err != nil {
				return err
			}
			if err := do(ctx, changes); err != nil {
				return err
			}
			if err := changes.end(ctx, p); err != nil || !p.DryRun {
				return err
			}
			return errDryRun
		})
	})
	err = asCondition(err)
	o.end(ctx, err)
	if errors.Is(err, errDryRun) {
		return nil
	}
	return protectedBy(d.wrap(ctx, operation, err), changes.changed...)
}

func (p Permit) options() pgx.TxOptions {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	if p.ReadOnly {
		options.AccessMode = pgx.ReadOnly
	}
	return options
}

// destroys reports whether a transaction may delete rows of the application: those of runs and
// jobs, and their dry runs.
func (p Permit) destroys() bool {
	return !p.ReadOnly && (p.DryRun || p.fence != nil || p.attempt != nil)
}

// begin sends the settings of a transaction and its guard together.
func (p Permit) begin(ctx context.Context, tx *changing) error {
	batch := &pgx.Batch{}
	batch.Queue(txSettingsSQL, milliseconds(p.Statement), milliseconds(p.Lock),
		milliseconds(idleTime), traceParentOf(ctx))
	for _, s := range p.first() {
		batch.Queue(s.sql)
	}
	held := true
	if !p.DryRun && !p.ReadOnly {
		check := p.fill(statement{sql: "WITH {guard}" + heldSQL})
		batch.Queue(check.sql, check.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !held {
		return p.refused(ctx, tx)
	}
	return nil
}

// How often a transaction is tried, and how long is waited before the second try; before the others
// four times as long as before the one before.
const (
	tries      = 4
	firstPause = 10 * time.Millisecond
)

// retryConflicts repeats a transaction of ours that the database has ended to get out of a deadlock
// (40P01) or because another one came first (40001): it has changed nothing, and the other one
// needs a moment only. What do has set must be set again by the next try. After four tries, or when
// ctx ends, the error stands.
//
// Statements on the application's rows are not for it: what to do about a lock is their worker's
// business.
func retryConflicts(ctx context.Context, do func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := do()
		if n == tries || !collided(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(float64(pause) * (0.5 + rand.Float64()))):
		}
		pause *= 4
	}
}

func collided(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001")
}

// execAll sends statements one after the other.
func execAll(ctx context.Context, tx pgx.Tx, statements ...statement) error {
	for _, s := range statements {
		// Prepared statements would only fill the connection's cache with what runs once.
		if _, err := tx.Exec(ctx, s.sql, append([]any{pgx.QueryExecModeExec}, s.args...)...); err != nil {
			return err
		}
	}
	return nil
}
