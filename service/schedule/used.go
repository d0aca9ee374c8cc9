package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// useInterval is how often replicas record that they use a worker, unusedPatience after how long
// without that its ledger is closed.
const (
	useInterval    = 20 * time.Second
	unusedPatience = fireGrace - 2*lookAhead
)

// uses says whether this replica uses the worker, and closes the ledger of one that nobody uses any
// more. It asks the worker's database only where the answer matters.
func (t *workerTick) uses(ctx context.Context, watched time.Duration) (bool, error) {
	if t.hasLedger() && !t.worker.Config.Disabled() && t.nextAction().nothing() &&
		t.now.Sub(t.ledger.UsedAt) < useInterval {
		return true, nil
	}
	why, err := t.NotUsed(ctx, t.worker)
	if err != nil {
		// A worker whose database does not answer is configured as it was before.
		return t.hasLedger(), nil //nolint:nilerr // see above
	}
	t.usage.changed(ctx, t.runner.Logger, t.worker.Name, why)
	if why != "" && t.hasLedger() && watched >= unusedPatience {
		err = t.runner.Main.CloseLedger(ctx, t.worker.Name, unusedPatience)
	}
	return why == "", err
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

// usage is which workers this replica uses.
type usage struct {
	mu sync.Mutex
	// why a worker is not used, as the log has it.
	why map[string]string
	// since is when checks began that were at most useInterval apart, last the last of them.
	since, last time.Time
}

// watched notes a check, and returns for how long this replica has checked without a gap.
func (u *usage) watched(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.last) > useInterval {
		u.since = now
	}
	u.last = now
	return now.Sub(u.since)
}

// changed logs when a worker is not used, and when it is used after that.
func (u *usage) changed(ctx context.Context, log *slog.Logger, worker, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.why == nil {
		u.why = map[string]string{}
	}
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
