package repo

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// What the methods of this package do is traced by the operation: one span for a statement or a
// transaction with all that it needs (a connection, preparation, BEGIN, settings, COMMIT), called
// by the name that the method gives. A span has no text of statements, no values, and no words of
// the server's, which may quote rows. It is made when the operation has ended: [Spans] decides
// of which operations there is one.

// operation is one that has not ended.
type operation struct {
	database *Database
	spans    *Spans
	name     string
	started  time.Time
	// rows that came back or were changed.
	rows int64
	// failed are the statements that the server refused; the operation may have succeeded at a
	// second try.
	failed int
	// waited for a connection, which it has asked for at asked.
	waited time.Duration
	asked  time.Time
	// queued are jobs by kind, of the last try of a transaction; dryRun: it is rolled back.
	queued map[string]int
	dryRun bool
	// routine: a look at the clock or the catalogue, which is worth a span only if it failed or was
	// slow.
	routine bool
	// affected are in place of the rows what the statement itself says that it has changed.
	affected []*int64
	// sent is what has been sent last, for the metrics.
	sent sent
}

type operationKey struct{}

// untraced is a context without spans.
func untraced(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, noop.Span{})
}

// begin begins an operation. It is nil, and costs nothing, where nothing is traced.
func (d *Database) begin(ctx context.Context, name string) (context.Context, *operation) {
	var o *operation
	if spans := spansOf(ctx); spans != nil && recording(ctx) {
		o = &operation{
			database: d, spans: spans, name: name,
			started: time.Now(), //nolint:forbidigo // a span's time is the host's
		}
		if to := operationOf(ctx); to != nil && to.database == nil {
			o.affected = to.affected
		}
	}
	return context.WithValue(ctx, operationKey{}, o), o
}

// beginRoutine is begin for a look at the clock or the catalogue.
func (d *Database) beginRoutine(ctx context.Context, name string) (context.Context, *operation) {
	ctx, o := d.begin(ctx, name)
	if o != nil {
		o.routine = true
	}
	return ctx, o
}

func operationOf(ctx context.Context) *operation {
	o, _ := ctx.Value(operationKey{}).(*operation)
	return o
}

// end counts the operation, and makes its span if there is to be one.
func (o *operation) end(ctx context.Context, err error) {
	if o == nil {
		return
	}
	if err != nil {
		o.queued = nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	if len(o.affected) > 0 {
		o.rows = 0
	}
	for _, n := range o.affected {
		o.rows += *n
	}
	ended := time.Now() //nolint:forbidigo // a span's time is the host's
	cutOff := errors.Is(err, context.Canceled)
	kind, text := describe(err)
	took := ended.Sub(o.started)
	if !o.spans.count(o, took, !cutOff && kind != "" || o.failed > 0) {
		return
	}
	_, span := o.database.spans.Start(ctx, o.name, trace.WithTimestamp(o.started),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(o.database.attributes...),
		trace.WithAttributes(semconv.DBQuerySummary(o.name), attribute.Int64("pgx.rows_affected", o.rows)))
	defer span.End(trace.WithTimestamp(ended))
	if o.failed > 0 {
		span.SetAttributes(attribute.Int("maintenance.statements_failed", o.failed))
	}
	if o.waited >= longWait {
		span.SetAttributes(attribute.Float64("maintenance.connection_seconds", o.waited.Seconds()))
	}
	switch {
	case cutOff:
		// A statement that was cut off because its caller was stopped has not failed.
		span.SetAttributes(attribute.String("maintenance.outcome", "interrupted"))
	case kind != "":
		RecordError(span, kind, sqlState(err), text)
	}
}

// RecordError marks a span as failed: the class of the error, its SQLSTATE or "", and a text that
// quotes nothing.
func RecordError(span trace.Span, kind, state, text string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	if state != "" {
		span.SetAttributes(semconv.DBResponseStatusCode(state))
	}
	span.AddEvent(semconv.ExceptionEventName,
		trace.WithAttributes(semconv.ExceptionType(kind), semconv.ExceptionMessage(text)))
	span.SetStatus(codes.Error, text)
}

// longWait is from when on the wait for a connection is shown on the span.
const longWait = 100 * time.Millisecond

// affected is, among the variables that a statement's row is read into, the number of rows that
// the statement has changed: what the server says of one that ends with SELECT is the row itself.
type affected struct{ rows *int64 }

// withAffected takes them from the variables, for the operation that is begun with the context.
func withAffected(ctx context.Context, into []any) (context.Context, []any) {
	var changed []*int64
	into = slices.Clone(into)
	for i, v := range into {
		if a, ok := v.(affected); ok {
			into[i] = a.rows
			changed = append(changed, a.rows)
		}
	}
	return context.WithValue(ctx, operationKey{}, &operation{affected: changed}), into
}

// CountQueued counts jobs that are queued in the transaction of a context, if it is committed.
func CountQueued(ctx context.Context, kind string, n int) {
	if o := operationOf(ctx); o != nil {
		if o.queued == nil {
			o.queued = map[string]int{}
		}
		o.queued[kind] += n
	}
}

// try begins a try of a transaction, and forgets what the one before has queued.
func (o *operation) try(dryRun bool) {
	if o != nil {
		o.queued, o.dryRun = nil, dryRun
	}
}

// tracer measures statements, for the metrics, and records with the operation that sends them how
// they ended.
type tracer struct{ times *statementTimes }

// traceAttributes are those of all operations on a database.
func traceAttributes(name string, config *pgx.ConnConfig) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("maintenance.database", name), semconv.DBNamespace(config.Database),
		semconv.ServerAddress(config.Host), semconv.ServerPort(int(config.Port)),
		semconv.DBSystemNamePostgreSQL,
	}
}

