package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// leaseSet is what a run holds: its lease, and a fence row of the same name in every other database
// that it writes to.
//
// Permits to write hold the read side of mu, renewal the write side: a renewal waits for the
// statements in flight, whose share locks it would otherwise have to outlast, and is not starved by
// them.
type leaseSet struct {
	name, holder string
	ttl          time.Duration
	home         *repo.Database
	leftovers    *leftovers
	lost         func(error)

	// open is how many permits hold mu.
	open atomic.Int64
	mu   sync.RWMutex
	held map[*repo.Database]*heldLease
	// taken are the names of all databases in which there has been one.
	taken []string
}

type heldLease struct {
	repo.Fence
	// until is by our own monotonic clock, counted from before the request that took or renewed it:
	// never later than expires_at.
	until time.Time
}

func (r *Runner) newLeaseSet(x *Execution, ttl time.Duration) *leaseSet {
	return &leaseSet{
		name: x.Worker.LeaseName(x.Database), holder: r.Replica, ttl: ttl, home: x.Database,
		leftovers: &r.leftovers, lost: x.cancel, held: map[*repo.Database]*heldLease{},
	}
}

// leftovers are the leases of runs that have ended while their database did not answer: nobody but
// this process waits for them to expire, and it need not.
type leftovers struct {
	mu     sync.Mutex
	fences map[*repo.Database][]repo.Fence
}

func (l *leftovers) add(d *repo.Database, f repo.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fences == nil {
		l.fences = map[*repo.Database][]repo.Fence{}
	}
	l.fences[d] = append(slices.DeleteFunc(l.fences[d], func(old repo.Fence) bool { return old.Name == f.Name }), f)
}

func (l *leftovers) has(d *repo.Database, f repo.Fence) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.fences[d], f)
}

// databases are those in which the run has had a row.
func (l *leaseSet) databases() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(slices.Values(l.taken))
}

// hold notes that the statement that recorded the run has taken the lease, which was asked for at
// this time.
func (l *leaseSet) hold(d *repo.Database, epoch int64, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[d] = &heldLease{repo.Fence{Name: l.name, Holder: l.holder, Epoch: epoch}, asked.Add(l.ttl)}
	l.taken = append(l.taken, d.Name)
}

// acquire takes the row in a database: the lease itself at home, a fence row elsewhere.
func (l *leaseSet) acquire(ctx context.Context, d *repo.Database) (*heldLease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[d]; h != nil {
		return h, nil
	}
	before := time.Now()
	lease, err := d.AcquireLease(ctx, l.name, l.holder, l.ttl)
	var held *repo.LeaseHeldError
	if errors.As(err, &held) && l.leftovers.has(d, held.Lease.Fence) {
		if err = d.ReleaseLease(ctx, held.Lease.Fence); err == nil {
			before = time.Now()
			lease, err = d.AcquireLease(ctx, l.name, l.holder, l.ttl)
		}
	}
	if err != nil {
		return nil, err
	}
	h := &heldLease{lease.Fence, before.Add(l.ttl)}
	l.held[d] = h
	l.taken = append(l.taken, d.Name)
	if d != l.home {
		// A fence must not outlast the lease, or whoever takes that over would find it held.
		if err := l.renewHome(ctx); errors.Is(err, repo.ErrLeaseLost) {
			return h, err
		}
	}
	return h, nil
}

// fence takes the fence rows of other databases at the start of a run. If one is held, everything
// is given back. A database that does not answer is left for the work to meet: it fails the run.
func (l *leaseSet) fence(ctx context.Context, databases []*repo.Database) error {
	for _, d := range databases {
		_, err := l.acquire(ctx, d)
		var held *repo.LeaseHeldError
		if errors.As(err, &held) || errors.Is(err, repo.ErrLeaseLost) {
			return errors.Join(err, l.release(ctx))
		}
	}
	return nil
}

// For a run a database is unreachable if another run writes there, or if the fence there has run
// out because the database did not answer.
var (
	errFenceHeld    = fmt.Errorf("fence held by another run: %w", repo.ErrUnreachable)
	errFenceExpired = fmt.Errorf("fence not renewed in time: %w", repo.ErrUnreachable)
)

// enter takes the fence row of a database before the first write there.
func (l *leaseSet) enter(ctx context.Context, d *repo.Database) error {
	l.mu.RLock()
	h := l.held[d]
	l.mu.RUnlock()
	if h != nil {
		return nil
	}
	_, err := l.acquire(ctx, d)
	var held *repo.LeaseHeldError
	switch {
	case errors.As(err, &held):
		return fmt.Errorf("%w: %w", errFenceHeld, err)
	case errors.Is(err, repo.ErrLeaseLost):
		l.lost(err)
	}
	return err
}

// keep renews every third of the TTL until ctx ends; a renewal that does not get through is tried
// again every second as long as the lease holds.
func (l *leaseSet) keep(ctx context.Context) {
	wait := l.ttl / renewals
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = l.ttl / renewals
		if err := l.renew(ctx); errors.Is(err, repo.ErrLeaseLost) {
			l.lost(err)
			return
		} else if err != nil {
			wait = min(wait, time.Second)
		}
	}
}

// renew renews the fence rows before the lease, so that whoever takes the lease over finds the
// fences expired too. A database that does not answer costs the run its children there, which the
// next write notices, not its lease.
func (l *leaseSet) renew(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d, h := range l.held {
		if d == l.home {
			continue
		}
		if err := l.renewOne(ctx, d, h); errors.Is(err, repo.ErrLeaseLost) {
			return err
		}
	}
	return l.renewHome(ctx)
}

func (l *leaseSet) renewHome(ctx context.Context) error {
	err := l.renewOne(ctx, l.home, l.held[l.home])
	if err != nil && time.Now().After(l.held[l.home].until) {
		err = fmt.Errorf("%w: it could not be renewed: %w", repo.ErrLeaseLost, err)
	}
	return err
}

func (l *leaseSet) renewOne(ctx context.Context, d *repo.Database, h *heldLease) error {
	before := time.Now()
	_, err := d.RenewLease(ctx, h.Fence, l.ttl)
	if err == nil {
		h.until = before.Add(l.ttl)
	}
	return err
}

// expired says that the lease has run out: a process that was stopped beyond it may have nothing
// left to write, and so not hear of it otherwise.
func (l *leaseSet) expired() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return time.Now().After(l.held[l.home].until)
}

// release gives everything back. What cannot be reached expires by itself.
func (l *leaseSet) release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The fences first: whoever takes the lease next needs them.
	var left []*repo.Database
	for d := range l.held {
		if d != l.home {
			left = append(left, d)
		}
	}
	if l.held[l.home] != nil {
		left = append(left, l.home)
	}
	err := tryAgain(ctx, func() error {
		var errs []error
		left = slices.DeleteFunc(left, func(d *repo.Database) bool {
			err := d.ReleaseLease(ctx, l.held[d].Fence)
			errs = append(errs, err)
			return err == nil
		})
		return errors.Join(errs...)
	})
	for _, d := range left {
		l.leftovers.add(d, l.held[d].Fence)
	}
	clear(l.held)
	return err
}

// How often what ends a run is tried that a database does not answer to, and how long to wait in
// between.
const (
	endTries = 3
	endWait  = 500 * time.Millisecond
)

// tryAgain does something up to three times while the database does not answer: a connection that
// was ended costs the next run nothing.
func tryAgain(ctx context.Context, do func() error) (err error) {
	for try := 1; ; try++ {
		if err = do(); !errors.Is(err, repo.ErrUnreachable) || try == endTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(endWait):
		}
	}
}
