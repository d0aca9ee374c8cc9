package repo

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
)

// failingSpan takes what otelpgx says of an error, as errors should be told: by their class, quoting nothing. A statement
// that was cut off because its caller was told to stop has not failed.
type failingSpan struct {
	trace.Span
	err error
}

// telling is a context in which otelpgx tells an error to a span in our way.
func telling(ctx context.Context, err error) context.Context {
	span := trace.SpanFromContext(ctx)
	if err == nil || !span.IsRecording() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, failingSpan{span, err})
}

func (s failingSpan) cutOff() bool { return errors.Is(s.err, context.Canceled) }

// RecordError is an event with the class in place of the Go type.
func (s failingSpan) RecordError(error, ...trace.EventOption) {
	if s.cutOff() {
		s.Span.SetAttributes(attribute.String("maintenance.outcome", "interrupted"))
		return
	}
	kind, text := describe(s.err)
	s.Span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	if pgErr, is := errors.AsType[*pgconn.PgError](s.err); is {
		s.Span.SetAttributes(semconv.DBResponseStatusCode(pgErr.Code))
	}
	s.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(semconv.ExceptionType(kind), semconv.ExceptionMessage(text)))
}

// SetStatus replaces the words.
func (s failingSpan) SetStatus(code codes.Code, _ string) {
	if _, text := describe(s.err); !s.cutOff() {
		s.Span.SetStatus(code, text)
	}
}

// SetAttributes leaves out what otelpgx says of the error besides.
func (failingSpan) SetAttributes(...attribute.KeyValue) {}

// describe is an error's class and its description in words that quote nothing: of the server's errors the SQLSTATE and
// PostgreSQL's name of it.
func describe(err error) (kind, text string) {
	state := sqlState(err)
	switch {
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
	}
	return "_OTHER", "the database did not answer, or not as expected"
}

// disconnected says whether there was no connection, or none any more.
func disconnected(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF)
}
