package servicetest

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what must come.
const Patience = time.Minute

func WaitFor(t *testing.T, what string, reached func() bool) {
	t.Helper()
	if !ReachedInTime(reached) {
		t.Fatalf("waited %s for %s", Patience, what)
	}
}

func ReachedInTime(reached func() bool) bool {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if reached() {
			return true
		}
	}
	return reached()
}
