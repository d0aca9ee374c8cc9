package service

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A worker is used by a replica on which it is enabled and configured. Only a worker that is used has fires, figures and
// a row on the status page:
//
//  1. Replicas that use it begin its ledger if there is none: nothing before that was missed, and nothing is caught up.
//     Every useInterval they say in it that it is used.
//  2. A replica that does not use it closes a ledger in which nobody has said so while it has looked for unusedPatience
//     on end. While main is away nobody can say so, and nobody looks: that time does not count.
//
// So replicas that use a worker never lose its ledger to others that do not, as long as one of them is at work.
const (
	useInterval    = 20 * time.Second
	unusedPatience = fireGrace - 2*lookAhead
)

// uses says whether this replica uses the worker, and closes the ledger of one that nobody uses any more. It asks the
// worker's database only where the answer matters.
func (l *ledgerLook) uses(ctx context.Context) (bool, error) {
	begun := !l.ledger.AccountedUntil.IsZero()
	if begun && !l.worker.config.Disabled && l.dues().idle() && l.now.Sub(l.ledger.UsedAt) < useInterval {
		return true, nil
	}
	why, err := l.service.notUsed(ctx, l.worker)
	if err != nil {
		// A worker whose database does not answer is configured as it was before.
		return begun, nil //nolint:nilerr // see above
	}
	l.service.unused.told(ctx, l.service, l.worker.name, why)
	if why != "" && begun && l.service.unused.watched(l) >= unusedPatience {
		err = l.service.main.CloseLedger(ctx, l.worker.name, unusedPatience, reasonAbandoned)
	}
	return why == "", err
}

// notUsed is why this replica does not use a worker, "" if it does.
func (s *Service) notUsed(ctx context.Context, w *worker) (why string, err error) {
	if w.config.Disabled {
		return notEnabled(w.name), nil
	}
	return w.missing(ctx)
}

func notEnabled(worker string) string {
	return fmt.Sprintf("disabled in the configuration of this server: workers.%s.enabled is false", worker)
}

// unused are the workers that this replica does not use: the reason, as the log has been told, and how long it has seen
// nobody use them.
type unused struct {
	mu    sync.Mutex
	why   map[string]string
	watch map[string]watch
}

// watch is a row of looks at a ledger that all saw the same usedAt and were at most useInterval apart.
type watch struct {
	usedAt, first, last time.Time
}

// watched says for how long this replica has seen that nobody uses a worker.
func (u *unused) watched(l *ledgerLook) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.watch == nil {
		u.watch = map[string]watch{}
	}
	w := u.watch[l.worker.name]
	if !w.usedAt.Equal(l.ledger.UsedAt) || l.now.Sub(w.last) > useInterval {
		w = watch{usedAt: l.ledger.UsedAt, first: l.now}
	}
	w.last = l.now
	u.watch[l.worker.name] = w
	return l.now.Sub(w.first)
}

// told tells the log when a worker is not used, and when it is used after that.
func (u *unused) told(ctx context.Context, s *Service, worker, why string) {
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
		s.logger.InfoContext(ctx, "worker used from now on", "worker", worker)
	default:
		s.logger.InfoContext(ctx, "worker not used", "worker", worker, "why", why)
	}
}
