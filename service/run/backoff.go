package run

import (
	"math/rand/v2"
	"time"
)

// Backoff paces a loop that must never stop: after each failure in a row it waits longer, so that a database that comes
// back is not met by all replicas at once. A Backoff is for one goroutine.
type Backoff struct {
	// First is the wait after the first failure, and is doubled by each further one up to Most. What is really waited is
	// between half and the whole of it.
	First, Most time.Duration
	failures    int
}

// After says how long to wait now that a try has ended so, 0 after a success, and whether that is news: the first failure
// after a success, or the first success after a failure. Only news are worth a line in the log.
func (b *Backoff) After(err error) (wait time.Duration, news bool) {
	if err == nil {
		news, b.failures = b.failures > 0, 0
		return 0, news
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
