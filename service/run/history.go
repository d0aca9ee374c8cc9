package run

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
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
	r.pruneRounds(ctx, r.Main, "history not pruned, next try in an hour", func() (more bool, err error) {
		return r.Main.PruneHistory(ctx, r.HistoryKeep)
	})
	if r.receiptsKeep == 0 {
		return
	}
	for _, d := range r.Databases {
		r.pruneRounds(ctx, d, "receipts not pruned, next try in an hour", func() (more bool, err error) {
			return d.PruneReceipts(ctx, r.receiptsKeep)
		})
	}
}

// pruneRounds sends statements as long as there is more. failed is the message where one fails.
func (r *Runner) pruneRounds(
	ctx context.Context, d *repo.Database, failed string, prune func() (more bool, err error),
) {
	for range pruneRounds {
		if r.IsStopping() {
			return
		}
		more, err := prune()
		if err != nil {
			//nolint:sloglint // one of two constants
			r.Logger.WarnContext(ctx, failed, "database", d.Name, "error", err)
		}
		if !more {
			return
		}
	}
}
