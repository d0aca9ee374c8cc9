package spans

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.30.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/caretaker-go/caretaker/repo/dberr"
)

// Operation is an operation that has not ended.
type Operation struct {
	// tracer makes its span, with these attributes.
	tracer     trace.Tracer
	attributes []attribute.KeyValue
	spans      *Spans
	name       string
	started    time.Time
	// Rows is the number of returned or changed rows.
	Rows int64
	// Failed is the number of statements that the server refused. The operation may have succeeded on
	// a retry.
	Failed int
	// Waited is how long it waited for a connection, requested at Asked.
	Waited time.Duration
	Asked  time.Time
	// queued are jobs by kind, of the last attempt of a transaction. dryRun: it is rolled back.
	queued map[string]int
	dryRun bool
	// Routine: it reads the clock or the catalogue, and has a span only if it failed or was slow.
	Routine bool
	// affected replace the rows: the numbers of changed rows that the statement itself returns.
	affected []*int64
	// Sent is the last sent statement, for the metrics.
	Sent Sent
}

// operationKey is the key of the operation in a context.
type operationKey struct{}

// Untraced returns a context without spans.
func Untraced(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, noop.Span{})
}

// OperationOf returns the operation of a context, nil if it has none.
func OperationOf(ctx context.Context) *Operation {
	o, _ := ctx.Value(operationKey{}).(*Operation)
	return o
}

// End counts the operation, and makes its span if it is to have one. A missing row is no failure.
// An operation that its caller cancelled is marked as interrupted.
func (o *Operation) End(ctx context.Context, err error) {
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
		o.Rows = 0
	}
	for _, n := range o.affected {
		o.Rows += *n
	}
	ended := time.Now() //nolint:forbidigo // a span's time is the host's
	cutOff := errors.Is(err, context.Canceled)
	kind, text := describe(err)
	took := ended.Sub(o.started)
	if !o.spans.count(o, took, !cutOff && kind != "" || o.Failed > 0) {
		return
	}
	_, span := o.tracer.Start(ctx, o.name, trace.WithTimestamp(o.started),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(o.attributes...),
		trace.WithAttributes(semconv.DBQuerySummary(o.name), attribute.Int64("pgx.rows_affected", o.Rows)))
	defer span.End(trace.WithTimestamp(ended))
	if o.Failed > 0 {
		span.SetAttributes(attribute.Int("maintenance.statements_failed", o.Failed))
	}
	if o.Waited >= longWait {
		span.SetAttributes(attribute.Float64("maintenance.connection_seconds", o.Waited.Seconds()))
	}
	switch {
	case cutOff:
		// A statement has not failed if it was cut off because its caller was stopped.
		span.SetAttributes(attribute.String("maintenance.outcome", "interrupted"))
	case kind != "":
		RecordError(span, kind, dberr.SQLState(err), text)
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

// longWait is the wait for a connection from which the span shows it.
const longWait = 100 * time.Millisecond

// Affected is a destination for a statement's row: the number of rows that the statement has
// changed. For a statement that ends with SELECT the server counts the result row instead.
type Affected struct{ Rows *int64 }

// WithAffected takes them from the destinations, for the operation of the context.
func WithAffected(ctx context.Context, into []any) (context.Context, []any) {
	var changed []*int64
	into = slices.Clone(into)
	for i, v := range into {
		if a, ok := v.(Affected); ok {
			into[i] = a.Rows
			changed = append(changed, a.Rows)
		}
	}
	return WithOperation(ctx, &Operation{affected: changed}), into
}

// CountQueued counts jobs that the transaction of a context queues, if it commits.
func CountQueued(ctx context.Context, kind string, n int) {
	if o := OperationOf(ctx); o != nil {
		if o.queued == nil {
			o.queued = map[string]int{}
		}
		o.queued[kind] += n
	}
}

// Try starts an attempt of a transaction, and resets what the previous one has queued.
func (o *Operation) Try(dryRun bool) {
	if o != nil {
		o.queued, o.dryRun = nil, dryRun
	}
}

// Sent is a running statement, or several that were sent together.
type Sent struct {
	SQL string
	// Began is zero for overhead.
	Began time.Time
	// Failure is the first failure.
	Failure error
}

// describe returns an error's class and a description that quotes nothing: for the server's errors
// the SQLSTATE with PostgreSQL's name. Without a failure the class is empty: a lost lease is a
// failure, a missing row, or one that must be kept, is an answer.
func describe(err error) (kind, text string) {
	state := dberr.SQLState(err)
	switch {
	case err == nil:
		return "", ""
	case state != "":
		return state, (&dberr.Error{SQLState: state}).Condition()
	case errors.Is(err, dberr.ErrLeaseLost):
		return "LEASE_LOST", dberr.ErrLeaseLost.Error()
	case errors.Is(err, dberr.ErrJobLost):
		return "JOB_LOST", dberr.ErrJobLost.Error()
	case errors.Is(err, context.Canceled):
		return "cancelled", "cancelled"
	case errors.Is(err, dberr.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), disconnected(err):
		return "unreachable", dberr.ErrUnreachable.Error()
	case dberr.Ours(err):
		return "", ""
	}
	return "_OTHER", "the database did not answer, or answered unexpectedly"
}

// disconnected reports whether there was no connection, or it was lost.
func disconnected(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Begin starts an operation. tracer makes its span, if it is to have one, with these attributes.
// Begin returns nil, at no cost, if nothing is traced.
func Begin(
	ctx context.Context, tracer trace.Tracer, attributes []attribute.KeyValue, name string,
) (context.Context, *Operation) {
	var o *Operation
	if spans := spansOf(ctx); spans != nil && recording(ctx) {
		o = &Operation{
			tracer: tracer, attributes: attributes, spans: spans, name: name,
			started: time.Now(), //nolint:forbidigo // a span's time is the host's
		}
		if to := OperationOf(ctx); to != nil && to.spans == nil {
			o.affected = to.affected
		}
	}
	return WithOperation(ctx, o), o
}

// Work returns the worker or kind of job of a context's statements, "" for bookkeeping.
func Work(ctx context.Context) string { return scopeOf(ctx).work }

// WithOperation returns a context with an operation.
func WithOperation(ctx context.Context, o *Operation) context.Context {
	return context.WithValue(ctx, operationKey{}, o)
}
