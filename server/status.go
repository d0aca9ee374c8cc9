package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// domain of every ErrorInfo.
const domain = "caretaker"

// retryStopping is when to try again on a server that is stopping: another replica may answer at once.
const retryStopping = time.Second

// failure is what a client gets for an error.
type failure struct {
	code   codes.Code
	reason string
	// message is for people; it never has a driver's text.
	message  string
	metadata map[string]string
	details  []protoadapt.MessageV1
}

// clientError is the one table from errors to codes and reasons.
func clientError(ctx context.Context, err error) error {
	if s, ok := status.FromError(err); ok {
		// gRPC's own, such as a message that is too large.
		return s.Err()
	}
	f := find(ctx, err)
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.String("maintenance.reason", f.reason))
	if slices.Contains([]codes.Code{codes.Internal, codes.Unavailable, codes.DeadlineExceeded}, f.code) {
		// Those of which otelgrpc makes an error, of ours.
		span.SetAttributes(semconv.ErrorTypeKey.String(code.Code(f.code).String())) //nolint:gosec // the same numbers
	}
	if f.code == codes.Aborted {
		// Who holds the lease, and until when. Of a pause the words are an operator's, and none of a trace's business.
		span.SetAttributes(attribute.String("maintenance.stopped_because", f.message))
	}
	info := &errdetails.ErrorInfo{Domain: domain, Reason: f.reason, Metadata: f.metadata}
	s, detailErr := status.New(f.code, f.message).WithDetails(append([]protoadapt.MessageV1{info}, f.details...)...)
	if detailErr != nil {
		return status.Error(f.code, f.message)
	}
	return s.Err()
}

func find(ctx context.Context, err error) failure {
	var (
		invalid   *service.InvalidArgumentError
		held      *service.LeaseHeldError
		paused    *service.WorkerPausedError
		missing   *service.NotConfiguredError
		duplicate *service.DuplicateJobError
		reused    *service.RequestReusedError
	)
	switch {
	case errors.As(err, &invalid):
		return invalidArgument(invalid)
	case errors.As(err, &held):
		return leaseHeld(held)
	case errors.As(err, &paused):
		return workerPaused(paused)
	case errors.As(err, &reused):
		return requestReused(reused)
	case errors.As(err, &missing):
		return failure{
			code: codes.FailedPrecondition, reason: "WORKER_NOT_CONFIGURED", message: missing.Error(),
			metadata: map[string]string{"worker": missing.Worker},
		}
	case errors.Is(err, service.ErrUnknownWorker):
		return failure{code: codes.NotFound, reason: "UNKNOWN_WORKER", message: err.Error()}
	case errors.Is(err, service.ErrUnknownDatabase):
		return failure{code: codes.NotFound, reason: "UNKNOWN_DATABASE", message: err.Error()}
	case errors.Is(err, service.ErrUnknownRun):
		return failure{code: codes.NotFound, reason: "UNKNOWN_RUN", message: "there is no run with this id; ListRuns has them"}
	case errors.Is(err, service.ErrUnknownJob):
		return failure{code: codes.NotFound, reason: "UNKNOWN_JOB", message: "there is no job with this id; ListJobs has them"}
	case errors.As(err, &duplicate):
		return failure{
			code: codes.FailedPrecondition, reason: "DUPLICATE_JOB", message: duplicate.Error(),
			metadata: map[string]string{"job_id": strconv.FormatInt(duplicate.ID, 10)},
		}
	case errors.Is(err, errUnauthenticated):
		return failure{code: codes.Unauthenticated, reason: "UNAUTHENTICATED", message: err.Error()}
	}
	return findEnd(ctx, err)
}

// findEnd is the part of the table that is about the end of the call, the server or a database.
func findEnd(ctx context.Context, err error) failure {
	switch {
	case errors.Is(err, service.ErrStopping), errors.Is(context.Cause(ctx), service.ErrStopping):
		return failure{
			code: codes.Unavailable, reason: "SERVER_STOPPING",
			message: "the server is stopping: try again, on another replica at once",
			details: []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(retryStopping)}},
		}
	case ctx.Err() != nil:
		f := failure{code: codes.Canceled, reason: "CLIENT_GONE", message: "the client hung up; a run that has started goes on"}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.code, f.reason = codes.DeadlineExceeded, "DEADLINE_EXCEEDED"
			f.message = "the deadline passed; a run that has started goes on, WatchRun follows it, CancelRun stops it"
		}
		return f
	case errors.Is(err, service.ErrUnreachable):
		return unreachable(run.UnreachableDatabase(err))
	}
	if text, is := run.PrivilegeMissing(err); is {
		return failure{code: codes.FailedPrecondition, reason: "PRIVILEGE_MISSING", message: text}
	}
	if text, is := run.SchemaMissing(err); is {
		return failure{code: codes.FailedPrecondition, reason: "NOT_MIGRATED", message: text}
	}
	return unexpected(ctx)
}

func unreachable(database, why string) failure {
	f := failure{
		code: codes.Unavailable, reason: "DATABASE_UNREACHABLE",
		message: "a database that is needed cannot be reached; GetStatus and the server's log say which",
	}
	if database != "" {
		f.message = fmt.Sprintf("database %s cannot be reached: see databases.%s.url and the server's log", database, database)
		if why != "" {
			f.message = fmt.Sprintf("database %s cannot be reached: %s", database, why)
		}
		f.metadata = map[string]string{"database": database}
	}
	return f
}

func invalidArgument(err *service.InvalidArgumentError) failure {
	return failure{
		code: codes.InvalidArgument, reason: "INVALID_ARGUMENT", message: err.Error(),
		details: []protoadapt.MessageV1{&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: err.Field, Description: err.Description},
		}}},
	}
}

func requestReused(err *service.RequestReusedError) failure {
	return failure{
		code: codes.AlreadyExists, reason: "REQUEST_ID_REUSED", message: err.Error(),
		metadata: map[string]string{
			"run_id": err.First.ID, "worker": err.First.Worker, "database": err.First.Database, "dry_run": strconv.FormatBool(err.First.DryRun),
		},
	}
}

func leaseHeld(err *service.LeaseHeldError) failure {
	f := failure{
		code: codes.Aborted, reason: "LEASE_HELD", message: err.Error(),
		metadata: map[string]string{
			"lease": err.Lease.Name, "holder": err.Lease.Holder, "expires_at": err.Lease.ExpiresAt.UTC().Format(time.RFC3339Nano),
		},
		details: []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(err.Remaining)}},
	}
	if err.RunID != "" {
		f.metadata["run_id"] = err.RunID
	}
	return f
}

func workerPaused(err *service.WorkerPausedError) failure {
	f := failure{
		code: codes.FailedPrecondition, reason: "WORKER_PAUSED", message: err.Error(),
		metadata: map[string]string{"worker": err.Worker, "by": err.Pause.By, "reason": err.Pause.Reason, "paused": err.Pause.Worker},
	}
	if !err.Pause.Until.IsZero() {
		maps.Copy(f.metadata, map[string]string{"until": err.Pause.Until.UTC().Format(time.RFC3339Nano)})
	}
	return f
}

// unexpected is for what should not happen: the log line of the call has it, under the same trace_id.
func unexpected(ctx context.Context) failure {
	f := failure{code: codes.Internal, reason: "INTERNAL", message: "internal error: the server's log has it"}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		f.metadata = map[string]string{"trace_id": span.TraceID().String()}
		f.message += " under trace_id " + span.TraceID().String()
	}
	return f
}
