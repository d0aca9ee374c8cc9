package access

import (
	"sync"

	"golang.org/x/time/rate"
)

// Rates has a token bucket for each client. Its zero value is ready to use, by several goroutines.
type Rates struct {
	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// maxBuckets is the number of counted clients from which on quiet clients are forgotten.
const maxBuckets = 1000

// Bucket returns the token bucket of a client, which it creates at the first call. At maxBuckets
// it first removes full ones, whose clients have used none of their tokens recently.
func (r *Rates) Bucket(key string, every rate.Limit, burst int) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.buckets[key]; ok {
		return found
	}
	if len(r.buckets) >= maxBuckets {
		for k, b := range r.buckets {
			if b.Tokens() >= float64(b.Burst()) {
				delete(r.buckets, k)
			}
		}
	}
	made := rate.NewLimiter(every, burst)
	if r.buckets == nil {
		r.buckets = map[string]*rate.Limiter{}
	}
	r.buckets[key] = made
	return made
}
