package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// useInterval is how often a replica records that it uses a worker, and that it checks fires.
const useInterval = 15 * time.Second

// isUsed reports whether this replica uses the worker. It queries the worker's database only where
// the answer matters.
func (t *workerTick) isUsed(ctx context.Context) bool {
	if t.hasLedger() && !t.worker.Config.Disabled() && t.nextAction().nothing() &&
		t.now.Sub(t.ledger.UsedAt) < useInterval {
		return true
	}
	why, err := t.NotUsed(ctx, t.worker)
	if err != nil {
		// A worker whose database does not answer keeps its previous state.
		return t.hasLedger()
	}
	t.unused.logChange(ctx, t.runner.Logger, t.worker.Name, why)
	return why == ""
}

// NotUsed returns why this replica does not use a worker, or "".
func (d *Dispatcher) NotUsed(ctx context.Context, w *run.Worker) (why string, err error) {
	if w.Config.Disabled() {
		return NotEnabled(w.Name), nil
	}
	return w.Missing(ctx)
}

// NotEnabled returns why a worker that the configuration disables is not used.
func NotEnabled(worker string) string {
	return fmt.Sprintf("disabled in the configuration of this server (workers.%s.enabled is false)", worker)
}

// unused has the logged reasons why this replica does not use workers.
type unused struct {
	mu  sync.Mutex
	why map[string]string
}

// logChange logs when a worker becomes unused, and when it is used again.
func (u *unused) logChange(ctx context.Context, log *slog.Logger, worker, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.why[worker]
	u.why[worker] = why
	switch why {
	case before:
	case "":
		log.InfoContext(ctx, "worker now enabled and configured", "worker", worker)
	default:
		log.InfoContext(ctx, "worker not used", "worker", worker, "why", why)
	}
}
