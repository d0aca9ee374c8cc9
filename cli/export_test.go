package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

// Encryption is what doctor says of the TLS of a connection: status, problem and remedy.
func Encryption(f repo.ServerFacts, key string) (status, problem, remedy string) {
	for _, found := range encryption(f, key) {
		return found.Status, found.Problem, found.Remedy
	}
	return statusOK, "", ""
}

// equal fails the test unless two values are the same; the message says what they are about.
func equal[T comparable](tb testing.TB, got, want T, about ...any) {
	tb.Helper()
	if got != want {
		tb.Errorf("%sgot %v, want %v", fmt.Sprintln(about...), got, want)
	}
}

// contains fails the test unless a text has all parts.
func contains(tb testing.TB, text string, parts ...string) {
	tb.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			tb.Errorf("%q is not in\n%s", p, text)
		}
	}
}

// lacks fails the test if a text has the part.
func lacks(tb testing.TB, text, part string) {
	tb.Helper()
	if strings.Contains(text, part) {
		tb.Errorf("%q is in\n%s", part, text)
	}
}
