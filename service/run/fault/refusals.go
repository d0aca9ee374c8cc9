// Package fault has the errors of runs, jobs and calls: their typed reasons, and their texts for
// clients and traces.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
)

// Errors of calls, besides [InvalidArgumentError], [WorkerPausedError],
// [NotConfiguredError], [LeaseHeldError] and [RefusedError].
var (
	// ErrUnknownWorker, ErrUnknownDatabase, ErrUnknownRun, ErrUnknownJob and ErrUnknownFlag: the
	// name or id was not found. A [RefusedError] wraps each.
	ErrUnknownWorker   = errors.New("unknown worker")
	ErrUnknownDatabase = errors.New("unknown database")
	ErrUnknownRun      = errors.New("unknown run")
	ErrUnknownJob      = errors.New("unknown job")
	ErrUnknownFlag     = errors.New("unknown flag")
	// ErrStopping means that the server starts no more runs because it is shutting down.
	ErrStopping = errors.New("the server is stopping")
	// ErrUnreachable means that a database required for the answer does not answer.
	ErrUnreachable = dberr.ErrUnreachable
)

// RefusedError is the error of a refused call.
type RefusedError struct {
	// Reason and Metadata are for programs. Text is for people, and fit for clients.
	Reason, Text string
	Metadata     map[string]string
	// Retry is when to try again. 0 means only after a change.
	Retry time.Duration
	// [errors.Is] finds the error What. nil means none.
	What error
}

// Error returns the text.
func (e *RefusedError) Error() string { return e.Text }

// Details returns the reason and the metadata for clients.
func (e *RefusedError) Details() (string, map[string]string) { return e.Reason, e.Metadata }

// RetryAfter returns when to try again.
func (e *RefusedError) RetryAfter() time.Duration { return e.Retry }

// Unwrap returns What.
func (e *RefusedError) Unwrap() error { return e.What }

// Unknown returns the error for a name or id that was not found. text starts with what. key is the
// key of the name in the metadata.
func Unknown(what error, key, name, text string) error {
	_, kind, _ := strings.Cut(what.Error(), " ")
	return &RefusedError{
		Reason: "UNKNOWN_" + strings.ToUpper(kind), Text: text, What: what,
		Metadata: map[string]string{key: name},
	}
}

// UnreachableDatabase returns the name of the database of an [ErrUnreachable], and why it cannot
// work, or "" if the error does not have it.
func UnreachableDatabase(err error) (name, why string) {
	if refused, ok := errors.AsType[*dberr.Error](err); ok {
		return refused.Database, refused.Why()
	}
	return "", ""
}

// PrivilegeMissing returns which privilege is missing and what to grant. It returns false for every other error.
func PrivilegeMissing(err error) (text string, ok bool) {
	if Forbidden(err) || errors.Is(err, dberr.ErrForbidden) {
		return PublicText(err), true
	}
	return "", false
}

// SchemaMissing returns which database is missing tables or columns of caretaker's own. It returns
// false for every other error. Runs report missing tables of the application themselves.
func SchemaMissing(err error) (text string, ok bool) {
	refused, ok := errors.AsType[*dberr.Error](err)
	if !ok || !slices.Contains([]string{"42P01", "42703", "3F000"}, refused.SQLState) {
		return "", false
	}
	return "database " + refused.Database + " is not migrated to this version: run `caretaker migrate`", true
}

// LeaseHeldError reports who holds the lease.
type LeaseHeldError = fencing.LeaseHeldError

// InvalidArgumentError names the wrong field of a request, and the allowed values.
type InvalidArgumentError struct{ Field, Description string }

// Error starts with the field.
func (e *InvalidArgumentError) Error() string { return e.Field + ": " + e.Description }

// Details returns the reason for clients.
func (e *InvalidArgumentError) Details() (string, map[string]string) { return "INVALID_ARGUMENT", nil }

// WorkerPausedError reports that a worker, or [AllWorkers], is paused: new runs are refused until the pause ends.
type WorkerPausedError struct {
	Worker string
	Pause  control.Pause
}

// Subject returns what is paused, with its verb: "all workers are".
func (e *WorkerPausedError) Subject() string {
	if e.Pause.Worker == AllWorkers {
		return "all workers are"
	}
	return e.Worker + " is"
}

// Error returns what is paused, by whom, since when and why, and how to end the pause.
func (e *WorkerPausedError) Error() string {
	how := "caretaker resume " + e.Worker
	if e.Pause.Worker == AllWorkers {
		how = "caretaker resume --all"
	}
	span := "since " + e.Pause.Since.UTC().Format(time.RFC3339)
	if !e.Pause.Until.IsZero() {
		span += " until " + e.Pause.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s paused by %s %s (%s): to end the pause, run %#q", e.Subject(), e.Pause.By, span, e.Pause.Reason, how)
}

// Details returns the reason and the metadata for clients.
func (e *WorkerPausedError) Details() (string, map[string]string) {
	metadata := map[string]string{
		"worker": e.Worker, "by": e.Pause.By, "reason": e.Pause.Reason, "paused": e.Pause.Worker,
	}
	if !e.Pause.Until.IsZero() {
		metadata["until"] = e.Pause.Until.UTC().Format(time.RFC3339Nano)
	}
	return ReasonPaused, metadata
}

// NotConfiguredError reports the missing configuration of a worker, and what to do.
type NotConfiguredError struct{ Worker, Missing string }

// Error names what is missing.
func (e *NotConfiguredError) Error() string { return e.Worker + " is not configured: " + e.Missing }

// Details returns the reason and the metadata for clients.
func (e *NotConfiguredError) Details() (string, map[string]string) {
	return "WORKER_NOT_CONFIGURED", map[string]string{"worker": e.Worker}
}

// Forbidden reports whether the role is missing a privilege, or row-level security hides rows.
func Forbidden(err error) bool {
	refused, ok := errors.AsType[*dberr.Error](err)
	return ok && refused.SQLState == "42501"
}

// IsTemporary reports whether a run was not started for a temporary reason.
func IsTemporary(err error) bool {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, ErrStopping)
}

// AllWorkers is the name under which all workers are paused and resumed at once: the kill switch.
const AllWorkers = "*"
