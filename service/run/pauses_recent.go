package run

import (
	"context"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// PausesUnknown is why no job runs while main does not answer.
const PausesUnknown = "the pauses cannot be read"

// PauseFor returns the pause that holds a worker, or nil. The pause of all workers comes before its
// own.
func PauseFor(worker string, all []Pause) (own *Pause) {
	for i, p := range all {
		switch p.Worker {
		case fault.AllWorkers:
			return &all[i]
		case worker:
			own = &all[i]
		}
	}
	return own
}

// recentPauses caches the pauses in force for jobs: one of them reads once a second, for all. While
// main does not answer, the previous pauses apply for a few seconds.
type recentPauses struct {
	main *repo.Database

	mu sync.Mutex
	// TriedAt is the last attempt to read them, ReadAt the last success.
	TriedAt, ReadAt time.Time
	// known are the pauses of the last successful read.
	known []Pause
}

// Get returns the pauses in force, or false if they are unknown.
func (r *recentPauses) Get(ctx context.Context) ([]Pause, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.TriedAt) >= pausesAge {
		ctx, cancel := context.WithTimeoutCause(ctx, pausesTimeout, dberr.ErrUnreachable)
		defer cancel()
		all, err := r.main.Flags.Pauses(ctx)
		r.TriedAt = time.Now()
		if err == nil {
			r.known, r.ReadAt = all, r.TriedAt
		}
	}
	return r.known, time.Since(r.ReadAt) < pausesLife
}

// Invalidate makes a pause that was set or ended here apply here at once.
func (r *recentPauses) Invalidate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.TriedAt = time.Time{}
}

const (
	// pausesAge is the maximum age of the pauses for jobs, pausesTimeout the timeout of a reading.
	pausesAge, pausesTimeout = time.Second, time.Second
	// pausesLife is their maximum age while readings fail: the kill switch works if main is slow.
	pausesLife = 5 * time.Second
)
