package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// A worker is used by a replica on which it is enabled and configured. Only a worker that is used
// has fires, figures and a row on the status page:
//
//  1. Replicas that use it begin its ledger if there is none: nothing before that was missed, and
//     nothing is caught up. Every useInterval they say in it that it is used.
//  2. A replica that does not use it closes a ledger in which nobody has said so while it has
//     looked for unusedPatience on end. While main is away nobody can say so, and nobody looks:
//     that time does not count.
//
// So replicas that use a worker never lose its ledger to others that do not, as long as one of them
// is at work.
const (
	useInterval    = 20 * time.Second
	unusedPatience = fireGrace - 2*lookAhead
)

// uses says whether this replica uses the worker, and closes the ledger of one that nobody uses any
// more: it has looked for long enough. It asks the worker's database only where the answer matters.
func (l *ledgerLook) uses(ctx context.Context, watched time.Duration) (bool, error) {
	if l.begun() && !l.worker.Config.Disabled() && l.dues().idle() && l.now.Sub(l.ledger.UsedAt) < useInterval {
		return true, nil
	}
	why, err := l.service.notUsed(ctx, l.worker)
	if err != nil {
		// A worker whose database does not answer is configured as it was before.
		return l.begun(), nil //nolint:nilerr // see above
	}
	l.service.unused.changed(ctx, l.service, l.worker.Name, why)
	if why != "" && l.begun() && watched >= unusedPatience {
		err = l.service.engine.Main.CloseLedger(ctx, l.worker.Name, unusedPatience, reasonAbandoned)
	}
	return why == "", err
}

// notUsed is why this replica does not use a worker, "" if it does.
func (s *Service) notUsed(ctx context.Context, w *run.Worker) (why string, err error) {
	if w.Config.Disabled() {
		return notEnabled(w.Name), nil
	}
	return w.Missing(ctx)
}

func notEnabled(worker string) string {
	return fmt.Sprintf("disabled in the configuration of this server: workers.%s.enabled is false", worker)
}

// unused are the workers that this replica does not use: the reason, as the log has it.
type unused struct {
	mu  sync.Mutex
	why map[string]string
	// since is when a row of looks at the ledgers began that were at most useInterval apart, last
	// the last of them.
	since, last time.Time
}

// watched notes a look, and says for how long this replica has looked without a gap.
func (u *unused) watched(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.last) > useInterval {
		u.since = now
	}
	u.last = now
	return now.Sub(u.since)
}

// changed logs when a worker is not used, and when it is used after that.
func (u *unused) changed(ctx context.Context, s *Service, worker, why string) {
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
		s.engine.Logger.InfoContext(ctx, "worker used from now on", "worker", worker)
	default:
		s.engine.Logger.InfoContext(ctx, "worker not used", "worker", worker, "why", why)
	}
}
