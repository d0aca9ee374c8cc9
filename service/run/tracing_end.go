package run

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// What spans say about an end. Only what failed has the status Error: what was stopped, or is postponed
// because its time is over, says so as its outcome and reason.

// Outcomes of batches and attempts that are none of runs and jobs.
const (
	// outcomeStopped: the run was stopped in the middle of the batch, the reason says by what.
	outcomeStopped = "stopped"
	// OutcomeDeferred: what the batch is about is postponed, and is no failure.
	OutcomeDeferred = "deferred"
	// OutcomeInterrupted and OutcomeLost are those of attempts of jobs that are worked again by somebody else.
	OutcomeInterrupted = "interrupted"
	OutcomeLost        = "lost"
	OutcomeSnoozed     = "snoozed"
)

// ReasonInterrupted says that the process or the queue has ended the work.
const ReasonInterrupted = "INTERRUPTED"

// RecordOutcome says on the span of a context how that ended, and why, if that is not as usual.
func RecordOutcome(ctx context.Context, outcome, reason string) {
	repo.SetReason(ctx, outcome == repo.RunFailed, cmp.Or(reason, outcome))
	SetTexts(trace.SpanFromContext(ctx), "maintenance.outcome", outcome, "maintenance.reason", reason)
}

// SetTexts sets attributes, key by key, except those that are empty.
func SetTexts(span trace.Span, pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			span.SetAttributes(attribute.String(pairs[i], pairs[i+1]))
		}
	}
}

// stoppedBy is what has stopped work that returned an error without having failed, "" if it has failed.
func stoppedBy(ctx context.Context, err error) string {
	cause := context.Cause(ctx)
	if errors.Is(cause, repo.ErrLeaseLost) || errors.Is(err, repo.ErrLeaseLost) {
		return ""
	}
	for _, e := range []error{cause, err} {
		if stopped, ok := errors.AsType[StopError](e); ok {
			return stopped.Reason.Code
		}
	}
	switch {
	case errors.Is(err, ErrOtherBatch):
		return "OTHER_BATCH"
	case errors.Is(ctx.Err(), context.Canceled):
		return ReasonInterrupted
	}
	return ""
}

// RecordFailure says on the span of a context that what it is about has failed.
func RecordFailure(ctx context.Context, err error) {
	RecordOutcome(ctx, repo.RunFailed, ReasonOf(err))
	NoteError(trace.SpanFromContext(ctx), err)
}

// NoteError marks a span as failed, in words fit for clients.
func NoteError(span trace.Span, err error) {
	state := ""
	if refused, ok := errors.AsType[*repo.Error](err); ok {
		state = refused.SQLState
	}
	repo.RecordError(span, errorType(err), state, redactedText(PublicText(err), err))
}

// errorType is the class of an error: the SQLSTATE where the database has refused a statement, else our typed reason.
func errorType(err error) string {
	refused, ok := errors.AsType[*repo.Error](err)
	items, some := errors.AsType[*ItemsFailedError](err)
	switch {
	case ok && refused.SQLState != "":
		return refused.SQLState
	case errors.Is(err, repo.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, repo.ErrLeaseLost):
		return ReasonLeaseLost
	case errors.Is(err, repo.ErrJobLost):
		return ReasonJobLost
	case some:
		return items.Class
	}
	if reason := ReasonOf(err); reason != "" {
		return reason
	}
	if fitForClients(err) != nil {
		return "failed"
	}
	if stopped, ok := errors.AsType[StopError](err); ok {
		return stopped.Reason.Code
	}
	if reason, _, typed := strings.Cut(err.Error(), ":"); typed && strings.Trim(reason, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
		return reason
	}
	return "_OTHER"
}

// whyStopped is a run's end in words. That some of what it did failed is another matter: that is its error.
func (x *Execution) whyStopped(run *Run, err error) string {
	_, items := errors.AsType[*ItemsFailedError](err)
	stopped, _ := errors.AsType[StopError](err)
	switch {
	case run.State == repo.RunFailed && !items:
		return redactedText(run.Error, err)
	case run.State == repo.RunCancelled:
		return "stopped by request: " + run.Reason
	case run.State == repo.RunSkipped:
		return strings.TrimSuffix("skipped: "+run.Reason+": "+run.Error, ": ")
	case stopped.Early:
		return stopped.Reason.String() + "; more is left"
	case x.limit != "":
		return x.limit + "; more is left"
	}
	return AllSeen
}

// AllSeen is why a run stops that nothing has stopped.
const AllSeen = "all due work was processed"

// refusedRun ends the span of a run that could not start. That somebody else is at work is no failure.
func refusedRun(span trace.Span, err error) {
	defer span.End()
	var known *knownRequestError
	switch reason := SkipReason(err).Code; {
	case reason != "":
		why := err.Error()
		if paused, ok := errors.AsType[*WorkerPausedError](err); ok {
			// Who has paused it, and why, is an operator's, and none of a trace's business.
			why = paused.what() + " paused"
		}
		SetTexts(span, "maintenance.outcome", repo.RunSkipped, "maintenance.reason", reason, "maintenance.stopped_because", why)
	case errors.As(err, &known):
		SetTexts(span, "maintenance.outcome", repo.RunSkipped, "maintenance.reason", reasonRequestKnown,
			"maintenance.stopped_because", "its request id has started the run "+known.run.ID)
	default:
		SetTexts(span, "maintenance.outcome", repo.RunFailed)
		NoteError(span, err)
	}
}

// linkKnownRequest leads from the span of a call to the run that its request id has started before.
func linkKnownRequest(ctx context.Context, first Run) {
	span := trace.SpanFromContext(ctx)
	SetTexts(span, "maintenance.run_id", first.ID, "maintenance.reason", reasonRequestKnown)
	if id, err := trace.TraceIDFromHex(first.TraceID); err == nil {
		span.AddLink(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: runSpanID(first.ID)})})
	}
}

// recordRefusedLease says on its span why a lease could not be had. That somebody else has it is no failure.
func recordRefusedLease(span trace.Span, err error) {
	held, ok := errors.AsType[*LeaseHeldError](err)
	if !ok {
		NoteError(span, err)
		return
	}
	SetTexts(span, "maintenance.outcome", "held", "maintenance.lease", held.Lease.Name, "maintenance.holder", held.Lease.Holder)
	span.SetAttributes(attribute.Int64("maintenance.lease_epoch", held.Lease.Epoch))
}

// restedKey is the attribute for how long a run or batch has rested.
const restedKey = "maintenance.rested_seconds"

// recordRest says on the spans of a batch and its run, once each, what they rest for, and keeps for how long.
func (x *Execution) recordRest(ctx context.Context, load string, rested time.Duration, first bool) {
	event := trace.WithAttributes(attribute.String("maintenance.load", load))
	if first {
		x.Span.AddEvent("throttled", event)
	}
	span := trace.SpanFromContext(ctx)
	if repo.AddSeconds(ctx, restedKey, rested) && span.SpanContext().SpanID() != x.Span.SpanContext().SpanID() {
		span.AddEvent("throttled", event)
	}
}
