package run

import (
	"math/rand/v2"
	"time"
)

// Backoff paces a loop that must never stop. It waits longer after each failure in a row, so that
// not all replicas reach a recovering database at once. A Backoff is for one goroutine.
type Backoff struct {
	// First is the wait after the first failure. Each further failure doubles it, up to Most. The
	// actual wait is random, between half of it and all of it.
	First, Most time.Duration
	failures    int
}

// After returns how long to wait after a try that ended with err, 0 after a success. changed
// reports the first failure after a success, or the first success after a failure: only these are
// worth a log line.
func (b *Backoff) After(err error) (wait time.Duration, changed bool) {
	if err == nil {
		changed, b.failures = b.failures > 0, 0
		return 0, changed
	}
	wait = b.First
	for range b.failures {
		if wait = min(2*wait, b.Most); wait == b.Most {
			break
		}
	}
	b.failures++
	half := wait / 2
	return half + rand.N(half+1), b.failures == 1
}
