package fault

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/caretaker-go/caretaker/repo/reasons"
)

// RecoverPanic calls do and returns a panic as an error: it ends the run, not the server.
func RecoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = NewPanicError(p)
		}
	}()
	return do()
}

// PanicError is a recovered panic.
type PanicError struct {
	value   any
	callers []uintptr
}

// maxPanicStack is the maximum depth of a kept stack.
const maxPanicStack = 64

// NewPanicError returns the error for a value of recover. The log has the stack. The deferred
// function calls it.
func NewPanicError(value any) error {
	callers := make([]uintptr, maxPanicStack)
	// Without this function and the runtime's own.
	return &PanicError{value, callers[:runtime.Callers(2, callers)]}
}

// Error includes the panic's value.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Callers returns the program counters of the stack.
func (e *PanicError) Callers() []uintptr { return e.callers }

// SkippedError ends a run as SKIPPED: it could do nothing.
type SkippedError struct {
	// Reason is typed. Text is what to do, if anything.
	Reason, Text string
}

// Error returns the reason.
func (e *SkippedError) Error() string { return e.Reason }

// FailedError ends a run as FAILED although it did all it could. Its text is fit for clients.
type FailedError struct {
	Text string
	// Reason is typed. "" means none. Redacted is the text without row values. "" means it has none.
	Reason, Redacted string
}

// Error returns the text, which is fit for clients.
func (e *FailedError) Error() string { return e.Text }

// Public marks the text as fit for clients.
func (e *FailedError) Public() {}

// TypedReason returns the reason. "" means none.
func (e *FailedError) TypedReason() string { return e.Reason }

// ItemsFailedError is a [FailedError] of a run that reached its end although some items failed.
// Class is the class of all failures, "_OTHER" if they differ. Reason is typed. "" means none.
type ItemsFailedError struct {
	Text, Class, Reason string
}

// Error returns the text, which counts the failed items.
func (e *ItemsFailedError) Error() string { return e.Text }

// Unwrap returns a [FailedError].
func (e *ItemsFailedError) Unwrap() error { return &FailedError{Text: e.Text, Reason: e.Reason} }

// ReasonedError is a typed reason with a text that is fit for clients.
type ReasonedError struct{ Reason, Text string }

// Error returns the reason code and the text.
func (e *ReasonedError) Error() string { return e.Reason + ": " + e.Text }

// Public marks the text as fit for clients.
func (e *ReasonedError) Public() {}

// TypedReason is never "".
func (e *ReasonedError) TypedReason() string { return e.Reason }

// EndsEarly reports whether err ends a run on purpose. The run succeeds unless some items failed.
func EndsEarly(err error) bool {
	stopped, ok := errors.AsType[StopError](err)
	return ok && stopped.Early
}

// StopError is why a run must stop after its current statement. The run is then CANCELLED or, if it
// ends early on purpose, SUCCEEDED and over_limit.
type StopError struct {
	Reason reasons.Reason
	Early  bool
	// Message is the run's error, fit for clients.
	Message string
}

// Error returns the reason of the stop.
func (r StopError) Error() string { return r.Reason.String() }

// ErrOtherBatch ends a batch after its current statement, because a parallel batch found that the
// run cannot continue. Its records are not charged with a failure.
var ErrOtherBatch = errors.New("another batch has ended the run")

// ErrShutdown ends runs because the process stops.
var ErrShutdown = StopError{Reason: reasons.Reason{Code: "SHUTDOWN"}}
