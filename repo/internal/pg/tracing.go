package pg

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/spans"
)

// Each operation of this package makes one span: for a statement or a transaction with everything
// that it needs (a connection, preparation, BEGIN, settings, COMMIT). The method gives its name. A
// span has no SQL, no values, and no text of the server, which may quote rows. It is made when the
// operation has ended. [spans.Spans] decides which operations have a span.

// begin starts an operation. It returns nil, at no cost, if nothing is traced.
func (d *Database) begin(ctx context.Context, name string) (context.Context, *spans.Operation) {
	return spans.Begin(ctx, d.spans, d.attributes, name)
}

// BeginRoutine is begin for reading the clock or the catalogue.
func BeginRoutine(ctx context.Context, d *Database, name string) (context.Context, *spans.Operation) {
	ctx, o := d.begin(ctx, name)
	if o != nil {
		o.Routine = true
	}
	return ctx, o
}

// tracer measures statements for the metrics, and records their outcome in the operation that sends
// them.
type tracer struct{ times *statementTimes }

// traceAttributes returns the attributes of all operations on a database.
func traceAttributes(name string, config *pgx.ConnConfig) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("maintenance.database", name), semconv.DBNamespace(config.Database),
		semconv.ServerAddress(config.Host), semconv.ServerPort(int(config.Port)),
		semconv.DBSystemNamePostgreSQL,
	}
}

func newSpans() trace.Tracer { return otel.Tracer("github.com/caretaker-go/caretaker/repo") }

// boundSQL is the beginning of statements that set the limits of others.
const boundSQL = `SELECT set_config('statement_timeout', $1, true)`

// overhead reports whether a statement only prepares or ends others. Such statements are not
// measured.
func overhead(sql string) bool {
	switch sql {
	case "commit", "rollback", constraintsSQL:
		return true
	}
	return dberr.HasPrefix(sql, "begin", "SAVEPOINT ", "ROLLBACK TO ", "DO $caretaker$", boundSQL) ||
		strings.HasSuffix(sql, heldSQL)
}

// note records the result of a statement.
func note(ctx context.Context, sql string, tag pgconn.CommandTag, err error) {
	o := spans.OperationOf(ctx)
	if o == nil || overhead(sql) && err == nil {
		return
	}
	o.Rows += tag.RowsAffected()
	if err != nil && !errors.Is(err, context.Canceled) {
		o.Failed++
	}
}

// TraceQueryStart starts measuring.
func (*tracer) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	return measure(ctx, data.SQL, !overhead(data.SQL))
}

// measure starts measuring the next statement, within the context's operation or by itself.
func measure(ctx context.Context, sql string, measured bool) context.Context {
	o := spans.OperationOf(ctx)
	if o == nil {
		o = &spans.Operation{}
		ctx = spans.WithOperation(ctx, o)
	}
	o.Sent = spans.Sent{SQL: sql}
	if measured {
		o.Sent.Began = time.Now() //nolint:forbidigo // measures
	}
	return ctx
}

// TraceQueryEnd ends measuring.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s := spans.OperationOf(ctx).Sent
	note(ctx, s.SQL, data.CommandTag, data.Err)
	t.times.add(ctx, s.Began, data.Err)
}

// TraceBatchStart starts measuring statements that are sent together.
func (*tracer) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	measured := func(q *pgx.QueuedQuery) bool { return !overhead(q.SQL) }
	return measure(ctx, "", slices.ContainsFunc(data.Batch.QueuedQueries, measured))
}

// TraceBatchQuery records the first failure.
func (*tracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	note(ctx, data.SQL, data.CommandTag, data.Err)
	s := &spans.OperationOf(ctx).Sent
	s.Failure = cmp.Or(s.Failure, data.Err)
}

// TraceBatchEnd ends measuring.
func (t *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	s := spans.OperationOf(ctx).Sent
	t.times.add(ctx, s.Began, cmp.Or(data.Err, s.Failure))
}

// TraceAcquireStart starts measuring the wait for a connection.
func (*tracer) TraceAcquireStart(
	ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData,
) context.Context {
	if o := spans.OperationOf(ctx); o != nil {
		o.Asked = time.Now() //nolint:forbidigo // measures
	}
	return ctx
}

// TraceAcquireEnd adds the wait.
func (*tracer) TraceAcquireEnd(
	ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData,
) {
	if o := spans.OperationOf(ctx); o != nil {
		o.Waited += time.Since(o.Asked) //nolint:forbidigo // measures
	}
}
