package servicetest

import "testing"

// Must returns a function that fails the test if there is an error, and returns the value: Must(call())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		NoError(tb, err)
		return value
	}
}

// NoError fails the test at once if there is an error.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
