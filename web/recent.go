package web

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/service/run/fault"
)

const (
	// readEvery is the age from which on a cached value is read again.
	readEvery = 2 * time.Second
	// readTimeout limits one read.
	readTimeout = 4 * time.Second
	// maxReadings is the number of cached values.
	maxReadings = 200
)

// recent caches values, so that many browsers cost no more than one.
type recent struct {
	mu    sync.Mutex
	known map[string]*reading
	// requests counts the requests.
	requests int64
	// background has the reads of readLater.
	background sync.WaitGroup
}

// reading is the last value read under a name. A failed read keeps the previous value.
type reading struct {
	// turn locks the other fields. A request can wait for it with a context.
	turn chan struct{}
	// tried is the time of the last read, at that of the last successful one.
	tried   time.Time
	at      time.Time
	value   any
	failure error
	// shown is the last part for those who do not wait. changed means that it must be read again.
	shown   atomic.Value
	changed atomic.Bool
	// refreshing means that readLater is reading.
	refreshing atomic.Bool
	// used is the number of the last request. recent.mu guards it.
	used int64
}

// read returns the value under a name, read by any call at most maxAge ago or now.
func read[T any](
	ctx context.Context, r *recent, name string, maxAge time.Duration,
	load func(context.Context) (T, error),
) part[T] {
	return readWithin(ctx, r, name, times{maxAge: maxAge, most: readTimeout}, load)
}

// times has the age from which on a value is read again, and the timeout of a read. If ends is not
// set, other requests wait for a read, even if its own request is canceled.
type times struct {
	maxAge, most time.Duration
	ends         bool
}

// readWithin is read with its own timeout. It retries a failed read after readEvery.
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
	if e.changed.Swap(false) || time.Since(e.tried) >= t.maxAge {
		if !t.ends {
			ctx = context.WithoutCancel(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, t.most)
		defer cancel()
		value, err := load(ctx)
		e.tried, e.failure = time.Now(), err
		if err == nil {
			e.value, e.at = value, e.tried
		}
		value, _ = e.value.(T)
		e.shown.Store(part[T]{Value: value, At: e.at, Err: e.failure})
	}
	last, _ := e.shown.Load().(part[T])
	return last
}

// readLater is read for the charts. It returns a known value at once, and refreshes it afterwards.
func readLater[T any](
	ctx context.Context, r *recent, name string, maxAge time.Duration, load func(context.Context) (T, error),
) part[T] {
	e := r.reading(name)
	last, _ := e.shown.Load().(part[T])
	if last.At.IsZero() {
		return read(ctx, r, name, maxAge, load)
	}
	if time.Since(last.At) >= maxAge && e.refreshing.CompareAndSwap(false, true) {
		r.background.Go(func() {
			defer e.refreshing.Store(false)
			read(context.WithoutCancel(ctx), r, name, maxAge, load)
		})
	}
	return last
}

// forget lets all values be read again, after a change.
func (r *recent) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.known {
		e.changed.Store(true)
	}
}

// reading returns the cached value of a name, and creates it if missing. If there are too many, it
// drops the one that was not requested for the longest time.
func (r *recent) reading(name string) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[name]
	if e == nil {
		if len(r.known) >= maxReadings {
			delete(r.known, slices.MinFunc(slices.Collect(maps.Keys(r.known)), func(a, b string) int {
				return int(r.known[a].used - r.known[b].used)
			}))
		}
		e = &reading{turn: make(chan struct{}, 1)}
		r.known[name] = e
	}
	r.requests++
	e.used = r.requests
	return e
}

// part is a part of a page, with the time of its read.
type part[T any] struct {
	Value T
	// At is when Value was read, zero for never.
	At time.Time
	// Err is the error of the last read.
	Err error
}

// Stale reports that the last read failed and Value is from an earlier read.
func (p part[T]) Stale() bool { return p.Err != nil }

// cause returns the cause of a failed reading as a sentence.
func cause(err error) string {
	if answer, ok := status.FromError(err); ok {
		return sentence(answer.Message())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "A database did not answer in time."
	}
	return sentence(fault.PublicText(err))
}
