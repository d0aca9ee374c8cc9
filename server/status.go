package server

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/caretaker-go/caretaker/service/run/fault"
)

// domain is the domain of every ErrorInfo.
const domain = "caretaker"

// invalidArgument is the ErrorInfo reason for an invalid field of the request.
const invalidArgument = "INVALID_ARGUMENT"

// retryStopping is when a client of a stopping server may retry: another replica can answer.
const retryStopping = time.Second

// failure is the part of an error that a client gets.
type failure struct {
	code codes.Code
	// reason is the code for programs. It is in ErrorInfo, together with metadata.
	reason string
	// message is for people, and contains no driver text.
	message  string
	metadata map[string]string
	details  []protoadapt.MessageV1
}

// clientError converts an error to the status that a client gets.
func clientError(ctx context.Context, err error) error {
	if s, ok := status.FromError(err); ok {
		// The error comes from gRPC, such as for a message that is too large.
		return s.Err()
	}
	f := errorInfo(ctx, err)
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.String("maintenance.reason", f.reason))
	serverErrors := []codes.Code{codes.Internal, codes.Unavailable, codes.DeadlineExceeded}
	if slices.Contains(serverErrors, f.code) {
		// otelgrpc sets the span's status to Error for these codes.
		name := code.Code(f.code).String() //nolint:gosec // the same numbers
		span.SetAttributes(semconv.ErrorTypeKey.String(name))
	}
	if f.code == codes.Aborted {
		// The text of ABORTED names the lease holder. Texts of pauses are written by operators, and
		// must not be in traces.
		span.SetAttributes(attribute.String("maintenance.stopped_because", f.message))
	}
	info := &errdetails.ErrorInfo{Domain: domain, Reason: f.reason, Metadata: f.metadata}
	details := append([]protoadapt.MessageV1{info}, f.details...)
	s, detailErr := status.New(f.code, f.message).WithDetails(details...)
	if detailErr != nil {
		return status.Error(f.code, f.message)
	}
	return s.Err()
}

// detailed is an error with details for the client besides its text.
type detailed interface {
	error
	Details() (reason string, metadata map[string]string)
}

// errorInfo is the only table from errors to what clients get.
func errorInfo(ctx context.Context, err error) failure {
	e, ok := errors.AsType[detailed](err)
	if !ok {
		return contextError(ctx, err)
	}
	f := failure{message: e.Error()}
	f.reason, f.metadata = e.Details()
	f.code = codeOf(f.reason)
	if f.code == codes.NotFound {
		// The text of a request may be longer than the metadata that its client accepts.
		f.metadata = maps.Clone(f.metadata)
		for key, text := range f.metadata {
			f.metadata[key] = cut(text, maxTarget)
		}
	}
	if invalid, ok := errors.AsType[*fault.InvalidArgumentError](err); ok {
		f.details = []protoadapt.MessageV1{&errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: invalid.Field, Description: invalid.Description},
			},
		}}
	}
	later, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err)
	if ok && later.RetryAfter() > 0 {
		f.details = retryAfter(later.RetryAfter())
	}
	return f
}

// codeOf returns the code of an error with a reason.
func codeOf(reason string) codes.Code {
	switch reason {
	case invalidArgument:
		return codes.InvalidArgument
	case "UNAUTHENTICATED":
		return codes.Unauthenticated
	case "NO_ROLE_FOR_RPC", "ROLE_TOO_LOW", "WORKER_NOT_ALLOWED":
		return codes.PermissionDenied
	case "LEASE_HELD", fault.ReasonTargetBusy:
		return codes.Aborted
	case "REQUEST_ID_REUSED":
		return codes.AlreadyExists
	case "MESSAGE_TOO_LARGE", "RATE_LIMITED", "STREAMS_BUSY", "PLANS_BUSY":
		return codes.ResourceExhausted
	}
	if strings.HasPrefix(reason, "UNKNOWN_") {
		return codes.NotFound
	}
	return codes.FailedPrecondition
}

// contextError is the part of the table for ended calls, a stopping server, and databases.
func contextError(ctx context.Context, err error) failure {
	switch {
	case errors.Is(err, fault.ErrStopping), errors.Is(context.Cause(ctx), fault.ErrStopping):
		return failure{
			code: codes.Unavailable, reason: "SERVER_STOPPING",
			message: "the server is stopping: retry, or call a different server",
			details: retryAfter(retryStopping),
		}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failure{
			code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED",
			message: "deadline exceeded, but a run that has started continues: run `caretaker runs` to find the run",
		}
	case ctx.Err() != nil:
		return failure{
			code: codes.Canceled, reason: "CLIENT_GONE",
			message: "the client disconnected, but a run that has started continues",
		}
	case errors.Is(err, fault.ErrUnreachable):
		return unreachable(fault.UnreachableDatabase(err))
	}
	if text, ok := fault.PrivilegeMissing(err); ok {
		return failure{code: codes.FailedPrecondition, reason: "PRIVILEGE_MISSING", message: text}
	}
	if text, ok := fault.SchemaMissing(err); ok {
		return failure{code: codes.FailedPrecondition, reason: "NOT_MIGRATED", message: text}
	}
	return unexpected(ctx)
}

// retryAfter returns the error detail with the time after which a client may retry.
func retryAfter(d time.Duration) []protoadapt.MessageV1 {
	return []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(d)}}
}

// unreachable returns the failure DATABASE_UNREACHABLE. Without a database or a reason, the
// message refers to the log.
func unreachable(database, why string) failure {
	f := failure{code: codes.Unavailable, reason: "DATABASE_UNREACHABLE"}
	if database == "" {
		f.message = "a required database is unreachable: find its name in the status or in the server's log"
		return f
	}
	f.metadata = map[string]string{"database": database}
	f.message = "database " + database + " cannot be reached: " +
		cmp.Or(why, "check databases."+database+".url and the server's log")
	return f
}

// unexpected is the failure for a bug. The call's log line has the error under the same trace_id.
func unexpected(ctx context.Context) failure {
	f := failure{
		code: codes.Internal, reason: "INTERNAL", message: "internal error: see the server's log",
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		f.metadata = map[string]string{"trace_id": span.TraceID().String()}
		f.message += ", trace_id " + span.TraceID().String()
	}
	return f
}
