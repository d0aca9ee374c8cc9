// Package fault has the errors of runs, jobs and calls: their typed reasons, and their texts for clients
// and for traces.
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
	// ErrUnknownWorker, ErrUnknownDatabase, ErrUnknownRun, ErrUnknownJob and ErrUnknownFlag: there is nothing of that name or id.
	// Each is found in a [RefusedError].
	ErrUnknownWorker   = errors.New("unknown worker")
	ErrUnknownDatabase = errors.New("unknown database")
	ErrUnknownRun      = errors.New("unknown run")
	ErrUnknownJob      = errors.New("unknown job")
	ErrUnknownFlag     = errors.New("unknown flag")
	// ErrStopping means that the server takes no new runs because it is shutting down.
	ErrStopping = errors.New("the server is stopping")
	// ErrUnreachable means that a database that is needed for the answer does not answer.
	ErrUnreachable = dberr.ErrUnreachable
)

// RefusedError is a call that is refused.
type RefusedError struct {
	// Reason and Metadata are for programs, Text is for people and fit for clients.
	Reason, Text string
	Metadata     map[string]string
	// Retry is when to try again; 0: not before something has changed.
	Retry time.Duration
	// What is the error that it is for [errors.Is], nil for none.
	What error
}

// Error is the text.
func (e *RefusedError) Error() string { return e.Text }

// Details are the reason and the metadata that clients get.
func (e *RefusedError) Details() (string, map[string]string) { return e.Reason, e.Metadata }

// RetryAfter is when to try again.
func (e *RefusedError) RetryAfter() time.Duration { return e.Retry }

// Unwrap returns what it is.
func (e *RefusedError) Unwrap() error { return e.What }

// Unknown is the error that there is nothing of a name or id. what begins with unknown, key is that of the name in the
// metadata.
func Unknown(what error, key, name, text string) error {
	_, kind, _ := strings.Cut(what.Error(), " ")
	return &RefusedError{
		Reason: "UNKNOWN_" + strings.ToUpper(kind), Text: text, What: what,
		Metadata: map[string]string{key: name},
	}
}

// UnreachableDatabase is the name of the database that an [ErrUnreachable] is about, and why it cannot work; "" if the
// error does not say.
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

// SchemaMissing returns which database misses tables or columns of caretaker's own. It returns false
// for every other error. Runs report missing tables of the application themselves.
func SchemaMissing(err error) (text string, ok bool) {
	refused, ok := errors.AsType[*dberr.Error](err)
	if !ok || !slices.Contains([]string{"42P01", "42703", "3F000"}, refused.SQLState) {
		return "", false
	}
	return "database " + refused.Database + " lacks tables or columns of this version: run caretaker migrate", true
}

// LeaseHeldError reports who holds the lease.
type LeaseHeldError = fencing.LeaseHeldError

// InvalidArgumentError names the field of a request that is wrong, and what is allowed.
type InvalidArgumentError struct{ Field, Description string }

// Error names the field first.
func (e *InvalidArgumentError) Error() string { return e.Field + ": " + e.Description }

// Details are the reason that clients get.
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
	how := "ResumeWorker (caretaker resume " + e.Worker + ")"
	if e.Pause.Worker == AllWorkers {
		how = "ResumeWorker * (caretaker resume --all)"
	}
	span := "since " + e.Pause.Since.UTC().Format(time.RFC3339)
	if !e.Pause.Until.IsZero() {
		span += " until " + e.Pause.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s paused by %s %s: %s; end the pause with %s", e.Subject(), e.Pause.By, span, e.Pause.Reason, how)
}

// Details are the reason and the metadata that clients get.
func (e *WorkerPausedError) Details() (string, map[string]string) {
	metadata := map[string]string{
		"worker": e.Worker, "by": e.Pause.By, "reason": e.Pause.Reason, "paused": e.Pause.Worker,
	}
	if !e.Pause.Until.IsZero() {
		metadata["until"] = e.Pause.Until.UTC().Format(time.RFC3339Nano)
	}
	return ReasonPaused, metadata
}

// NotConfiguredError reports what configuration a worker misses, and what to do.
type NotConfiguredError struct{ Worker, Missing string }

// Error names what is missing.
func (e *NotConfiguredError) Error() string { return e.Worker + " is not configured: " + e.Missing }

// Details are the reason and the metadata that clients get.
func (e *NotConfiguredError) Details() (string, map[string]string) {
	return "WORKER_NOT_CONFIGURED", map[string]string{"worker": e.Worker}
}

// Forbidden reports whether our role lacks a privilege, or row-level security keeps rows from it.
func Forbidden(err error) bool {
	refused, ok := errors.AsType[*dberr.Error](err)
	return ok && refused.SQLState == "42501"
}

// IsTemporary reports whether a run did not start for a reason that goes away by itself.
func IsTemporary(err error) bool {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, ErrStopping)
}

// AllWorkers is the name under which all workers are paused and resumed at once: the kill switch.
const AllWorkers = "*"
