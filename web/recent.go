package web

import (
	"context"
	"sync"
	"time"
)

const (
	// readEvery is the age from which on a reading is read again.
	readEvery = 2 * time.Second
	// readTimeout bounds one reading.
	readTimeout = 4 * time.Second
	// maxReadings is how many readings are cached.
	maxReadings = 200
)

// recent caches readings, so that many browsers cost no more than one.
type recent struct {
	mu    sync.Mutex
	known map[string]*reading
}

// reading is what was last read under a name. One that fails keeps the value of the one before.
type reading struct {
	// turn is a lock of the other fields, which can be waited for with a context.
	turn    chan struct{}
	tried   time.Time
	at      time.Time
	value   any
	failure error
}

// read returns what was read under a name at most maxAge ago, by this call or by another one.
func read[T any](
	ctx context.Context, r *recent, name string, maxAge time.Duration,
	load func(context.Context) (T, error),
) part[T] {
	return readWithin(ctx, r, name, times{maxAge, readTimeout}, load)
}

// times are the age from which on a reading is read again, and how long one may take.
type times struct{ maxAge, most time.Duration }

// readWithin is read with a time limit of its own. What fails is tried again after readEvery.
func readWithin[T any](
	ctx context.Context, r *recent, name string, t times, load func(context.Context) (T, error),
) part[T] {
	e := r.reading(name)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return part[T]{Err: context.Cause(ctx)}
	}
	if e.failure != nil {
		t.maxAge = min(t.maxAge, readEvery)
	}
	if time.Since(e.tried) >= t.maxAge {
		// Other requests wait for this reading, even if this one is cancelled.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.most)
		defer cancel()
		value, err := load(ctx)
		e.tried, e.failure = time.Now(), err
		if err == nil {
			e.value, e.at = value, e.tried
		}
	}
	value, _ := e.value.(T)
	return part[T]{Value: value, At: e.at, Err: e.failure}
}

// reading finds or makes the reading of a name. When there are too many, all others are dropped.
func (r *recent) reading(name string) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[name]
	if e == nil {
		if len(r.known) >= maxReadings {
			clear(r.known)
		}
		e = &reading{turn: make(chan struct{}, 1)}
		r.known[name] = e
	}
	return e
}

// part of a page, with the time of its reading.
type part[T any] struct {
	Value T
	// At is when Value was read; zero: never.
	At time.Time
	// Err is why it could not be read just now.
	Err error
}

// Stale reports that Value could not be read just now, and is an older one.
func (p part[T]) Stale() bool { return p.Err != nil }
