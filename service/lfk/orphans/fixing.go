package orphans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Repair lets a caller without a run write records, one caller at a time: it takes the worker's
// lease.
type Repair struct {
	// Main has the lease. Holder names the caller in it.
	Main   *repo.Database
	Holder string
	leases map[*repo.Database]fencing.Lease
}

// leaseTime is the duration of the lease without a renewal.
const leaseTime = time.Minute

// cleanup is the worker that processes the records: its pause means that no more should be written.
const cleanup = "loose_foreign_keys_cleanup"

// held returns the pause that keeps records from being written: a caller obeys the pauses of runs.
func (f *Repair) held(ctx context.Context) error {
	pauses, err := f.Main.Flags.Pauses(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", run.PausesUnknown, err)
	}
	for _, worker := range []string{Name, cleanup} {
		if pause := run.PauseFor(worker, pauses); pause != nil {
			return fmt.Errorf("cannot queue orphans, because %w",
				&fault.WorkerPausedError{Worker: worker, Pause: *pause})
		}
	}
	return nil
}

// WithPermit calls with a permit for a database. If a run, or another command, holds the lease it
// returns a [*fault.LeaseHeldError]. For a pause it returns a [*fault.WorkerPausedError].
func (f *Repair) WithPermit(
	ctx context.Context, d *repo.Database, do func(fencing.Permit) error,
) error {
	if err := f.held(ctx); err != nil {
		return err
	}
	for _, at := range []*repo.Database{f.Main, d} {
		if err := f.hold(ctx, at); err != nil {
			return err
		}
	}
	return do(fencing.Permit{Guard: f.leases[d].Guard(), Limits: limits()})
}

// hold takes the lease in a database, or renews it.
func (f *Repair) hold(ctx context.Context, d *repo.Database) (err error) {
	if f.leases == nil {
		f.leases = map[*repo.Database]fencing.Lease{}
	}
	lease, has := f.leases[d]
	if has {
		lease, err = d.Leases.RenewLease(ctx, lease.Fence, leaseTime)
		// The lease has expired during a time without writes.
		has = !errors.Is(err, dberr.ErrLeaseLost)
	}
	if !has {
		delete(f.leases, d)
		lease, err = d.Leases.AcquireLease(ctx, Name, f.Holder, leaseTime)
	}
	if err == nil {
		f.leases[d] = lease
	}
	return err
}

// End releases the lease.
func (f *Repair) End(ctx context.Context) {
	for d, lease := range f.leases {
		_ = d.Leases.ReleaseLease(ctx, lease.Fence) // It expires within a minute.
	}
}
