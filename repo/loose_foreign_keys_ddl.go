package repo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// RefusedError says why a command on loose foreign keys does not do what it was asked to. Nothing was changed.
type RefusedError struct {
	// Database is the configured name.
	Database string
	// Reason names the object, what is wrong with it, and what to do.
	Reason string
	// NoTable: there is no table of that name.
	NoTable bool
}

// Error begins with the database.
func (e *RefusedError) Error() string { return e.Database + ": " + e.Reason }

func (d *Database) refuse(format string, args ...any) error {
	return &RefusedError{Database: d.Name, Reason: fmt.Sprintf(format, args...)}
}

// ddlTimeout bounds a whole transaction of DDL. Each lock in it is waited for two seconds at most.
const ddlTimeout = time.Minute

const ddlSettingsSQL = `SELECT set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
  set_config('quote_all_identifiers', 'off', true)`

// ddlMutexSQL lets one command at a time change the queue or its triggers. Reading goes on, and so do runs, except for
// the moment in which they mark a partition.
const ddlMutexSQL = `LOCK TABLE maintenance.queue_partitions IN SHARE ROW EXCLUSIVE MODE`

// ddl runs the changes of one command in one transaction: all or nothing.
func (d *Database) ddl(ctx context.Context, operation string, do func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ddlTimeout, ErrUnreachable)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := execAll(ctx, tx, statement{ddlSettingsSQL, nil}, statement{ddlMutexSQL, nil}); err != nil {
			return err
		}
		return do(tx)
	})
	return d.advise(ctx, operation, err)
}

// readOnlySettingsSQL: looking at a table waits for whoever locks it, and others wait behind that. Types and expressions of
// the catalogue are compared as they are written without needless quotes.
const readOnlySettingsSQL = `SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '30s', true),
  set_config('quote_all_identifiers', 'off', true)`

// readOnly runs queries on one snapshot of the catalogue.
func (d *Database) readOnly(ctx context.Context, operation string, do func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ddlTimeout, ErrUnreachable)
	defer cancel()
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, d.pool, options, func(tx pgx.Tx) error {
		if err := execAll(ctx, tx, statement{readOnlySettingsSQL, nil}); err != nil {
			return err
		}
		return do(tx)
	})
	return d.advise(ctx, operation, err)
}

// advise wraps what a transaction ended with, and says what to do about the common causes.
func (d *Database) advise(ctx context.Context, operation string, err error) error {
	if _, refused := errors.AsType[*RefusedError](err); refused {
		return err
	}
	err = d.wrap(ctx, operation, err)
	failed, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	switch state := failed.SQLState; {
	case failed.Class() == ClassLock:
		return fmt.Errorf("%w: nothing was changed, because another transaction held a lock for more than 2 s: try again when it has ended", err)
	case state == "42501":
		return fmt.Errorf("%w: nothing was changed: connect as a role that owns the tables and the queue", err)
	case state == "42P07", state == "42710":
		return fmt.Errorf("%w: nothing was changed: move what bears that name out of the way", err)
	}
	return err
}

// literal quotes a string constant for DDL, which takes no parameters.
func literal(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
