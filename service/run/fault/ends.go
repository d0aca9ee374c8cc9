package fault

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/caretaker-go/caretaker/repo/reasons"
)

// RecoverPanic calls do; a panic is an error: it ends the run, not the server.
func RecoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = NewPanicError(p)
		}
	}()
	return do()
}

// PanicError is a panic that was recovered from.
type PanicError struct {
	value   any
	callers []uintptr
}

// maxPanicStack is how deep the stack of a panic is kept.
const maxPanicStack = 64

// NewPanicError is the error of what recover has returned; the log of it has the stack. To be called by the deferred function.
func NewPanicError(value any) error {
	callers := make([]uintptr, maxPanicStack)
	// Without this function and the runtime's own.
	return &PanicError{value, callers[:runtime.Callers(2, callers)]}
}

// Error has what was thrown.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Callers are the program counters of the stack.
func (e *PanicError) Callers() []uintptr { return e.callers }

// SkippedError ends a run as SKIPPED: there is nothing it could do.
type SkippedError struct {
	// Reason is typed, text says what to do, if there is something.
	Reason, Text string
}

func (e *SkippedError) Error() string { return e.Reason }

// FailedError ends a run as FAILED although it did all it could: its text is fit for clients.
type FailedError struct {
	Text string
	// Reason is typed, Redacted the text without values of rows: "" where there is none, and where the text has none.
	Reason, Redacted string
}

func (e *FailedError) Error() string { return e.Text }

// Public says that the text is fit for clients.
func (e *FailedError) Public() {}

// TypedReason is "" where there is none.
func (e *FailedError) TypedReason() string { return e.Reason }

// ItemsFailedError is a [FailedError] of a run that went on to its end although some of what it had to
// do failed. Class is the one of all failures, "_OTHER" if they differ; Reason is typed, "" where there
// is none.
type ItemsFailedError struct {
	Text, Class, Reason string
}

func (e *ItemsFailedError) Error() string { return e.Text }

// Unwrap lets it be one.
func (e *ItemsFailedError) Unwrap() error { return &FailedError{Text: e.Text, Reason: e.Reason} }

// ReasonedError is a typed reason with words for it, fit for clients.
type ReasonedError struct{ Reason, Text string }

func (e *ReasonedError) Error() string { return e.Reason + ": " + e.Text }

// Public says that the text is fit for clients.
func (e *ReasonedError) Public() {}

// TypedReason is never "".
func (e *ReasonedError) TypedReason() string { return e.Reason }

// EndsEarly reports whether an error ends a run on purpose: it succeeds unless some of its items failed.
func EndsEarly(err error) bool {
	stopped, ok := errors.AsType[StopError](err)
	return ok && stopped.Early
}

// StopError is why a run is to stop after the statement in flight. It is then CANCELLED or, if it ends
// early on purpose, SUCCEEDED and over_limit.
type StopError struct {
	Reason reasons.Reason
	Early  bool
	// Message is the run's error, fit for clients.
	Message string
}

func (r StopError) Error() string { return r.Reason.String() }

// ErrOtherBatch ends a batch after its statement in flight, and charges its records nothing, because the one beside it
// has found that the run cannot go on.
var ErrOtherBatch = errors.New("another batch has ended the run")

// ErrShutdown ends runs because the process stops.
var ErrShutdown = StopError{Reason: reasons.Reason{Code: "SHUTDOWN"}}
