// Package assert has checks for the tests of all packages.
package assert

import (
	"fmt"
	"strings"
	"testing"
)

// Must returns a function that fails the test on an error and returns the value: Must(call())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		NoError(tb, err)
		return value
	}
}

// NoError stops the test if there is an error.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	Require(tb, err == nil, "%v", err)
}

// Equal fails the test unless a value is the expected one. about describes the value.
func Equal[T comparable](tb testing.TB, got, want T, about ...any) {
	tb.Helper()
	That(tb, got == want, "%sgot %v, want %v", fmt.Sprintln(about...), got, want)
}

// Contains fails the test unless a text contains all parts.
func Contains(tb testing.TB, text string, parts ...string) {
	tb.Helper()
	for _, p := range parts {
		That(tb, strings.Contains(text, p), "%q is not in\n%s", p, text)
	}
}

// Lacks fails the test if a text contains the part.
func Lacks(tb testing.TB, text, part string) {
	tb.Helper()
	That(tb, !strings.Contains(text, part), "%q is in\n%s", part, text)
}

// That fails the test with a message unless a condition holds.
func That(tb testing.TB, holds bool, format string, args ...any) {
	tb.Helper()
	if !holds {
		tb.Errorf(format, args...)
	}
}

// Require stops the test with a message unless a condition holds.
func Require(tb testing.TB, holds bool, format string, args ...any) {
	tb.Helper()
	if !holds {
		tb.Fatalf(format, args...)
	}
}

// Parallel marks a test as parallel, and returns it: start(Parallel(t)).
func Parallel(t *testing.T) *testing.T {
	t.Helper()
	t.Parallel()
	return t
}
