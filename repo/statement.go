package repo

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statement is an SQL text with its parameters.
type statement struct {
	sql  string
	args []any
}

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

// netTime is what a statement may take beyond its statement_timeout before its connection is given
// up.
const netTime = 5 * time.Second

// query is a statement, and the operation that it is part of, as spans and errors call it.
type query struct {
	operation string
	statement
	// receipt is the statement behind it that writes its receipt; nil: it changes no rows of the
	// application.
	receipt *statement
	// check is the statement behind it that fails if it must change nothing; nil: none. See [failIf].
	check *statement
	// table is that of its rows, as messages about protected rows name it; "": one of ours.
	table string
}

func newQuery(operation, sql string, args ...any) query {
	return query{operation: operation, statement: statement{sql, args}}
}

// statements are all that is sent, in this order. The receipt comes last: it locks the head of all receipts.
func (q query) statements(l Limits) []statement {
	all := []statement{q.statement}
	if q.check != nil {
		all = append(all, *q.check)
	}
	if l.targets.check != "" {
		all = append(all, statement{sql: l.targets.check})
	}
	if q.receipt != nil {
		all = append(all, *q.receipt)
	}
	return all
}

// first are the statements that follow the settings of a transaction.
func (l Limits) first() (all []statement) {
	for _, sql := range []string{l.targets.note, l.before} {
		if sql != "" {
			all = append(all, statement{sql: sql})
		}
	}
	return all
}

// readRow runs a statement that returns one row. What into counts of [affected] rows is the span's.
func (d *Database) readRow(ctx context.Context, l Limits, q query, into ...any) error {
	ctx, into = withAffected(ctx, into)
	return d.send(ctx, q.operation, l, q.statements(l), func(r pgx.BatchResults) error {
		return r.QueryRow().Scan(into...)
	})
}

// readRows runs a statement that returns many.
func readRows[T any](
	ctx context.Context, d *Database, l Limits, q query, scan pgx.RowToFunc[T],
) (out []T, err error) {
	err = d.send(ctx, q.operation, l, q.statements(l), collectInto(&out, scan))
	return out, err
}

// collectInto reads the rows of the next statement.
func collectInto[T any](out *[]T, scan pgx.RowToFunc[T]) func(pgx.BatchResults) error {
	return func(results pgx.BatchResults) (err error) {
		rows, _ := results.Query()
		*out, err = pgx.CollectRows(rows, scan)
		return err
	}
}

// write runs a statement with the part {guard} that returns one row, which begins with whether the
// guard held. If not, the statement has changed nothing, and the error says what was missing. What
// changes rows of the application is sent by [Database.change].
func (d *Database) write(ctx context.Context, p Permit, q query, into ...any) error {
	p, err := d.watching(ctx, p)
	if err != nil {
		return err
	}
	var held bool
	q.statement = p.fill(q.statement)
	err = d.readRow(p.finishing(ctx), p.Limits, q, append([]any{&held}, into...)...)
	if err == nil && !held {
		return d.wrap(ctx, q.operation, p.refused(ctx, d.pool))
	}
	return protectedBy(err, q.table)
}

// change is write for what changes rows of the application: the statement notes them by receiptSQL,
// and the one behind it writes the receipt.
func (d *Database) change(
	ctx context.Context, p Permit, q query, r receipt, into ...any,
) error {
	q.table, q.receipt = r.table, new(r.write(p.Source, nil))
	return d.write(ctx, p, q, into...)
}

// send sends statements and the settings that bound them in one transaction and one round trip, so
// that a process that is stopped leaves nothing open behind it.
func (d *Database) send(
	ctx context.Context, operation string, l Limits, statements []statement,
	read func(pgx.BatchResults) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.Statement+l.Lock+netTime, ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	err := d.pool.AcquireFunc(ctx, func(pooled *pgxpool.Conn) error {
		conn := pooled.Conn()
		batch := &pgx.Batch{}
		if !d.sessions {
			batch.Queue(beginSQL)
		}
		batch.Queue(settingsSQL, milliseconds(l.Statement), milliseconds(l.Lock), l.ReadOnly, traceParentOf(ctx))
		before := l.first()
		skip := batch.Len() + len(before)
		statements = slices.Concat(before, statements)
		if err := d.prepare(ctx, conn, l, statements); err != nil {
			return err
		}
		for _, s := range statements {
			batch.Queue(s.sql, s.args...)
		}
		if !d.sessions {
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
	o.end(ctx, err)
	if l.ReadOnly && !ours(err) {
		// A write that we forbid ourselves says nothing about the server.
		return d.translate(ctx, operation, err)
	}
	return d.wrap(ctx, operation, err)
}

// textError is an error that is nothing but its text, which is fit for clients.
type textError string

func (e textError) Error() string { return string(e) }

// Public marks it as fit for clients.
func (e textError) Public() {}

// condition is one under which a transaction must change nothing: then it fails with err.
type condition struct {
	sql string
	err textError
}

// failIf is a statement that fails with the first of the conditions that holds; nil: there are none.
func failIf(all []condition, args parameters) *statement {
	if len(all) == 0 {
		return nil
	}
	var cases strings.Builder
	for _, c := range all {
		cases.WriteString("\n  WHEN " + c.sql + " THEN '" + c.err.Error() + "'")
	}
	return &statement{"SELECT (CASE" + cases.String() + " END)::int", args}
}

// asCondition is the error of a condition that such a statement failed with. PostgreSQL's message repeats the
// text, in quotes that depend on lc_messages.
func asCondition(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "22P02" {
		return err
	}
	if e := lostTarget(pgErr.Message); e != nil {
		return e
	}
	for _, e := range []textError{ErrLivingParent, ErrChildChanged, errNoTargetTable} {
		if strings.Contains(pgErr.Message, e.Error()) {
			return e
		}
	}
	return err
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
func (d *Database) prepare(ctx context.Context, conn *pgx.Conn, l Limits, all []statement) error {
	if !d.prepares {
		return nil
	}
	known, _ := conn.PgConn().CustomData()[preparedStatements].(map[string]struct{})
	unknown := slices.DeleteFunc(slices.Clone(all), func(s statement) bool {
		_, ok := known[s.sql]
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
		_, err := tx.Exec(ctx, prepareSettingsSQL, milliseconds(l.Statement), milliseconds(l.Lock))
		for _, s := range unknown {
			if err == nil {
				_, err = conn.Prepare(ctx, s.sql, s.sql)
			}
			if err == nil {
				known[s.sql] = struct{}{}
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

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// fill puts quoted identifiers, or fragments made of them, into an SQL constant: pairs of {name}
// and text.
func fill(sql string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(sql)
}

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }
