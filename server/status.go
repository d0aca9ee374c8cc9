package server

import (
	"cmp"
	"context"
	"errors"
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

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// domain of every ErrorInfo.
const domain = "caretaker"

// retryStopping is when a client of a stopping server may try again: another replica can answer.
const retryStopping = time.Second

// failure is what a client gets for an error.
type failure struct {
	code   codes.Code
	reason string
	// message is for people, and has no text of a driver.
	message  string
	metadata map[string]string
	details  []protoadapt.MessageV1
}

// clientError turns an error into the status that a client gets.
func clientError(ctx context.Context, err error) error {
	if s, ok := status.FromError(err); ok {
		// gRPC's own, such as a message that is too large.
		return s.Err()
	}
	f := find(ctx, err)
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.String("maintenance.reason", f.reason))
	serverErrors := []codes.Code{codes.Internal, codes.Unavailable, codes.DeadlineExceeded}
	if slices.Contains(serverErrors, f.code) {
		// otelgrpc sets the span's status to Error for these codes.
		name := code.Code(f.code).String() //nolint:gosec // the same numbers
		span.SetAttributes(semconv.ErrorTypeKey.String(name))
	}
	if f.code == codes.Aborted {
		// The holder of the lease. The reason of a pause is an operator's text, not for a trace.
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

// find looks into the parts of the one table from errors to codes and reasons, in this order. A part
// that does not know an error returns a failure without a reason.
func find(ctx context.Context, err error) failure {
	for _, part := range []func(error) failure{findTyped, findRefused, findPlanned, findUnknown} {
		if f := part(err); f.reason != "" {
			return f
		}
	}
	return findEnd(ctx, err)
}

// findUnknown is the part of the table about what there is not.
func findUnknown(err error) failure {
	for _, f := range []struct {
		err error
		// key of the name in the metadata.
		key string
		failure
	}{
		{run.ErrUnknownWorker, "worker", failure{reason: "UNKNOWN_WORKER", message: err.Error()}},
		{run.ErrUnknownDatabase, "database", failure{
			reason: "UNKNOWN_DATABASE", message: err.Error(),
		}},
		{run.ErrUnknownFlag, "flag", failure{reason: "UNKNOWN_FLAG", message: err.Error()}},
		{run.ErrUnknownRun, "run_id", failure{
			reason: "UNKNOWN_RUN", message: "run not found: find its id with ListRuns",
		}},
		{run.ErrUnknownJob, "job_id", failure{
			reason: "UNKNOWN_JOB", message: "there is no job with this id; ListJobs has them",
		}},
		{service.ErrUnknownPath, "ids", failure{
			reason:  "UNKNOWN_PATH",
			message: err.Error() + ": nothing was marked; ListOutside has all",
		}},
		{service.ErrUnknownProtection, "target", failure{
			reason: "UNKNOWN_PROTECTION", message: "nothing of this kind and id is protected; ListProtected has all",
		}},
	} {
		if errors.Is(err, f.err) {
			f.code = cmp.Or(f.code, codes.NotFound)
			if unknown, ok := errors.AsType[*run.UnknownError](err); ok {
				f.metadata = map[string]string{f.key: cut(unknown.Name, maxTarget)}
			}
			return f.failure
		}
	}
	return failure{}
}

// findTyped is the part of the table for errors that have details of their own.
func findTyped(err error) failure {
	var (
		argument  *run.InvalidArgumentError
		held      *run.LeaseHeldError
		paused    *run.WorkerPausedError
		missing   *run.NotConfiguredError
		duplicate *job.DuplicateJobError
		reused    *run.RequestReusedError
		begun     *repo.DeletionBegunError
		busy      *service.TargetBusyError
	)
	switch {
	case errors.As(err, &argument):
		violation := &errdetails.BadRequest_FieldViolation{
			Field: argument.Field, Description: argument.Description,
		}
		return failure{
			code: codes.InvalidArgument, reason: "INVALID_ARGUMENT", message: argument.Error(),
			details: []protoadapt.MessageV1{&errdetails.BadRequest{
				FieldViolations: []*errdetails.BadRequest_FieldViolation{violation},
			}},
		}
	case errors.As(err, &held):
		return leaseHeld(held)
	case errors.As(err, &paused):
		return workerPaused(paused)
	case errors.As(err, &reused):
		return failure{
			code: codes.AlreadyExists, reason: "REQUEST_ID_REUSED", message: reused.Error(),
			metadata: map[string]string{
				"run_id": reused.First.ID, "worker": reused.First.Worker,
				"database": reused.First.Database, "dry_run": strconv.FormatBool(reused.First.DryRun),
			},
		}
	case errors.As(err, &missing):
		return failure{
			code: codes.FailedPrecondition, reason: "WORKER_NOT_CONFIGURED",
			message: missing.Error(), metadata: map[string]string{"worker": missing.Worker},
		}
	case errors.As(err, &begun):
		return failure{
			code: codes.FailedPrecondition, reason: "DELETION_BEGUN", message: begun.Error(),
			metadata: map[string]string{"kind": begun.Kind, "id": strconv.FormatInt(begun.ID, 10)},
		}
	case errors.As(err, &busy):
		return failure{
			code: codes.Aborted, reason: "TARGET_BUSY", message: busy.Error(),
			metadata: map[string]string{"kind": busy.Kind}, details: retryAfter(retryStopping),
		}
	case errors.As(err, &duplicate):
		return failure{
			code: codes.FailedPrecondition, reason: "DUPLICATE_JOB", message: duplicate.Error(),
			metadata: map[string]string{"job_id": strconv.FormatInt(duplicate.ID, 10)},
		}
	}
	return failure{}
}

// findRefused is the part of the table for what the guard refuses.
func findRefused(err error) failure {
	var (
		unknown    *access.RefusedError
		notAllowed *notAllowedError
		tooLarge   *tooLargeError
		tooMany    *rateError
		streams    *streamsError
		broken     *undecodableError
	)
	switch {
	case errors.As(err, &unknown):
		return failure{
			code: codes.Unauthenticated, reason: "UNAUTHENTICATED", message: unknown.Error(),
			metadata: map[string]string{"token": unknown.Problem},
		}
	case errors.As(err, &notAllowed):
		return failure{
			code: codes.PermissionDenied, reason: notAllowed.reason, message: notAllowed.Error(),
			metadata: notAllowed.metadata,
		}
	case errors.As(err, &tooLarge):
		return failure{
			code: codes.ResourceExhausted, reason: "MESSAGE_TOO_LARGE", message: tooLarge.Error(),
			metadata: map[string]string{
				"bytes": strconv.Itoa(tooLarge.size), "limit": strconv.Itoa(tooLarge.limit),
			},
		}
	case errors.As(err, &broken):
		return failure{
			code: codes.InvalidArgument, reason: "INVALID_ARGUMENT",
			message: "the request is not a message of this API: check that the client's definitions are " +
				"those of the server, and that all texts are UTF-8",
		}
	case errors.As(err, &tooMany):
		return failure{
			code: codes.ResourceExhausted, reason: "RATE_LIMITED", message: tooMany.Error(),
			details: retryAfter(tooMany.wait),
		}
	case errors.As(err, &streams):
		return failure{
			code: codes.ResourceExhausted, reason: "STREAMS_BUSY", message: streams.Error(),
			details: retryAfter(time.Second),
		}
	}
	return failure{}
}

// findPlanned is the part of the table about plans, and about what is not used here.
func findPlanned(err error) failure {
	var changed *run.PlanChangedError
	var target *service.UnknownTargetError
	var busy *service.PlansBusyError
	var notInUse *notInUseError
	switch {
	case errors.As(err, &notInUse):
		return failure{
			code: codes.FailedPrecondition, reason: "NOT_IN_USE", message: notInUse.Error(),
			metadata: map[string]string{"what": notInUse.what},
		}
	case errors.As(err, &busy):
		return failure{
			code: codes.ResourceExhausted, reason: "PLANS_BUSY", message: busy.Error(),
			details: retryAfter(busy.RetryAfter()),
		}
	case errors.As(err, &target):
		return failure{
			code: codes.NotFound, reason: "UNKNOWN_TARGET", message: target.Error(),
			metadata: map[string]string{
				"kind": target.Kind, "id": strconv.FormatInt(target.ID, 10),
			},
		}
	case errors.As(err, &changed):
		return failure{
			code: codes.FailedPrecondition, reason: run.ReasonPlanChanged, message: changed.Error(),
			metadata: map[string]string{
				"run_id": changed.Run.ID, "worker": changed.Run.Worker,
				"candidates_digest": changed.Run.CandidatesDigest,
			},
		}
	}
	return failure{}
}

// findEnd is the part of the table about the end of the call or the server, and about databases.
func findEnd(ctx context.Context, err error) failure {
	switch {
	case errors.Is(err, run.ErrStopping), errors.Is(context.Cause(ctx), run.ErrStopping):
		return failure{
			code: codes.Unavailable, reason: "SERVER_STOPPING",
			message: "the server is stopping: try again, on another replica at once",
			details: retryAfter(retryStopping),
		}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failure{
			code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED",
			message: "the deadline passed; a run that has started goes on, WatchRun follows it, " +
				"CancelRun stops it",
		}
	case ctx.Err() != nil:
		return failure{
			code: codes.Canceled, reason: "CLIENT_GONE",
			message: "the client hung up; a run that has started goes on",
		}
	case errors.Is(err, run.ErrUnreachable):
		return unreachable(run.UnreachableDatabase(err))
	}
	if text, ok := run.PrivilegeMissing(err); ok {
		return failure{code: codes.FailedPrecondition, reason: "PRIVILEGE_MISSING", message: text}
	}
	if text, ok := run.SchemaMissing(err); ok {
		return failure{code: codes.FailedPrecondition, reason: "NOT_MIGRATED", message: text}
	}
	return unexpected(ctx)
}

func retryAfter(d time.Duration) []protoadapt.MessageV1 {
	return []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(d)}}
}

func unreachable(database, why string) failure {
	f := failure{code: codes.Unavailable, reason: "DATABASE_UNREACHABLE"}
	if database == "" {
		f.message = "a database that is needed cannot be reached; GetStatus and the server's log say which"
		return f
	}
	f.metadata = map[string]string{"database": database}
	f.message = "database " + database + " cannot be reached: " +
		cmp.Or(why, "see databases."+database+".url and the server's log")
	return f
}

func leaseHeld(err *run.LeaseHeldError) failure {
	f := failure{
		code: codes.Aborted, reason: "LEASE_HELD", message: err.Error(),
		metadata: map[string]string{
			"lease": err.Lease.Name, "holder": err.Lease.Holder,
			"expires_at": err.Lease.ExpiresAt.UTC().Format(time.RFC3339Nano),
		},
		details: retryAfter(err.Remaining),
	}
	if err.RunID != "" {
		f.metadata["run_id"] = err.RunID
	}
	return f
}

func workerPaused(err *run.WorkerPausedError) failure {
	f := failure{
		code: codes.FailedPrecondition, reason: "WORKER_PAUSED", message: err.Error(),
		metadata: map[string]string{
			"worker": err.Worker, "by": err.Pause.By, "reason": err.Pause.Reason,
			"paused": err.Pause.Worker,
		},
	}
	if !err.Pause.Until.IsZero() {
		f.metadata["until"] = err.Pause.Until.UTC().Format(time.RFC3339Nano)
	}
	return f
}

// unexpected is for what should not happen: the call's line in the log has it, under the same
// trace_id.
func unexpected(ctx context.Context) failure {
	f := failure{
		code: codes.Internal, reason: "INTERNAL", message: "internal error: the server's log has it",
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		f.metadata = map[string]string{"trace_id": span.TraceID().String()}
		f.message += " under trace_id " + span.TraceID().String()
	}
	return f
}
