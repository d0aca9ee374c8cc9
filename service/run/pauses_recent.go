package run

import (
	"context"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// PausesUnknown is why nothing is worked while main does not answer.
const PausesUnknown = "the pauses cannot be read"

// PauseFor is the pause among all that holds a worker, nil if there is none: that of all workers
// before its own.
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

// recentPauses are the pauses in force as jobs know them: read by one of them every second, for all. While main does not
// answer they are those of before, for a few seconds.
type recentPauses struct {
	main *repo.Database

	mu sync.Mutex
	// TriedAt is when they were last asked for, ReadAt when that last succeeded.
	TriedAt, ReadAt time.Time
	known           []Pause
}

// Get is what is in force; false: nobody knows.
func (r *recentPauses) Get(ctx context.Context) ([]Pause, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.TriedAt) >= pausesAge {
		ctx, cancel := context.WithTimeoutCause(ctx, pausesPatience, dberr.ErrUnreachable)
		defer cancel()
		all, err := r.main.Flags.Pauses(ctx)
		r.TriedAt = time.Now()
		if err == nil {
			r.known, r.ReadAt = all, r.TriedAt
		}
	}
	return r.known, time.Since(r.ReadAt) < pausesLife
}

// Invalidate lets a pause that was set or ended here count at once here.
func (r *recentPauses) Invalidate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.TriedAt = time.Time{}
}

const (
	// pausesAge is how old the pauses may be that jobs go by, pausesPatience how long one reading may take.
	pausesAge, pausesPatience = time.Second, time.Second
	// pausesLife is how old they may be while readings fail: the kill switch is pulled when main is slow.
	pausesLife = 5 * time.Second
)
