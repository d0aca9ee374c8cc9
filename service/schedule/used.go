package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// useInterval is after how long without it a replica records that it uses a worker, and that it
// looks.
const useInterval = 15 * time.Second

// isUsed reports whether this replica uses the worker. It asks the worker's database only where the
// answer matters.
func (t *workerTick) isUsed(ctx context.Context) bool {
	if t.hasLedger() && !t.worker.Config.Disabled() && t.nextAction().nothing() &&
		t.now.Sub(t.ledger.UsedAt) < useInterval {
		return true
	}
	why, err := t.NotUsed(ctx, t.worker)
	if err != nil {
		// A worker whose database does not answer is configured as it was before.
		return t.hasLedger()
	}
	t.unused.logChange(ctx, t.runner.Logger, t.worker.Name, why)
	return why == ""
}

// NotUsed is why this replica does not use a worker, "" if it does.
func (d *Dispatcher) NotUsed(ctx context.Context, w *run.Worker) (why string, err error) {
	if w.Config.Disabled() {
		return NotEnabled(w.Name), nil
	}
	return w.Missing(ctx)
}

// NotEnabled is why a worker is not used that the configuration has switched off.
func NotEnabled(worker string) string {
	return fmt.Sprintf("disabled in the configuration of this server: workers.%s.enabled is false", worker)
}

// unused is why workers are not used by this replica, as the log has it.
type unused struct {
	mu  sync.Mutex
	why map[string]string
}

// logChange logs when a worker is not used, and when it is used after that.
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
