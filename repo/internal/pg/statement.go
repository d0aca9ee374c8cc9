package pg

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// Three helpers send single statements: ReadRow and ReadRows under limits, Write by a permit. All
// use Send: the statement and the settings that bound it are one transaction and one round trip.
// Transaction is for steps of several statements.

// settingsSQL bounds the next statement of the same transaction, and keeps its plan on the indexes.
// A list of keys must not flip it to a sequential scan, nor the cost of an avoided scan to
// compilation. A transaction that is already read-only, as on a standby, stays so. The error of
// making it writable would be less clear than that of the write. If row-level security would hide
// rows from our role, the statement fails with an error that names the table.
const settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('transaction_read_only', CASE WHEN $3::boolean THEN 'on' ELSE current_setting('transaction_read_only') END, true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

// beginSQL begins the transaction of a statement through a pooler, without a session for setting
// this isolation. The check after a statement must see everything committed since.
const beginSQL = `begin isolation level read committed`

// NetTime is how long a statement may exceed its statement_timeout before its connection is closed.
const NetTime = 5 * time.Second

// Query is a statement and its operation, as spans and errors name it.
type Query struct {
	Operation string
	stmt.Statement
	// Receipt is the next statement, which writes the receipt. nil: the query changes no rows of the
	// application.
	Receipt *stmt.Statement
	// Check is the next statement, which fails if the query must change nothing. nil: none. See
	// [FailIf].
	Check *stmt.Statement
	// Table is the table of its rows, for messages about protected rows. "" means a table of ours.
	Table string
}

// NewQuery returns the query of an operation.
func NewQuery(operation, sql string, args ...any) Query {
	return Query{Operation: operation, Statement: stmt.Statement{SQL: sql, Args: args}}
}

// Statements returns all statements in the order of sending. The receipt comes last: it locks the
// head of all receipts.
func (q Query) Statements(l fencing.Limits) []stmt.Statement {
	all := []stmt.Statement{q.Statement}
	if q.Check != nil {
		all = append(all, *q.Check)
	}
	if l.Targets.Check != "" {
		all = append(all, stmt.Statement{SQL: l.Targets.Check})
	}
	if q.Receipt != nil {
		all = append(all, *q.Receipt)
	}
	return all
}

// ReadRow runs a statement that returns one row. Counts of [spans.Affected] rows in into go to the
// span.
func ReadRow(ctx context.Context, d *Database, l fencing.Limits, q Query, into ...any) error {
	ctx, into = spans.WithAffected(ctx, into)
	return Send(ctx, d, q.Operation, l, q.Statements(l), func(r pgx.BatchResults) error {
		return r.QueryRow().Scan(into...)
	})
}

// ReadRows runs a statement that returns many rows.
func ReadRows[T any](
	ctx context.Context, d *Database, l fencing.Limits, q Query, scan pgx.RowToFunc[T],
) (out []T, err error) {
	err = Send(ctx, d, q.Operation, l, q.Statements(l), CollectInto(&out, scan))
	return out, err
}

// CollectInto reads the rows of the next statement.
func CollectInto[T any](out *[]T, scan pgx.RowToFunc[T]) func(pgx.BatchResults) error {
	return func(results pgx.BatchResults) (err error) {
		rows, _ := results.Query()
		*out, err = pgx.CollectRows(rows, scan)
		return err
	}
}

// Write runs a statement with the part {guard} that returns one row. The row begins with whether
// the guard held. If not, the statement has changed nothing, and the error names what was missing.
// [lfk.Child.change] sends changes of the application's rows.
func Write(ctx context.Context, d *Database, p fencing.Permit, q Query, into ...any) error {
	p, err := Watching(ctx, d, p)
	if err != nil {
		return err
	}
	var held bool
	q.Statement = p.Fill(q.Statement)
	err = ReadRow(p.Finishing(ctx), d, p.Limits, q, append([]any{&held}, into...)...)
	if err == nil && !held {
		return Wrap(ctx, d, q.Operation, p.Refused(ctx, d.pool))
	}
	return ProtectedBy(err, q.Table)
}

// Change is [Write] for changes of the application's rows. The statement records them by
// ReceiptSQL, and the next one writes the receipt.
func Change(
	ctx context.Context, d *Database, p fencing.Permit, q Query, r Receipt, into ...any,
) error {
	q.Table, q.Receipt = r.Table, new(r.Write(p.Source, nil))
	return Write(ctx, d, p, q, into...)
}

// Send sends statements and the settings that bound them in one transaction and one round trip, so
// that a stopped process leaves no transaction open.
func Send(
	ctx context.Context, d *Database, operation string, l fencing.Limits, statements []stmt.Statement,
	read func(pgx.BatchResults) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Statement+l.Lock+NetTime, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	err := d.pool.AcquireFunc(ctx, func(pooled *pgxpool.Conn) error {
		conn := pooled.Conn()
		batch := &pgx.Batch{}
		if !d.Sessions {
			batch.Queue(beginSQL)
		}
		batch.Queue(settingsSQL, stmt.Milliseconds(l.Statement), stmt.Milliseconds(l.Lock), l.ReadOnly, spans.TraceParentOf(ctx))
		before := l.First()
		skip := batch.Len() + len(before)
		statements = slices.Concat(before, statements)
		if err := d.prepare(ctx, conn, l, statements); err != nil {
			return err
		}
		for _, s := range statements {
			batch.Queue(s.SQL, s.Args...)
		}
		if !d.Sessions {
			batch.Queue("commit")
		}
		results := conn.SendBatch(ctx, batch)
		var err error
		for n := 0; n < skip && err == nil; n++ {
			_, err = results.Exec()
		}
		if err == nil {
			err = read(results)
		}
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		if err != nil && conn.PgConn().TxStatus() == 'E' {
			_, rollbackErr := conn.Exec(ctx, "rollback")
			err = errors.Join(err, rollbackErr)
		}
		return errors.Join(err, forget(ctx, conn, err))
	})
	err = asCondition(err)
	o.End(ctx, err)
	if l.ReadOnly && !dberr.Ours(err) {
		// A write that we forbid ourselves proves nothing about the server.
		return d.translate(ctx, operation, err)
	}
	return Wrap(ctx, d, operation, err)
}

// Condition is a condition under which a transaction must change nothing: then it fails with err.
type Condition struct {
	SQL string
	Err dberr.TextError
}

// FailIf returns a statement that fails with the first condition that holds, nil without
// conditions.
func FailIf(all []Condition, args stmt.Parameters) *stmt.Statement {
	if len(all) == 0 {
		return nil
	}
	var cases strings.Builder
	for _, c := range all {
		cases.WriteString("\n  WHEN " + c.SQL + " THEN '" + c.Err.Error() + "'")
	}
	return &stmt.Statement{SQL: "SELECT (CASE" + cases.String() + " END)::int", Args: args}
}

// prepareSettingsSQL bounds the preparation of a statement, and ends its transaction if this
// process is stopped in it.
const prepareSettingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', '2s', true)`

// preparedStatements is the key of a connection's set of prepared statements, maxPrepared its
// maximum size.
//
// PostgreSQL plans the first plannedUses executions of a prepared statement for their arguments.
// Later ones may use a plan for arrays of ten elements.
const (
	preparedStatements = "github.com/caretaker-go/caretaker/repo"
	maxPrepared        = 512
	plannedUses        = 5
)

// prepare prepares statements on a connection under the limits, once, and those with a plan of their
// own again after plannedUses. Parsing waits for any lock on a table of a statement. pgx prepares
// before it sends the settings, so it would wait forever.
func (d *Database) prepare(ctx context.Context, conn *pgx.Conn, l fencing.Limits, all []stmt.Statement) error {
	if !d.prepares {
		return nil
	}
	known, _ := conn.PgConn().CustomData()[preparedStatements].(map[string]int)
	for _, s := range all {
		if s.Planned && known[s.SQL] >= plannedUses {
			if err := conn.Deallocate(ctx, s.SQL); err != nil {
				return err
			}
			delete(known, s.SQL)
		}
	}
	unknown := slices.DeleteFunc(slices.Clone(all), func(s stmt.Statement) bool {
		_, ok := known[s.SQL]
		if ok {
			known[s.SQL]++
		}
		return ok
	})
	if len(unknown) == 0 {
		return nil
	}
	if len(known)+len(unknown) > maxPrepared {
		if err := conn.DeallocateAll(ctx); err != nil {
			return err
		}
		known, unknown = nil, all
	}
	if known == nil {
		known = map[string]int{}
		conn.PgConn().CustomData()[preparedStatements] = known
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, prepareSettingsSQL, stmt.Milliseconds(l.Statement), stmt.Milliseconds(l.Lock))
		for _, s := range unknown {
			if err == nil {
				_, err = conn.Prepare(ctx, s.SQL, s.SQL)
			}
			if err == nil {
				known[s.SQL] = 1
			}
		}
		return err
	})
}

// forget lets a connection prepare its statements again after an error that means that a prepared
// statement is no longer usable.
func forget(ctx context.Context, conn *pgx.Conn, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || (pgErr.Code != "0A000" && pgErr.Code != "26000") {
		return nil
	}
	delete(conn.PgConn().CustomData(), preparedStatements)
	return conn.DeallocateAll(ctx)
}

// NoTimeoutSQL lets a transaction wait for its lock, and hold it, as long as migrations take,
// regardless of the role's limits.
const NoTimeoutSQL = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true)`
