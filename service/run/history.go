package run

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// pruneInterval is how often a process prunes, pruneRounds how many statements it then sends at
	// most.
	pruneInterval = time.Hour
	pruneRounds   = 20
)

// history deletes runs, fires and receipts that are older than they are kept, main being the first
// database.
type history struct {
	databases []*repo.Database
	active    *active
	logger    *slog.Logger
	// Keep is how long runs and fires are kept, receiptsKeep how long receipts are; 0: for good.
	Keep, receiptsKeep time.Duration

	mu       sync.Mutex
	prunedAt time.Time
}

// due says, once an hour, that it is time to prune.
func (h *history) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := h.prunedAt.IsZero() || time.Since(h.prunedAt) > pruneInterval
	if due {
		h.prunedAt = time.Now()
	}
	return due
}

// Prune deletes old history at the end of a run, whatever started it, and when fires are checked:
// nothing grows where the scheduler is off, or where no run ever starts.
func (h *history) Prune(ctx context.Context) {
	if !h.due() {
		return
	}
	main := h.databases[0]
	h.rounds(ctx, main, "history not pruned, next try in an hour", func() (more bool, err error) {
		return main.History.PruneHistory(ctx, h.Keep)
	})
	if h.receiptsKeep == 0 {
		return
	}
	for _, d := range h.databases {
		h.rounds(ctx, d, "receipts not pruned, next try in an hour", func() (more bool, err error) {
			return d.Receipts.PruneReceipts(ctx, h.receiptsKeep)
		})
	}
}

// rounds sends statements as long as there is more. failed is the message where one fails.
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
