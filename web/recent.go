package web

import (
	"context"
	"sync"
	"time"
)

const (
	// readEvery is how old what is shown may be before it is read again.
	readEvery = 2 * time.Second
	// readPatience is how long one reading may take.
	readPatience = 4 * time.Second
	// kept is how many different readings are remembered.
	kept = 200
)

// recent remembers readings, so that many browsers cost no more than one.
type recent struct {
	mu    sync.Mutex
	known map[string]*reading
}

// reading is what was last read under one name. A reading that failed keeps what was known before.
type reading struct {
	// turn holds the one who may look at the rest.
	turn    chan struct{}
	tried   time.Time
	at      time.Time
	value   any
	failure error
}

// read is what was read under a name at most maxAge ago: by this call, or by another one that this one waited for.
func read[T any](ctx context.Context, r *recent, name string, maxAge time.Duration, load func(context.Context) (T, error)) part[T] {
	e := r.reading(name)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return part[T]{Err: context.Cause(ctx)}
	}
	if time.Since(e.tried) >= maxAge {
		// What is read is for others too: this caller may go away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readPatience)
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

// reading finds or makes the place of a name, and forgets old ones when there are too many.
func (r *recent) reading(name string) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[name]
	if e == nil {
		if len(r.known) >= kept {
			clear(r.known)
		}
		e = &reading{turn: make(chan struct{}, 1)}
		r.known[name] = e
	}
	return e
}

// part of a page.
type part[T any] struct {
	Value T
	// At is when Value was read; zero: never.
	At time.Time
	// Err is why it could not be read just now.
	Err error
}

// Stale says that what is shown is not of now.
func (p part[T]) Stale() bool { return p.Err != nil }
