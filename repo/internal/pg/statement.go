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

// Three helpers send single statements: readRow and readRows under limits, write by a permit. What
// they have in common is in send: the statement and the settings that bound it are one transaction
// and one round trip. transaction is for steps of several statements.

// settingsSQL bounds the statement that follows in the same transaction, and keeps its plan on the
// indexes: a list of keys must not flip it to a sequential scan, nor the price of an avoided one to
// compilation. A transaction that is read-only anyway, as on a standby, stays so: to make it
// writable would fail with an error that is less clear than that of the write. Where row-level security would hide
// rows from our role, it is an error that names the table: nothing is done by half.
const settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
  set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
  set_config('transaction_read_only', CASE WHEN $3::boolean THEN 'on' ELSE current_setting('transaction_read_only') END, true),
  set_config('row_security', 'off', true), set_config('caretaker.traceparent', $4, true)`

// beginSQL begins the transaction of a statement behind a pooler, where there is no session that could be set
// to this isolation: the check behind a statement must see what was committed since.
const beginSQL = `begin isolation level read committed`

// NetTime is what a statement may take beyond its statement_timeout before its connection is given
// up.
const NetTime = 5 * time.Second

// Query is a statement, and the operation that it is part of, as spans and errors call it.
type Query struct {
	Operation string
	stmt.Statement
	// receipt is the statement behind it that writes its receipt; nil: it changes no rows of the
	// application.
	Receipt *stmt.Statement
	// check is the statement behind it that fails if it must change nothing; nil: none. See [FailIf].
	Check *stmt.Statement
	// table is that of its rows, as messages about protected rows name it; "": one of ours.
	Table string
}

// NewQuery is a statement of an operation.
func NewQuery(operation, sql string, args ...any) Query {
	return Query{Operation: operation, Statement: stmt.Statement{SQL: sql, Args: args}}
}

// Statements are all that is sent, in this order. The receipt comes last: it locks the head of all receipts.
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

// ReadRow runs a statement that returns one row. What into counts of [spans.Affected] rows is the span's.
func ReadRow(ctx context.Context, d *Database, l fencing.Limits, q Query, into ...any) error {
	ctx, into = spans.WithAffected(ctx, into)
	return Send(ctx, d, q.Operation, l, q.Statements(l), func(r pgx.BatchResults) error {
		return r.QueryRow().Scan(into...)
	})
}

// ReadRows runs a statement that returns many.
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

// Write runs a statement with the part {guard} that returns one row, which begins with whether the
// guard held. If not, the statement has changed nothing, and the error says what was missing. What
// changes rows of the application is sent by [lfk.Child.change].
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

// Change is write for what changes rows of the application: the statement notes them by receiptSQL,
// and the one behind it writes the receipt.
func Change(
	ctx context.Context, d *Database, p fencing.Permit, q Query, r Receipt, into ...any,
) error {
	q.Table, q.Receipt = r.Table, new(r.Write(p.Source, nil))
	return Write(ctx, d, p, q, into...)
}

// Send sends statements and the settings that bound them in one transaction and one round trip, so
// that a process that is stopped leaves nothing open behind it.
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
		// A write that we forbid ourselves says nothing about the server.
		return d.translate(ctx, operation, err)
	}
	return Wrap(ctx, d, operation, err)
}

// Condition is one under which a transaction must change nothing: then it fails with err.
type Condition struct {
	SQL string
	Err dberr.TextError
}

// FailIf is a statement that fails with the first of the conditions that holds; nil: there are none.
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

// preparedStatements is the key of a connection's set of statements that it knows, maxPrepared how
// many they may be.
const (
	preparedStatements = "github.com/caretaker-go/caretaker/repo"
	maxPrepared        = 512
)

// prepare makes statements known to a connection under the limits, the first time. Parsing waits
// for whoever has locked a table of a statement; left to pgx, which prepares before it sends the
// settings, it would wait without end.
func (d *Database) prepare(ctx context.Context, conn *pgx.Conn, l fencing.Limits, all []stmt.Statement) error {
	if !d.prepares {
		return nil
	}
	known, _ := conn.PgConn().CustomData()[preparedStatements].(map[string]struct{})
	unknown := slices.DeleteFunc(slices.Clone(all), func(s stmt.Statement) bool {
		_, ok := known[s.SQL]
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
		known = map[string]struct{}{}
		conn.PgConn().CustomData()[preparedStatements] = known
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, prepareSettingsSQL, stmt.Milliseconds(l.Statement), stmt.Milliseconds(l.Lock))
		for _, s := range unknown {
			if err == nil {
				_, err = conn.Prepare(ctx, s.SQL, s.SQL)
			}
			if err == nil {
				known[s.SQL] = struct{}{}
			}
		}
		return err
	})
}

// forget lets a connection prepare its statements again after an error that says that one is of no
// use any more.
func forget(ctx context.Context, conn *pgx.Conn, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || (pgErr.Code != "0A000" && pgErr.Code != "26000") {
		return nil
	}
	delete(conn.PgConn().CustomData(), preparedStatements)
	return conn.DeallocateAll(ctx)
}

// NoTimeoutSQL lets a transaction wait for its lock, and hold it, as long as migrations take, whatever limits the
// role has.
const NoTimeoutSQL = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true)`
