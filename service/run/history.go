package run

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// pruneInterval is how often a process prunes, with at most pruneRounds statements each time.
	pruneInterval = time.Hour
	pruneRounds   = 20
)

// history deletes runs, fires and receipts after their retention time. main is the first database.
type history struct {
	databases []*repo.Database
	active    *active
	logger    *slog.Logger
	// Keep is how long runs and fires are kept, receiptsKeep how long receipts are. 0 means
	// permanently.
	Keep, receiptsKeep time.Duration

	mu sync.Mutex
	// prunedAt is the last time that this process deleted old records.
	prunedAt time.Time
}

// due reports, once an hour, that it is time to prune.
func (h *history) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.prunedAt.IsZero() || time.Since(h.prunedAt) > pruneInterval
	if due {
		h.prunedAt = time.Now()
	}
	return due
}

// Prune deletes old history at the end of any run, and when fires are checked. So history does not
// grow where the scheduler is off, or where no run ever starts.
func (h *history) Prune(ctx context.Context) {
	if !h.due() {
		return
	}
	main := h.databases[0]
	h.rounds(ctx, main, "history not pruned, retrying in an hour", func() (more bool, err error) {
		return main.History.PruneHistory(ctx, h.Keep)
	})
	if h.receiptsKeep == 0 {
		return
	}
	for _, d := range h.databases {
		h.rounds(ctx, d, "receipts not pruned, retrying in an hour", func() (more bool, err error) {
			return d.Receipts.PruneReceipts(ctx, h.receiptsKeep)
		})
	}
}

// rounds sends statements while more rows remain. failed is the log message of a failing one.
func (h *history) rounds(
	ctx context.Context, d *repo.Database, failed string, prune func() (more bool, err error),
) {
	for range pruneRounds {
		if h.active.IsStopping() {
			return
		}
		more, err := prune()
		if err != nil {
			//nolint:sloglint // one of two constants
			h.logger.WarnContext(ctx, failed, "database", d.Name, "error", err)
		}
		if !more {
			return
		}
	}
}
