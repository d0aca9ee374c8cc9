// Package spans records on spans how runs, batches and jobs ended, and links them. It records no
// values of rows other than ids.
package spans

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// SetTexts sets attributes, key by key, and skips empty ones.
func SetTexts(span trace.Span, pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			span.SetAttributes(attribute.String(pairs[i], pairs[i+1]))
		}
	}
}

// Of returns the span of a traceparent, invalid if that is empty or malformed.
func Of(ctx context.Context, parent string) trace.SpanContext {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
	return trace.SpanContextFromContext(ctx)
}

// LinkTo returns a link to the span of a traceparent, or none if that is empty or malformed.
func LinkTo(ctx context.Context, parent string) trace.SpanStartOption {
	if span := Of(ctx, parent); span.IsValid() {
		return trace.WithLinks(trace.Link{SpanContext: span})
	}
	return trace.WithLinks()
}

// RecordOutcome records on the span of a context how it ended, with the reason of an unusual end.
func RecordOutcome(ctx context.Context, outcome, reason string) {
	spans.SetReason(ctx, outcome == control.RunFailed, cmp.Or(reason, outcome))
	SetTexts(trace.SpanFromContext(ctx), "maintenance.outcome", outcome, "maintenance.reason", reason)
}

// RecordFailure marks the span of a context as failed.
func RecordFailure(ctx context.Context, err error) {
	RecordOutcome(ctx, control.RunFailed, fault.ReasonOf(err))
	MarkFailed(trace.SpanFromContext(ctx), err)
}

// MarkFailed marks a span as failed, with a text that is fit for clients.
func MarkFailed(span trace.Span, err error) {
	state := ""
	if refused, ok := errors.AsType[*dberr.Error](err); ok {
		state = refused.SQLState
	}
	spans.RecordError(span, errorType(err), state, fault.RedactedText(fault.PublicText(err), err))
}

// errorType returns the class of an error: the SQLSTATE if the database refused a statement, else
// the typed reason.
func errorType(err error) string {
	refused, ok := errors.AsType[*dberr.Error](err)
	items, some := errors.AsType[*fault.ItemsFailedError](err)
	switch {
	case ok && refused.SQLState != "":
		return refused.SQLState
	case errors.Is(err, dberr.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, dberr.ErrLeaseLost):
		return fault.ReasonLeaseLost
	case errors.Is(err, dberr.ErrJobLost):
		return fault.ReasonJobLost
	case some:
		return items.Class
	}
	if reason := fault.ReasonOf(err); reason != "" {
		return reason
	}
	if fault.PublicError(err) != nil {
		return "failed"
	}
	if stopped, ok := errors.AsType[fault.StopError](err); ok {
		return stopped.Reason.Code
	}
	if reason, _, typed := strings.Cut(err.Error(), ":"); typed && strings.Trim(reason, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
		return reason
	}
	return "_OTHER"
}

// StoppedBy returns what stopped work that returned an error without failing, or "" if it failed.
func StoppedBy(ctx context.Context, err error) string {
	cause := context.Cause(ctx)
	if errors.Is(cause, dberr.ErrLeaseLost) || errors.Is(err, dberr.ErrLeaseLost) {
		return ""
	}
	for _, e := range []error{cause, err} {
		if stopped, ok := errors.AsType[fault.StopError](e); ok {
			return stopped.Reason.Code
		}
	}
	switch {
	case errors.Is(err, fault.ErrOtherBatch):
		return "OTHER_BATCH"
	case errors.Is(ctx.Err(), context.Canceled):
		return fault.ReasonInterrupted
	}
	return ""
}

// Outcomes of batches and attempts that runs and jobs do not have.
const (
	// OutcomeStopped: the run was stopped during the batch, for the given reason.
	OutcomeStopped = "stopped"
	// OutcomeDeferred: the items of the batch are postponed, without a failure.
	OutcomeDeferred = "deferred"
	// OutcomeInterrupted and OutcomeLost: another attempt of the job does the work again.
	OutcomeInterrupted = "interrupted"
	OutcomeLost        = "lost"
	OutcomeSnoozed     = "snoozed"
)

// Withhold keeps a span from being exported: another process has sent its id, or it is empty.
func Withhold(span trace.Span) { span.SetAttributes(attribute.Bool("maintenance.withheld", true)) }