func newSpans() trace.Tracer { return otel.Tracer("github.com/caretaker-go/caretaker/repo") }

// overhead reports whether a statement only prepares or ends what others do: those are not
// measured.
func overhead(sql string) bool {
	switch sql {
	case "commit", "rollback", prepareSettingsSQL, constraintsSQL, beginProbeSQL, probeTimeSQL, endProbeSQL:
		return true
	}
	return hasPrefix(sql, "begin", settingsSQL, txSettingsSQL, "DO $caretaker$") ||
		strings.HasSuffix(sql, heldSQL)
}

// note counts what came of a statement.
func note(ctx context.Context, sql string, tag pgconn.CommandTag, err error) {
	o := operationOf(ctx)
	if o == nil || overhead(sql) && err == nil {
		return
	}
	o.rows += tag.RowsAffected()
	if err != nil && !errors.Is(err, context.Canceled) {
		o.failed++
	}
}

// sent is a statement, or several that were sent together, until it has ended.
type sent struct {
	sql string
	// began is zero of overhead.
	began time.Time
	// failure is the first one.
	failure error
}

// TraceQueryStart begins to measure.
func (*tracer) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	return measure(ctx, data.SQL, !overhead(data.SQL))
}

// measure begins to measure what is sent next, within the context's operation or by itself.
func measure(ctx context.Context, sql string, measured bool) context.Context {
	o := operationOf(ctx)
	if o == nil {
		o = &operation{}
		ctx = context.WithValue(ctx, operationKey{}, o)
	}
	o.sent = sent{sql: sql}
	if measured {
		o.sent.began = time.Now() //nolint:forbidigo // measures
	}
	return ctx
}

// TraceQueryEnd measures.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s := operationOf(ctx).sent
	note(ctx, s.sql, data.CommandTag, data.Err)
	t.times.add(ctx, s.began, data.Err)
}

// TraceBatchStart begins to measure statements that are sent together.
func (*tracer) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	measured := func(q *pgx.QueuedQuery) bool { return !overhead(q.SQL) }
	return measure(ctx, "", slices.ContainsFunc(data.Batch.QueuedQueries, measured))
}

// TraceBatchQuery keeps the first failure.
func (*tracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	note(ctx, data.SQL, data.CommandTag, data.Err)
	s := &operationOf(ctx).sent
	s.failure = cmp.Or(s.failure, data.Err)
}

// TraceBatchEnd measures.
func (t *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	s := operationOf(ctx).sent
	t.times.add(ctx, s.began, cmp.Or(data.Err, s.failure))
}

// TraceAcquireStart begins to measure the wait for a connection.
func (*tracer) TraceAcquireStart(
	ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData,
) context.Context {
	if o := operationOf(ctx); o != nil {
		o.asked = time.Now() //nolint:forbidigo // measures
	}
	return ctx
}

// TraceAcquireEnd counts it.
func (*tracer) TraceAcquireEnd(
	ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData,
) {
	if o := operationOf(ctx); o != nil {
		o.waited += time.Since(o.asked) //nolint:forbidigo // measures
	}
}

// describe is an error's class and its description in words that quote nothing: of the server's
// errors the SQLSTATE and PostgreSQL's name of it. What has not failed has no class: that a lease
// is lost is a failure, that a row is not there, or must be kept, is an answer.
func describe(err error) (kind, text string) {
	state := sqlState(err)
	switch {
	case err == nil:
		return "", ""
	case state != "":
		return state, (&Error{SQLState: state}).Condition()
	case errors.Is(err, ErrLeaseLost):
		return "LEASE_LOST", ErrLeaseLost.Error()
	case errors.Is(err, ErrJobLost):
		return "JOB_LOST", ErrJobLost.Error()
	case errors.Is(err, context.Canceled):
		return "cancelled", "cancelled"
	case errors.Is(err, ErrUnreachable), errors.Is(err, context.DeadlineExceeded), disconnected(err):
		return "unreachable", ErrUnreachable.Error()
	case ours(err):
		return "", ""
	}
	return "_OTHER", "the database did not answer, or not as expected"
}

// disconnected reports whether there was no connection, or none any more.
func disconnected(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF)
}
