package repo

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Limits bound one statement of a run. Zero is the server's own setting.
type Limits struct {
	// Statement is the statement_timeout, Lock the lock_timeout.
	Statement, Lock time.Duration
}

// settingsSQL bounds the statement that follows in the same transaction, and keeps its plan on the indexes: a list of
// keys must not flip it to a sequential scan, nor the price of an avoided one to compilation.
const settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`

// netTime is what a statement may take beyond its statement_timeout before its connection is given up.
const netTime = 5 * time.Second

// bounded runs one statement that returns one row under limits.
func (d *Database) bounded(ctx context.Context, operation string, l Limits, into []any, sql string, args ...any) error {
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

// underLimits sends a statement and the settings that bound it in one transaction and one round trip, so that a
// process that is stopped leaves nothing open behind it.
func (d *Database) underLimits(ctx context.Context, operation string, l Limits, sql string, args []any, read func(pgx.BatchResults) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Statement+l.Lock+netTime, ErrUnreachable)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(settingsSQL, milliseconds(l.Statement), milliseconds(l.Lock))
	batch.Queue(sql, args...)
	results := d.pool.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		err = read(results)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return d.wrap(ctx, operation, err)
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
