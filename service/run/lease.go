package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
)

// leaseSet holds the leases of a run: its lease, and a fence row of the same name in every other
// database that it writes to.
//
// A write takes one of the permits, renewal takes them all. So renewal waits for the running
// statements, whose share locks would block it anyway, and they cannot starve it.
type leaseSet struct {
	name, holder string
	ttl          time.Duration
	// main is the database of the lease itself. The others have fence rows.
	main       *repo.Database
	unreleased *unreleased
	// lost cancels the run once a row is lost.
	lost func(error)

	permits *semaphore.Weighted

	// acquireMu is held while a row is taken, so that parallel batches take a row once. It waits
	// for no statement.
	acquireMu sync.Mutex

	// rows guards the fields below, and is never held during a query.
	rows sync.Mutex
	held map[*repo.Database]heldLease
	// everHeld are the names of all databases in which the run has held a row.
	everHeld []string
}

// allPermits is more than the permits that a run ever uses at once.
const allPermits = 1 << 30

// heldLease is a row that the run holds in one database.
type heldLease struct {
	fencing.Fence
	// until uses the host's monotonic clock, from before the request that took or renewed the row:
	// never later than expires_at.
	until time.Time
}

// newLeaseSet returns the lease set of a run that holds no row yet. Losing a row cancels the run.
func (r *Runner) newLeaseSet(x *Execution, ttl time.Duration) *leaseSet {
	return &leaseSet{
		name: x.Worker.LeaseName(x.Database), holder: r.Replica, ttl: ttl, main: x.Database,
		unreleased: &r.unreleased, lost: x.cancel, held: map[*repo.Database]heldLease{},
		permits: semaphore.NewWeighted(allPermits),
	}
}

// unreleased are the leases of ended runs whose database did not answer. Only other processes must
// wait for them to expire.
type unreleased struct {
	mu     sync.Mutex
	fences map[*repo.Database][]fencing.Fence
}

// add records a row that could not be released. It replaces an older row of the same name.
func (l *unreleased) add(d *repo.Database, f fencing.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fences == nil {
		l.fences = map[*repo.Database][]fencing.Fence{}
	}
	l.fences[d] = append(slices.DeleteFunc(l.fences[d], func(old fencing.Fence) bool { return old.Name == f.Name }), f)
}

// has reports whether exactly this row, with its epoch, is recorded as unreleased.
func (l *unreleased) has(d *repo.Database, f fencing.Fence) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.fences[d], f)
}

// databases returns those in which the run has held a row.
func (l *leaseSet) databases() []string {
	l.rows.Lock()
	defer l.rows.Unlock()
	return slices.Sorted(slices.Values(l.everHeld))
}

// get returns the row held in a database, or false.
func (l *leaseSet) get(d *repo.Database) (heldLease, bool) {
	l.rows.Lock()
	defer l.rows.Unlock()
	h, ok := l.held[d]
	return h, ok
}

// fenced returns the other databases in which a row is held.
func (l *leaseSet) fenced() (databases []*repo.Database) {
	l.rows.Lock()
	defer l.rows.Unlock()
	for d := range l.held {
		if d != l.main {
			databases = append(databases, d)
		}
	}
	return databases
}

// acquired records that the statement that recorded the run has taken the lease. asked is the time
// of that request.
func (l *leaseSet) acquired(d *repo.Database, epoch int64, asked time.Time) {
	l.add(d, heldLease{fencing.Fence{Name: l.name, Holder: l.holder, Epoch: epoch}, asked.Add(l.ttl)})
}

// add records a row as held. It locks rows, but sends no query.
func (l *leaseSet) add(d *repo.Database, h heldLease) {
	l.rows.Lock()
	defer l.rows.Unlock()
	l.held[d] = h
	l.everHeld = append(l.everHeld, d.Name)
}

// acquire takes the row in a database: the lease itself or, in other databases, a fence row.
func (l *leaseSet) acquire(ctx context.Context, d *repo.Database) (heldLease, error) {
	l.acquireMu.Lock()
	defer l.acquireMu.Unlock()
	if h, ok := l.get(d); ok {
		return h, nil
	}
	ttl := l.ttl
	if d != l.main {
		// A fence must not outlast the lease, or the next holder of the lease would find it held.
		// The next renewal extends both.
		if ttl = l.usableFor(l.main); ttl < time.Millisecond {
			return heldLease{}, dberr.ErrLeaseLost
		}
	}
	before := time.Now()
	lease, err := d.Leases.AcquireLease(ctx, l.name, l.holder, ttl)
	var held *fencing.LeaseHeldError
	if errors.As(err, &held) && l.unreleased.has(d, held.Lease.Fence) {
		if err = d.Leases.ReleaseLease(ctx, held.Lease.Fence); err == nil {
			before = time.Now()
			lease, err = d.Leases.AcquireLease(ctx, l.name, l.holder, ttl)
		}
	}
	if err != nil {
		return heldLease{}, err
	}
	h := heldLease{lease.Fence, before.Add(ttl)}
	l.add(d, h)
	return h, nil
}

// usableFor returns how long the row of a database may still be used: one second less than it is
// held. Negative: no row is held.
func (l *leaseSet) usableFor(d *repo.Database) time.Duration {
	h, _ := l.get(d)
	return time.Until(h.until) - statementMargin
}

// fence takes the fence rows of other databases at the start of a run. If one is held, it releases
// everything. A database that does not answer is skipped: the work meets it and fails the run.
func (l *leaseSet) fence(ctx context.Context, databases []*repo.Database) error {
	for _, d := range databases {
		_, err := l.acquire(ctx, d)
		var held *fencing.LeaseHeldError
		if errors.As(err, &held) || errors.Is(err, dberr.ErrLeaseLost) {
			return errors.Join(err, l.release(ctx))
		}
	}
	return nil
}

// To a run, a database is unreachable if another run writes there, or if the fence there has
// expired because the database did not answer.
var (
	errFenceHeld    = fmt.Errorf("fence held by another run: %w", dberr.ErrUnreachable)
	errFenceExpired = fmt.Errorf("fence not renewed in time: %w", dberr.ErrUnreachable)
)

// ensureFence takes the fence row of a database before the first write there.
func (l *leaseSet) ensureFence(ctx context.Context, d *repo.Database) error {
	if _, ok := l.get(d); ok {
		return nil
	}
	if _, ok := l.get(l.main); !ok {
		return dberr.ErrLeaseLost
	}
	_, err := l.acquire(ctx, d)
	var held *fencing.LeaseHeldError
	switch {
	case errors.As(err, &held):
		return fmt.Errorf("%w: %w", errFenceHeld, err)
	case errors.Is(err, dberr.ErrLeaseLost):
		l.lost(err)
	}
	return err
}

// renewLoop renews every third of the TTL until ctx ends. It retries a failed renewal every second
// while the lease holds.
func (l *leaseSet) renewLoop(ctx context.Context) {
	wait := l.ttl / renewals
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = l.ttl / renewals
		err := l.renew(ctx)
		if errors.Is(err, dberr.ErrLeaseLost) || errors.Is(err, errPermitOpen) {
			l.lost(err)
			return
		} else if err != nil {
			wait = min(wait, time.Second)
		}
	}
}

// renew renews the fence rows before the lease, so that the next holder of the lease finds the
// fences expired too. If a database does not answer, the run loses its children there, not its
// lease. The next write notices that.
//
// Every statement ends before the lease does. If a permit is still out then, the worker has
// forgotten it, and the run ends.
func (l *leaseSet) renew(ctx context.Context) error {
	main, _ := l.get(l.main)
	waiting, cancel := context.WithDeadline(ctx, main.until.Add(-statementMargin/2))
	defer cancel()
	switch err := l.permits.Acquire(waiting, allPermits); {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil && time.Now().After(main.until):
		return fmt.Errorf("%w: it was not renewed in time", dberr.ErrLeaseLost)
	case err != nil:
		return errPermitOpen
	}
	defer l.permits.Release(allPermits)
	for _, d := range l.fenced() {
		if err := l.renewOne(ctx, d); errors.Is(err, dberr.ErrLeaseLost) {
			return err
		}
	}
	err := l.renewOne(ctx, l.main)
	if err != nil && l.expired() {
		err = fmt.Errorf("%w: it could not be renewed: %w", dberr.ErrLeaseLost, err)
	}
	return err
}

// renewOne extends the row in one database by ttl, in one round trip. The new end counts from
// before the request. After an error the row keeps its previous end.
func (l *leaseSet) renewOne(ctx context.Context, d *repo.Database) error {
	before := time.Now()
	h, _ := l.get(d)
	_, err := d.Leases.RenewLease(ctx, h.Fence, l.ttl)
	if err == nil {
		h.until = before.Add(l.ttl)
		l.rows.Lock()
		l.held[d] = h
		l.rows.Unlock()
	}
	return err
}

// expired reports whether the lease has expired. A process that was stopped for longer than its
// lease may have nothing left to write, and so would not learn of it otherwise.
func (l *leaseSet) expired() bool {
	h, ok := l.get(l.main)
	return ok && time.Now().After(h.until)
}

// release releases all rows. Rows in unreachable databases expire by themselves.
func (l *leaseSet) release(ctx context.Context) error {
	// The fences first: the next holder of the lease needs them.
	left := l.fenced()
	if _, ok := l.get(l.main); ok {
		left = append(left, l.main)
	}
	err := retryUnreachable(ctx, func() error {
		var errs []error
		left = slices.DeleteFunc(left, func(d *repo.Database) bool {
			h, _ := l.get(d)
			err := d.Leases.ReleaseLease(ctx, h.Fence)
			errs = append(errs, err)
			return err == nil
		})
		return errors.Join(errs...)
	})
	for _, d := range left {
		h, _ := l.get(d)
		l.unreleased.add(d, h.Fence)
	}
	l.rows.Lock()
	defer l.rows.Unlock()
	clear(l.held)
	return err
}

// Number of tries, and the wait between them, for the end of a run while a database does not
// answer.
const (
	endTries = 3
	endWait  = 500 * time.Millisecond
)

// retryUnreachable calls do up to three times while the database does not answer, so that an ended
// connection does not delay the next run.
func retryUnreachable(ctx context.Context, do func() error) (err error) {
	for try := 1; ; try++ {
		if err = do(); !errors.Is(err, dberr.ErrUnreachable) || try == endTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(endWait):
		}
	}
}
