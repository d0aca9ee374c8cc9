package run

import (
	"context"
	"time"
)

const (
	// pruneInterval is how often a process prunes, pruneRounds how many statements it then sends at
	// most.
	pruneInterval = time.Hour
	pruneRounds   = 20
)

// pruneDue says, once an hour, that it is time to prune.
func (r *Runner) pruneDue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.prunedAt.IsZero() || time.Since(r.prunedAt) > pruneInterval
	if due {
		r.prunedAt = time.Now()
	}
	return due
}

// Prune deletes old history at the end of a run, whatever started it, and when fires are checked:
// nothing grows where the scheduler is off, or where no run ever starts.
func (r *Runner) Prune(ctx context.Context) {
	if !r.pruneDue() {
		return
	}
	for range pruneRounds {
		if r.IsStopping() {
			return
		}
		more, err := r.Main.PruneHistory(ctx, r.HistoryKeep)
		if err != nil {
			r.Logger.WarnContext(ctx, "history not pruned, next try in an hour", "error", err)
		}
		if !more {
			return
		}
	}
}
