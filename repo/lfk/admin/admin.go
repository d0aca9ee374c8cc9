// Package admin is the database's side of `caretaker lfk`: it makes, removes and inspects what
// records deleted rows, in one database. The worker loose_foreign_keys_cleanup does not need it.
//
// What records deletions is the queue loose_foreign_keys_deleted_records, trigger functions that
// insert into it, and a trigger AFTER DELETE for each statement on every tracked table. A
// partitioned table has one on itself and on each partition, because only those of the table that
// the statement names fire. All names and forms are GitLab's: what GitLab has made is used as it
// is, and a queue of GitLab's is never changed.
//
// What it guarantees:
//
//   - All DDL of one method is one transaction, all or nothing. It waits two seconds for a lock.
//   - Every method first reads in a read-only transaction, and changes something only if there is
//     something to change. It then reads again under a lock that keeps other commands away.
//   - A deletion by the application never fails for what this package has made, and needs no
//     rights on the queue. No search_path leads a trigger function astray.
//   - What cannot work is refused with a reason, a [*RefusedError], and nothing is changed.
//   - [Admin.Inspect] reads the catalogue only and changes nothing; what follows from what it has
//     read is for the caller to say.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Admin makes, removes and inspects what records deletions in one database.
type Admin struct {
	database *pg.Database
	// patience is how long a transaction may take; 0: [timeout].
	patience time.Duration
	// schema is where the queue is to be, even if there is one elsewhere; "": the operator has not said so.
	schema string
}

// New needs a database that is migrated.
func New(d *pg.Database) Admin { return Admin{database: d} }

// patient lets a transaction take as long as it needs, within reason.
func (a Admin) patient() Admin { return Admin{a.database, 24 * time.Hour, a.schema} }

// In names the schema that the queue is to be in, even if there is one in another schema.
func (a Admin) In(schema string) Admin { return Admin{a.database, a.patience, schema} }

// RefusedError says why a command does not do what it was asked to. Nothing was changed.
type RefusedError struct {
	// Database is the configured name.
	Database string
	// Reason names the object, what is wrong with it, and what to do.
	Reason string
	// NoTable: there is no table of that name.
	NoTable bool
	// Misnamed: a name that the operator gave is malformed or unknown, and is not that of a table.
	Misnamed bool
}

// Error begins with the database.
func (e *RefusedError) Error() string { return e.Database + ": " + e.Reason }

func (a Admin) refuse(format string, args ...any) error {
	return &RefusedError{Database: a.database.Name, Reason: fmt.Sprintf(format, args...)}
}

// misnamed refuses a name that the operator gave.
func (a Admin) misnamed(format string, args ...any) error {
	return &RefusedError{Database: a.database.Name, Reason: fmt.Sprintf(format, args...), Misnamed: true}
}

// timeout bounds a whole transaction. Each lock in it is waited for two seconds at most.
const timeout = time.Minute

// readSettingsSQL: reading a table's definition waits for the transaction that locks it, and others wait behind
// that. Types and expressions of the catalogue are compared as they are without needless quotes.
const readSettingsSQL = `
SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '30s', true),
  set_config('quote_all_identifiers', 'off', true)`

const writeSettingsSQL = `
SELECT set_config('lock_timeout', '2s', true), set_config('quote_all_identifiers', 'off', true),
  set_config('idle_in_transaction_session_timeout', '10s', true)`

// patientSettingsSQL: a role's own limit must not end what takes as long as it needs.
const patientSettingsSQL = `SELECT set_config('statement_timeout', '0', true)`

// mutexSQL lets one command at a time change the queue or its triggers. Reading goes on, and so do
// runs, except for the moment in which they mark a partition.
const mutexSQL = `LOCK TABLE maintenance.queue_partitions IN SHARE ROW EXCLUSIVE MODE`

// read runs queries on one snapshot of the catalogue.
func (a Admin) read(
	ctx context.Context, operation string, do func(context.Context, pgx.Tx) error,
) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return a.transact(ctx, operation, options, func(ctx context.Context, tx pgx.Tx) error {
		if err := run(ctx, tx, readSettingsSQL); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// write runs a transaction that changes something.
func (a Admin) write(
	ctx context.Context, operation string, do func(context.Context, pgx.Tx) error,
) error {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return a.transact(ctx, operation, options, func(ctx context.Context, tx pgx.Tx) error {
		if err := run(ctx, tx, writeSettingsSQL); err != nil {
			return err
		}
		if a.patience > 0 {
			if err := run(ctx, tx, patientSettingsSQL); err != nil {
				return err
			}
		}
		return do(ctx, tx)
	})
}

// change reads, and if that says that something is needed it reads again behind the mutex and does
// it: all or nothing.
func (a Admin) change(ctx context.Context, operation string,
	needed func(context.Context, pgx.Tx) (bool, error), do func(context.Context, pgx.Tx) error,
) error {
	changes := false
	err := a.read(ctx, operation, func(ctx context.Context, tx pgx.Tx) (err error) {
		changes, err = needed(ctx, tx)
		return err
	})
	if err != nil || !changes {
		return err
	}
	return a.write(ctx, operation, func(ctx context.Context, tx pgx.Tx) error {
		if err := run(ctx, tx, mutexSQL); err != nil {
			return err
		}
		if changes, err := needed(ctx, tx); err != nil || !changes {
			return err
		}
		return do(ctx, tx)
	})
}

// transact says in its error what to do about the common causes.
func (a Admin) transact(ctx context.Context, operation string, options pgx.TxOptions,
	do func(context.Context, pgx.Tx) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(a.patience, timeout), dberr.ErrUnreachable)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, pg.PoolOf(a.database), options, func(tx pgx.Tx) error { return do(ctx, tx) })
	if _, refused := errors.AsType[*RefusedError](err); refused {
		return err
	}
	err = pg.Wrap(ctx, a.database, operation, err)
	failed, ok := errors.AsType[*dberr.Error](err)
	if !ok {
		return err
	}
	switch state := failed.SQLState; {
	case failed.Class() == dberr.ClassLock:
		return fmt.Errorf("%w: nothing was changed, because another transaction held a lock "+
			"for more than 2 s: try again when it has ended", err)
	case state == "42501":
		return fmt.Errorf("%w: nothing was changed: connect as a role that owns the tables and the "+
			"queue", err)
	case state == "42P07", state == "42710", state == "42723":
		return fmt.Errorf("%w: nothing was changed: move what bears that name out of the way", err)
	}
	return err
}

// run sends a statement that is used once: to prepare it would only fill the connection's cache.
func run(ctx context.Context, tx pgx.Tx, sql string) error {
	_, err := tx.Exec(ctx, sql, pgx.QueryExecModeExec)
	return err
}

// list reads all rows of a query.
func list[T any](
	ctx context.Context, tx pgx.Tx, scan pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	// The error of the query is that of its rows.
	rows, _ := tx.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scan)
}

// fill puts quoted identifiers, or fragments made of them, into an SQL constant: pairs of {name}
// and text.
func fill(sql string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(sql) }

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

// quotedQueue is the quoted name of the queue.
func quotedQueue(q lfk.DeletedRecords) string { return quote(q.Table().Schema, q.Table().Name) }
