package pg

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// idleTime is the time after which the server ends a transaction whose process has been stopped.
const idleTime = 2 * time.Second

const txSettingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', $3, true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

// heldSQL reports whether the guard before it holds. It then holds until the end of its
// transaction.
const heldSQL = ` SELECT count(*) = 1 FROM guard`

const constraintsSQL = `SET CONSTRAINTS ALL IMMEDIATE`

// Transaction runs steps of several statements. It begins with the guard, which costs no round trip
// and holds until the end. The limits bound each statement. [RetryConflicts] describes the retries
// that do must support. If this process is stopped, the server ends the transaction after two
// seconds.
//
// Regardless of the server's default, each statement sees everything committed before it: reads
// after a lock must be current.
func Transaction(
	ctx context.Context, d *Database, operation string, p fencing.Permit, do func(context.Context, *Changing) error,
) error {
	timeout := cmp.Or(p.Transaction, stmt.StatementTimeout)
	ctx = p.Finishing(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, dberr.ErrUnreachable)
	defer cancel()
	p, err := Watching(ctx, d, p)
	if err != nil {
		return err
	}
	changes := &Changing{}
	ctx, o := d.begin(ctx, operation)
	err = RetryConflicts(ctx, func() error {
		o.Try(p.DryRun)
		return pgx.BeginTxFunc(ctx, d.pool, options(p), func(tx pgx.Tx) error {
			changes = &Changing{Tx: tx, Database: d, rule: operation}
			if err := begin(ctx, p, changes); err != nil {
				return err
			}
			if err := do(ctx, changes); err != nil {
				return err
			}
			if err := changes.end(ctx, p); err != nil || !p.DryRun {
				return err
			}
			return dberr.ErrDryRun
		})
	})
	err = asCondition(err)
	o.End(ctx, err)
	if errors.Is(err, dberr.ErrDryRun) {
		return nil
	}
	return ProtectedBy(Wrap(ctx, d, operation, err), changes.changed...)
}

func options(p fencing.Permit) pgx.TxOptions {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	if p.ReadOnly {
		options.AccessMode = pgx.ReadOnly
	}
	return options
}

// destroys reports whether a transaction may delete rows of the application. Runs and jobs may, and
// their dry runs.
func destroys(p fencing.Permit) bool {
	return !p.ReadOnly && (p.DryRun || p.Fence != nil || p.Attempt != nil)
}

// begin sends the settings of a transaction and its guard together.
func begin(ctx context.Context, p fencing.Permit, tx *Changing) error {
	batch := &pgx.Batch{}
	batch.Queue(txSettingsSQL, stmt.Milliseconds(p.Statement), stmt.Milliseconds(p.Lock),
		stmt.Milliseconds(idleTime), spans.TraceParentOf(ctx))
	for _, s := range p.First() {
		batch.Queue(s.SQL)
	}
	held := true
	if !p.DryRun && !p.ReadOnly {
		check := p.Fill(stmt.Statement{SQL: "WITH {guard}" + heldSQL})
		batch.Queue(check.SQL, check.Args...).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !held {
		return p.Refused(ctx, tx)
	}
	return nil
}

// tries is the number of attempts of a transaction. The pause before the second is firstPause, and
// quadruples with each attempt.
const (
	tries      = 4
	firstPause = 10 * time.Millisecond
)

// RetryConflicts retries a transaction of ours that the database has ended because of a deadlock
// (40P01) or because another transaction came first (40001). It has changed nothing, and the other
// needs only a moment. The next attempt must set all results of do again. After four attempts, or
// when ctx ends, RetryConflicts returns the error.
//
// Do not use it for statements on the application's rows: their worker handles locks.
func RetryConflicts(ctx context.Context, do func() error) error {
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

// ExecAll sends statements one after the other.
func ExecAll(ctx context.Context, tx pgx.Tx, statements ...stmt.Statement) error {
	for _, s := range statements {
		// Prepared statements would fill the connection's cache with statements that run once.
		if _, err := tx.Exec(ctx, s.SQL, append([]any{pgx.QueryExecModeExec}, s.Args...)...); err != nil {
			return err
		}
	}
	return nil
}
