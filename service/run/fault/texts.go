package fault

import (
	"context"
	"errors"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/dberr"
)

// maxText is the maximum length of an error on record, in bytes.
const maxText = 64 << 10

// PublicText returns a text for an error that is fit for clients: SQLSTATE and condition, never the
// driver's text, values or SQL.
func PublicText(err error) string { return format.Shorten(textOf(err), maxText, "see the log") }

// textOf returns the text of an error for clients and for the record of a run. Driver texts and
// unknown errors are replaced, and the text refers to the log.
func textOf(err error) string {
	var refused *dberr.Error
	var stopped StopError
	switch {
	case err == nil:
		return ""
	case PublicError(err) != nil:
		return PublicError(err).Error()
	case errors.As(err, &refused):
		return refused.Public()
	case errors.Is(err, dberr.ErrUnreachable):
		return "a database is unreachable: for its name, see the log of this run"
	case errors.Is(err, dberr.ErrLeaseLost):
		return dberr.ErrLeaseLost.Error()
	case errors.Is(err, dberr.ErrJobLost):
		return "job lost: another attempt is running the job"
	case errors.As(err, &stopped):
		return strings.ToLower(stopped.Reason.String())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "stopped before completion"
	}
	return "internal error: see the log of this run"
}

// RedactedText returns a run's error for traces, without row values. err is the source of text.
func RedactedText(text string, err error) string {
	if failed, ok := errors.AsType[*FailedError](err); ok && failed.Redacted != "" {
		return failed.Redacted
	}
	return text
}

// BriefText is PublicText without the attempt and the advice, for remarks.
func BriefText(err error) string {
	if refused, ok := errors.AsType[*dberr.Error](err); ok {
		return refused.Condition()
	}
	return PublicText(err)
}

// PublicError returns the error within err whose text is made for clients, by its method Public or
// Details, or nil.
func PublicError(err error) error {
	type public interface {
		error
		Public()
	}
	type detailed interface {
		error
		Details() (reason string, metadata map[string]string)
	}
	if e, ok := errors.AsType[public](err); ok {
		return e
	}
	if e, ok := errors.AsType[detailed](err); ok {
		return e
	}
	if errors.Is(err, dberr.ErrForbidden) {
		return err
	}
	return nil
}

// Tone returns how to show a state: bad, warn if an operator may have to act, busy, good or off.
func Tone(state string) string {
	switch state {
	case "failed", "failing", "discarded", "error":
		return "bad"
	case "paused", "throttled", "lease held elsewhere", "hold", "retryable", "missed", "cancelled",
		"refused", "warning":
		return "warn"
	case "running":
		return "busy"
	case "succeeded", "idle", "completed", "ran":
		return "good"
	}
	return "off"
}
