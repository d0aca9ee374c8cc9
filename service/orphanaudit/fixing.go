package orphanaudit

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Fixing lets a caller that is no run write records, one at a time: it has the worker's lease.
type Fixing struct {
	// Main has the lease. Holder names the caller in it.
	Main   *repo.Database
	Holder string
	leases map[*repo.Database]repo.Lease
}

// leaseTime is how long the lease lasts without a renewal.
const leaseTime = time.Minute

// Permitted calls with a permit for a database. Where a run, or somebody else, has the lease the
// error is a [*repo.LeaseHeldError].
func (f *Fixing) Permitted(
	ctx context.Context, d *repo.Database, do func(repo.Permit) error,
) error {
	for _, at := range []*repo.Database{f.Main, d} {
		if err := f.hold(ctx, at); err != nil {
			return err
		}
	}
	return do(repo.Permit{Guard: f.leases[d].Guard(), Limits: limits()})
}

// hold takes the lease in a database, or renews it.
func (f *Fixing) hold(ctx context.Context, d *repo.Database) (err error) {
	if f.leases == nil {
		f.leases = map[*repo.Database]repo.Lease{}
	}
	lease, has := f.leases[d]
	if has {
		lease, err = d.RenewLease(ctx, lease.Fence, leaseTime)
		// It has run out while there was nothing to write.
		has = !errors.Is(err, repo.ErrLeaseLost)
	}
	if !has {
		delete(f.leases, d)
		lease, err = d.AcquireLease(ctx, Name, f.Holder, leaseTime)
	}
	if err == nil {
		f.leases[d] = lease
	}
	return err
}

// End gives the lease back.
func (f *Fixing) End(ctx context.Context) {
	for d, lease := range f.leases {
		_ = d.ReleaseLease(ctx, lease.Fence) // It expires within a minute.
	}
}
