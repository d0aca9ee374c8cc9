package devdb

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// databases serves tests of what is in databases, owned those of clusters and of their templates.
var databases, owned = Tests{}, Tests{Settings: map[string]string{"cluster_name": "devdb"}}

func TestMain(m *testing.M) {
	if os.Getenv(helperDir) != "" {
		os.Exit(helper())
	}
	code := max(databases.Run(m), owned.Run(suite(func() int { return 0 })))
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// must returns a function that fails the test if there is an error, and returns the value: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		noError(tb, err)
		return value
	}
}

// noError fails the test at once if there is an error.
func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// equal fails the test unless two values are the same; the message says what they are about.
func equal[T comparable](tb testing.TB, got, want T, about ...any) {
	tb.Helper()
	if got != want {
		tb.Errorf("%sgot %v, want %v", fmt.Sprintln(about...), got, want)
	}
}
