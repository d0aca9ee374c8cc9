package repo

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// tracer is otelpgx's, of which it makes spans that say what a statement does to which table: no text of statements, no
// values, no words of the server's, which may quote rows. A statement that is sent together with its settings is one
// span. What a statement needs besides - a connection, its preparation, BEGIN, settings, COMMIT - has a span only if it
// failed, or took slowPlumbing.
type tracer struct {
	*otelpgx.Tracer
	attributes []attribute.KeyValue
	late       trace.Tracer
	times      *statementTimes
	summaries  *summaries
}

// summaries of statements that were sent before: to read one takes longer than some take to run.
type summaries struct {
	mu    sync.Mutex
	known map[string]string
}

func (s *summaries) of(sql string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	summary, known := s.known[sql]
	if !known {
		if len(s.known) >= maxPrepared {
			clear(s.known)
		}
		summary = summarize(sql)
		s.known[sql] = summary
	}
	return summary
}

// slowPlumbing is from when on what should take no time is worth a span.
const slowPlumbing = 100 * time.Millisecond

func newTracer(ctx context.Context, name string, config *pgx.ConnConfig) (*tracer, error) {
	times, err := newStatementTimes(ctx, name)
	if err != nil {
		return nil, err
	}
	attributes := []attribute.KeyValue{
		attribute.String("maintenance.database", name), semconv.DBNamespace(config.Database),
		semconv.ServerAddress(config.Host), semconv.ServerPort(int(config.Port)),
	}
	return &tracer{
		Tracer: otelpgx.NewTracer(
			otelpgx.WithDisableSQLStatementInAttributes(), otelpgx.WithDisableConnectionDetailsInAttributes(),
			otelpgx.WithTracerAttributes(attributes...), otelpgx.WithSpanNameCtxFunc(spanName)),
		attributes: append(attributes, semconv.DBSystemNamePostgreSQL),
		late:       otel.Tracer("github.com/caretaker-go/caretaker/repo"),
		summaries:  &summaries{known: map[string]string{}},
		times:      times,
	}, nil
}

// traceParentKey is the context's key of what WithTraceParent has set.
type traceParentKey struct{}

// WithTraceParent lets the triggers of tracked tables note a span (W3C) beside the records of rows that statements of this
// context delete: the setting caretaker.traceparent.
func WithTraceParent(ctx context.Context, parent string) context.Context {
	return context.WithValue(ctx, traceParentKey{}, parent)
}

func traceParentOf(ctx context.Context) string {
	parent, _ := ctx.Value(traceParentKey{}).(string)
	return parent
}

// Keys of contexts that go from the start of what is traced to its end.
type (
	summaryKey  struct{}
	plumbingKey struct{}
	failureKey  struct{}
)

func spanName(ctx context.Context, _ string) string {
	summary, _ := ctx.Value(summaryKey{}).(string)
	return summary
}

// plumbing is what has no span yet.
type plumbing struct {
	caller  context.Context //nolint:containedctx // of the span that it may get
	name    string
	started time.Time
}

