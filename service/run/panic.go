package run

import (
	"fmt"
	"runtime"
)

// PanicError is a panic that was recovered from.
type PanicError struct {
	value   any
	callers []uintptr
}

// maxPanicStack is how deep the stack of a panic is kept.
const maxPanicStack = 64

// Panicked is the error of what recover has returned; the log of it has the stack. To be called by the deferred function.
func Panicked(value any) error {
	callers := make([]uintptr, maxPanicStack)
	// Without this function and the runtime's own.
	return &PanicError{value, callers[:runtime.Callers(2, callers)]}
}

// Error has what was thrown.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Callers are the program counters of the stack.
func (e *PanicError) Callers() []uintptr { return e.callers }
