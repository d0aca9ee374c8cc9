// Package admin is the database side of `caretaker lfk`: it creates, removes and inspects the
// recording of deleted rows in one database. loose_foreign_keys_cleanup does not need the package.
//
// Deletions are recorded by the queue loose_foreign_keys_deleted_records, trigger functions that
// insert into it, and a trigger AFTER DELETE for each statement on every tracked table. A
// partitioned table and each partition have a trigger, because only the triggers of the table that
// the statement names fire. All names and forms are GitLab's: objects that GitLab has made are used
// as they are, and a queue of GitLab's is never changed.
//
// The package guarantees:
//
//   - All DDL of one method is one transaction, all or nothing. It waits two seconds for a lock.
//   - Every method first reads in a read-only transaction. If a change is needed, it reads again
//     under a lock that excludes other commands.
//   - The objects that this package creates never make a deletion by the application fail. A
//     deletion needs no rights on the queue. No search_path affects a trigger function.
//   - A request that cannot work is a [*RefusedError] with a reason, and nothing is changed.
//   - [Admin.Inspect] reads only the catalogue and changes nothing. The caller draws conclusions.
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

// Admin creates, removes and inspects the recording of deletions in one database.
type Admin struct {
	database *pg.Database
	// timeout is the timeout of a transaction. 0 means [timeout].
	timeout time.Duration
	// schema is the requested schema of the queue, "" if the operator has not named one.
	schema string
	// progress is called by [Admin.Inspect] for each child, if not nil.
	progress func(done, total int)
	// unneeded: no definition needs the records of a table to untrack.
	unneeded bool
}

// New returns the Admin of a database, which must be migrated.
func New(d *pg.Database) Admin { return Admin{database: d} }

// withoutTimeout lets a transaction take as long as it needs, at most 24 hours.
func (a Admin) withoutTimeout() Admin {
	a.timeout = 24 * time.Hour
	return a
}

// Unneeded returns a whose Untrack also drops the triggers of a table whose records no definition needs, whatever their keys are.
func Unneeded(a Admin) Admin {
	a.unneeded = true
	return a
}

// In requests that the queue is in a schema, even if another schema has one.
func (a Admin) In(schema string) Admin {
	a.schema = schema
	return a
}

// Watched returns a whose Inspect reports its progress: the number of children that it has inspected.
func Watched(a Admin, progress func(done, total int)) Admin {
	a.progress = progress
	return a
}

// RefusedError is the reason why a command refuses. Nothing was changed.
type RefusedError struct {
	// Database is the configured name.
	Database string
	// Reason names the object, what is wrong with it, and what to do.
	Reason string
	// NoTable means that no table has that name.
	NoTable bool
	// Misnamed means that another name that the operator gave is malformed or unknown.
	Misnamed bool
}

// Error returns the reason after the database.
func (e *RefusedError) Error() string { return e.Database + ": " + e.Reason }

func (a Admin) refuse(format string, args ...any) error {
	return &RefusedError{Database: a.database.Name, Reason: fmt.Sprintf(format, args...)}
}

// misnamed refuses a name that the operator gave.
func (a Admin) misnamed(format string, args ...any) error {
	return &RefusedError{Database: a.database.Name, Reason: fmt.Sprintf(format, args...), Misnamed: true}
}

// timeout bounds a whole transaction. The timeout of each lock in it is two seconds.
const timeout = time.Minute

// readSettingsSQL: reading a definition waits for a transaction that locks the table, and others
// then wait for the read. Types and expressions are compared without needless quotes.
const readSettingsSQL = `
SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '30s', true),
  set_config('quote_all_identifiers', 'off', true)`

const writeSettingsSQL = `
SELECT set_config('lock_timeout', '2s', true), set_config('quote_all_identifiers', 'off', true),
  set_config('idle_in_transaction_session_timeout', '10s', true)`

// noTimeoutSQL: a role's own limit must not end a transaction that needs longer.
const noTimeoutSQL = `SELECT set_config('statement_timeout', '0', true)`

// mutexSQL lets one command at a time change the queue or its triggers. Reads continue. Runs do
// too, except while they mark a partition.
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

// write runs a transaction with changes.
func (a Admin) write(
	ctx context.Context, operation string, do func(context.Context, pgx.Tx) error,
) error {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return a.transact(ctx, operation, options, func(ctx context.Context, tx pgx.Tx) error {
		if err := run(ctx, tx, writeSettingsSQL); err != nil {
			return err
		}
		if a.timeout > 0 {
			if err := run(ctx, tx, noTimeoutSQL); err != nil {
				return err
			}
		}
		return do(ctx, tx)
	})
}

// change reads, and if a change is needed it reads again under the mutex and makes the change: all
// or nothing.
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

// transact runs a transaction. For common causes its error includes the fix.
func (a Admin) transact(ctx context.Context, operation string, options pgx.TxOptions,
	do func(context.Context, pgx.Tx) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(a.timeout, timeout), dberr.ErrUnreachable)
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
		return fmt.Errorf("%w (nothing was changed, because of a lock timeout or a deadlock with another transaction): "+
			"try again after that transaction has ended", err)
	case state == "42501":
		return fmt.Errorf("%w (nothing was changed): connect as a role that owns the tables and the "+
			"queue", err)
	case state == "42P07", state == "42710", state == "42723":
		return fmt.Errorf("%w (nothing was changed): rename or drop the object that has this name", err)
	}
	return err
}

// run sends a statement that is used once: preparing it would only fill the connection's cache.
func run(ctx context.Context, tx pgx.Tx, sql string) error {
	_, err := tx.Exec(ctx, sql, pgx.QueryExecModeExec)
	return err
}

// list reads all rows of a query.
func list[T any](
	ctx context.Context, tx pgx.Tx, scan pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	// Reading the rows returns the error of the query.
	rows, _ := tx.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scan)
}

// fill puts quoted identifiers, or fragments made of them, into an SQL constant: pairs of {name}
// and text.
func fill(sql string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(sql) }

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

// quotedQueue returns the quoted name of the queue.
func quotedQueue(q lfk.DeletedRecords) string { return quote(q.Table().Schema, q.Table().Name) }