func recording(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// quietly is a context for otelpgx that makes no span.
func quietly(ctx context.Context, name string) context.Context {
	if recording(ctx) {
		ctx = context.WithValue(ctx, plumbingKey{}, &plumbing{ctx, name, time.Now()}) //nolint:forbidigo // a span's time is the host's
	}
	return trace.ContextWithSpan(ctx, noop.Span{})
}

// settle makes the span of plumbing after all, if it is worth one.
func (t *tracer) settle(ctx context.Context, err error) {
	p, _ := ctx.Value(plumbingKey{}).(*plumbing)
	if p == nil || err == nil && time.Since(p.started) < slowPlumbing { //nolint:forbidigo // a span's time is the host's
		return
	}
	_, span := t.late.Start(p.caller, p.name, trace.WithTimestamp(p.started), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(t.attributes...))
	defer span.End()
	if err != nil {
		failing := failingSpan{span, err}
		failing.RecordError(err)
		failing.SetStatus(codes.Error, "")
	}
}

// plumbed says whether a statement is plumbing.
func plumbed(sql string) bool {
	switch sql {
	case "commit", settingsSQL, txSettingsSQL, prepareSettingsSQL, fenceRowSQL, ddlSettingsSQL, readOnlySettingsSQL, constraintsSQL, lookSQL, lookTimeSQL, lookedSQL:
		return true
	}
	return strings.HasPrefix(sql, "begin") || strings.HasPrefix(sql, "rollback")
}

// TraceQueryStart begins the span of a statement.
func (t *tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !plumbed(data.SQL) {
		ctx = t.times.begin(ctx)
	}
	if !recording(ctx) {
		return t.Tracer.TraceQueryStart(ctx, conn, data)
	}
	summary := t.summaries.of(data.SQL)
	if plumbed(data.SQL) {
		return t.Tracer.TraceQueryStart(quietly(ctx, summary), conn, data)
	}
	ctx = t.Tracer.TraceQueryStart(context.WithValue(ctx, summaryKey{}, summary), conn, data)
	trace.SpanFromContext(ctx).SetAttributes(semconv.DBQuerySummary(summary))
	return ctx
}

// TraceQueryEnd ends it.
func (t *tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	t.times.end(ctx, data.Err)
	t.settle(ctx, data.Err)
	t.Tracer.TraceQueryEnd(telling(ctx, data.Err), conn, data)
}

// TraceBatchStart begins the one span of statements that are sent together.
func (t *tracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	failure := new(error)
	if batchIsPlumbing(data.Batch) {
		name := ""
		if recording(ctx) && data.Batch.Len() > 0 {
			name = t.summaries.of(data.Batch.QueuedQueries[0].SQL)
		}
		ctx = t.Tracer.TraceBatchStart(quietly(ctx, name), conn, data)
		return context.WithValue(ctx, failureKey{}, failure)
	}
	ctx = t.times.begin(ctx)
	if recording(ctx) {
		summary := ""
		for _, q := range data.Batch.QueuedQueries {
			if !plumbed(q.SQL) && len(summary) < 100 {
				summary += " " + t.summaries.of(q.SQL)
			}
		}
		ctx = t.Tracer.TraceBatchStart(ctx, conn, data)
		span := trace.SpanFromContext(ctx)
		span.SetName(summary[min(1, len(summary)):])
		span.SetAttributes(semconv.DBQuerySummary(summary[min(1, len(summary)):]))
	} else {
		ctx = t.Tracer.TraceBatchStart(ctx, conn, data)
	}
	return context.WithValue(ctx, failureKey{}, failure)
}

// TraceBatchQuery makes no span, but keeps the failure of one of them.
func (t *tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	if failure, is := ctx.Value(failureKey{}).(*error); is && *failure == nil {
		*failure = data.Err
	}
	t.Tracer.TraceBatchQuery(trace.ContextWithSpan(ctx, noop.Span{}), conn, data)
}

// TraceBatchEnd ends the span.
func (t *tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	if failure, is := ctx.Value(failureKey{}).(*error); is && data.Err == nil {
		data.Err = *failure
	}
	t.times.end(ctx, data.Err)
	t.settle(ctx, data.Err)
	t.Tracer.TraceBatchEnd(telling(ctx, data.Err), conn, data)
}

// TracePrepareStart is plumbing.
func (t *tracer) TracePrepareStart(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	name := ""
	if recording(ctx) {
		name = "PREPARE " + t.summaries.of(data.SQL)
	}
	return t.Tracer.TracePrepareStart(quietly(ctx, name), conn, data)
}

// TracePrepareEnd is plumbing.
func (t *tracer) TracePrepareEnd(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareEndData) {
	t.settle(ctx, data.Err)
	t.Tracer.TracePrepareEnd(ctx, conn, data)
}

// TraceConnectStart is plumbing.
func (t *tracer) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	return t.Tracer.TraceConnectStart(quietly(ctx, "connect"), data)
}

// TraceConnectEnd is plumbing.
func (t *tracer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	t.settle(ctx, data.Err)
	t.Tracer.TraceConnectEnd(ctx, data)
}

// TraceAcquireStart is plumbing.
func (t *tracer) TraceAcquireStart(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireStartData) context.Context {
	return t.Tracer.TraceAcquireStart(quietly(ctx, "wait for a connection"), pool, data)
}

// TraceAcquireEnd is plumbing.
func (t *tracer) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	t.settle(ctx, data.Err)
	t.Tracer.TraceAcquireEnd(ctx, pool, data)
}
