package run

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Permit lets one step write. The caller that got it without an error defers End at once:
//
//	permit, err := x.Permit(ctx, d, table, limits)
//	if err != nil {
//		return err
//	}
//	defer permit.End(&err)
//	return d.Purge(ctx, permit.Permit, …)
//
// A run's lease is not renewed until then. So hold a permit for one call of repo, and request no
// second one meanwhile: a waiting renewal would block both forever.
type Permit struct {
	fencing.Permit
	// open is what End closes, nil for a job and for a dry run.
	open *openPermit
}

// Writer issues permits: the [Execution] of a run, or an attempt of a job.
type Writer interface {
	// Permit allows writes to the rows of a table of a database. The zero Table stands for rows of
	// no application table. The permit has these limits, or shorter ones.
	Permit(ctx context.Context, d *repo.Database, t catalog.Table, l fencing.Limits) (Permit, error)
}

// openPermit is a run's permit until its end.
type openPermit struct {
	*Execution
	database *repo.Database
	ended    atomic.Bool
}

// Permit waits while the database or the table is over a limit of its load. It fails with the
// reason that stopped the run, [dberr.ErrLeaseLost], or [dberr.ErrUnreachable] where another run
// holds the fence of the database. The permit has the run's fence as its guard, ends before the
// lease does, and names the run in receipts.
func (x *Execution) Permit(
	ctx context.Context, d *repo.Database, t catalog.Table, l fencing.Limits,
) (Permit, error) {
	if x.leases == nil {
		return Permit{}, errDryPermit
	}
	if err := x.waitForLoad(ctx, d, t); err != nil {
		return Permit{}, err
	}
	// Taking a row in another database takes time. The lease must be renewable meanwhile.
	if err := x.leases.ensureFence(ctx, d); err != nil {
		return Permit{}, err
	}
	if err := x.waitForRenewal(ctx); err != nil {
		return Permit{}, err
	}
	permit, err := x.leases.permit(d, l)
	if err != nil {
		x.leases.permits.Release(1)
		return Permit{}, err
	}
	permit.Source = x.source()
	return Permit{permit, &openPermit{Execution: x, database: d}}, nil
}

// source returns the run as receipts name it.
func (x *Execution) source() fencing.Source {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fencing.Source{RunID: x.run.ID, Worker: x.Worker.Name, RequestedBy: x.run.RequestedBy}
}

// End returns the permit. *err is the result of the step. After the end of the lease, an error
// becomes [dberr.ErrLeaseLost]. A second End does nothing.
func (p Permit) End(err *error) {
	o := p.open
	if o == nil || o.ended.Swap(true) {
		return
	}
	*err = o.leases.end(*err)
	o.reader.Wrote(o.database.Database)
}

// WithPermit runs a writing step, for no table in particular, with a permit.
func (x *Execution) WithPermit(
	ctx context.Context, d *repo.Database, l fencing.Limits, do func(fencing.Permit) error,
) (err error) {
	permit, err := x.Permit(ctx, d, catalog.Table{}, l)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return do(permit.Permit)
}

// statementMargin is the time between the end of a statement and the end of the lease.
const statementMargin = time.Second

// waitForRenewal takes a permit once no renewal holds or awaits them all. Its error is why the run
// stops.
func (x *Execution) waitForRenewal(ctx context.Context) error {
	if x.leases.permits.TryAcquire(1) {
		return nil
	}
	began := time.Now()
	defer func() { spans.AddSeconds(ctx, "maintenance.waited_seconds", time.Since(began)) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := func() { cancel(x.Stopped()) }
	defer context.AfterFunc(x.stopRequested, stop)() //nolint:contextcheck // a signal, no parent
	if x.leases.permits.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// permit returns the permit itself, with limits cut to the remaining time of the lease.
func (l *leaseSet) permit(d *repo.Database, limits fencing.Limits) (fencing.Permit, error) {
	fence, _ := l.get(d)
	left, fenceLeft := l.usableFor(l.main), l.usableFor(d)
	switch {
	case left < time.Millisecond:
		return fencing.Permit{}, dberr.ErrLeaseLost
	case fenceLeft < time.Millisecond:
		return fencing.Permit{}, fmt.Errorf("%s: %w", d.Name, errFenceExpired)
	}
	left = min(left, fenceLeft)
	limits.Statement, limits.Lock = min(limits.Statement, left), min(limits.Lock, left)
	limits.Transaction = min(limits.Transaction, left)
	return fencing.Permit{Guard: fence.Guard(), Limits: limits}, nil
}

// end ends a permit with an error or nil, and returns what that means for the run.
func (l *leaseSet) end(err error) error {
	defer l.permits.Release(1)
	if err != nil && l.expired() {
		// Any error: a process that was stopped beyond its lease has also missed the answer.
		err = fmt.Errorf("%w: %w", dberr.ErrLeaseLost, err)
	}
	if errors.Is(err, dberr.ErrLeaseLost) {
		l.lost(dberr.ErrLeaseLost)
	}
	return err
}

// Faults of a worker.
var (
	errPermitOpen = &fault.FailedError{Text: "the worker has not released its write permit"}
	errDryPermit  = &fault.FailedError{Text: "the worker requested a write permit during a dry run"}
)

// close ends the permits: a goroutine that outlives the worker gets no more. It fails if a permit
// is still out. The leases are no longer renewed.
func (l *leaseSet) close() error {
	if !l.permits.TryAcquire(allPermits) {
		return errPermitOpen
	}
	return nil
}
