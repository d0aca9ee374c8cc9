package repo

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Limits bound one statement of a run. Zero is the server's own setting.
type Limits struct {
	// Statement is the statement_timeout, Lock the lock_timeout.
	Statement, Lock time.Duration
	// ReadOnly makes the server refuse whatever would write, triggers and functions included.
	ReadOnly bool
}

// settingsSQL bounds the statement that follows in the same transaction, and keeps its plan on the indexes: a list of
// keys must not flip it to a sequential scan, nor the price of an avoided one to compilation. A transaction that is
// read-only anyway, as on a standby, stays so: to ask for more would fail with an error that says less than the write's.
// Where row-level security would hide rows from our role, it is an error that names the table: nothing is done by half.
const settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('transaction_read_only', CASE WHEN $3::boolean THEN 'on' ELSE current_setting('transaction_read_only') END, true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

// netTime is what a statement may take beyond its statement_timeout before its connection is given up.
const netTime = 5 * time.Second

// bounded runs one statement that returns one row under limits.
func (d *Database) bounded(ctx context.Context, operation string, l Limits, into []any, sql string, args ...any) error {
	ctx, into = withAffected(ctx, into)
	return d.underLimits(ctx, operation, l, sql, args, func(results pgx.BatchResults) error {
		return results.QueryRow().Scan(into...)
	})
}

// boundedRows is bounded for a query of many rows.
func boundedRows[T any](ctx context.Context, d *Database, operation string, l Limits, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	var out []T
	err := d.underLimits(ctx, operation, l, sql, args, func(results pgx.BatchResults) (err error) {
		rows, _ := results.Query()
		out, err = pgx.CollectRows(rows, scan)
		return err
	})
	return out, err
}

// underLimits is pipelined for one statement.
func (d *Database) underLimits(ctx context.Context, operation string, l Limits, sql string, args []any, read func(pgx.BatchResults) error) error {
	return d.pipelined(ctx, operation, l, []statement{{sql, args}}, read)
}

// pipelined sends statements and the settings that bound them in one transaction and one round trip, so that a process
// that is stopped leaves nothing open behind it.
func (d *Database) pipelined(ctx context.Context, operation string, l Limits, statements []statement, read func(pgx.BatchResults) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Statement+l.Lock+netTime, ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	err := d.pool.AcquireFunc(ctx, func(pooled *pgxpool.Conn) error {
		conn := pooled.Conn()
		batch := &pgx.Batch{}
		batch.Queue(settingsSQL, milliseconds(l.Statement), milliseconds(l.Lock), l.ReadOnly, traceParentOf(ctx))
		for _, s := range statements {
			if err := d.prepare(ctx, conn, l, s.sql); err != nil {
				return err
			}
			batch.Queue(s.sql, s.args...)
		}
		results := conn.SendBatch(ctx, batch)
		_, err := results.Exec()
		if err == nil {
			err = read(results)
		}
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		return errors.Join(err, forget(ctx, conn, err))
	})
	o.end(ctx, err)
	if l.ReadOnly && !ours(err) {
		// A write that we forbid ourselves says nothing about the server.
		return d.translate(ctx, operation, err)
	}
	return d.wrap(ctx, operation, err)
}

// prepareSettingsSQL bounds the preparation of a statement, and ends its transaction if this process is stopped in it.
const prepareSettingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', '2s', true)`

// preparedStatements is the key of a connection's set of statements that it knows, maxPrepared how many they may be.
const (
	preparedStatements = "github.com/caretaker-go/caretaker/repo"
	maxPrepared        = 512
)

// prepare makes a statement known to a connection under the limits, the first time. Parsing waits for whoever has
// locked a table of the statement; left to pgx, which prepares before it sends the settings, it would wait without end.
func (d *Database) prepare(ctx context.Context, conn *pgx.Conn, l Limits, sql string) error {
	if !d.prepares {
		return nil
	}
	known, _ := conn.PgConn().CustomData()[preparedStatements].(map[string]struct{})
	if _, is := known[sql]; is {
		return nil
	}
	if len(known) >= maxPrepared {
		if err := conn.DeallocateAll(ctx); err != nil {
			return err
		}
		known = nil
	}
	if known == nil {
		known = map[string]struct{}{}
		conn.PgConn().CustomData()[preparedStatements] = known
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, prepareSettingsSQL, milliseconds(l.Statement), milliseconds(l.Lock)); err != nil {
			return err
		}
		_, err := conn.Prepare(ctx, sql, sql)
		return err
	})
	if err == nil {
		known[sql] = struct{}{}
	}
	return err
}

// forget lets a connection prepare its statements anew after an error that says that one is of no use any more.
func forget(ctx context.Context, conn *pgx.Conn, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || (pgErr.Code != "0A000" && pgErr.Code != "26000") {
		return nil
	}
	delete(conn.PgConn().CustomData(), preparedStatements)
	return conn.DeallocateAll(ctx)
}

// fenced runs one statement under a fence: its arguments are the fence's ($1 to $3) and args, its row begins with
// whether the fence held. If not, the statement has changed nothing and the error is ErrLeaseLost.
func (d *Database) fenced(ctx context.Context, operation string, f Fence, l Limits, into []any, sql string, args ...any) error {
	var held bool
	err := d.bounded(ctx, operation, l, append([]any{&held}, into...), sql, append([]any{f.Name, f.Holder, f.Epoch}, args...)...)
	if err == nil && !held {
		return ErrLeaseLost
	}
	return err
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// fill puts quoted identifiers, or fragments made of them, into an SQL constant: pairs of {name} and text.
func fill(sql string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(sql)
}

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }
