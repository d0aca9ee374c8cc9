package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// freeSQL is true for a free lease (alias l). Only expires_at counts, not the writer.
const freeSQL = `(l.expires_at > clock_timestamp()) IS NOT TRUE`

// leaseColumns are in the order of [fencing.Lease.Columns]. Any program may have written a row, in
// a table whose columns may be empty. The beginning of a holder's name suffices.
const leaseColumns = `l.name, left(coalesce(l.holder, ''), 200), coalesce(l.epoch, 0), coalesce(l.acquired_at, '-infinity'),
  coalesce(l.renewed_at, '-infinity'), coalesce(l.expires_at, '-infinity'), ` + freeSQL

// The parts of a statement that acquires the lease $1 for the holder $2 and the time $3, if it is
// free or has expired. A held lease is only read: locking it would wait for the holder's running
// statement, and delay the next.
const (
	// leaseValuesSQL starts a lease at epoch 1.
	leaseValuesSQL = `
  INSERT INTO maintenance.leases AS l (name, holder, epoch, acquired_at, renewed_at, expires_at)
  SELECT $1::text, $2::text, 1, now(), now(), now() + $3::interval`
	// leaseIsFreeSQL reports whether the lease $1 has expired or was never acquired.
	leaseIsFreeSQL = `NOT EXISTS (
    SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp())`
	// leaseConflictSQL replaces an expired lease, with the next epoch.
	leaseConflictSQL = `
  ON CONFLICT (name) DO UPDATE
  SET holder = EXCLUDED.holder, epoch = coalesce(l.epoch, 0) + 1,
    acquired_at = EXCLUDED.acquired_at, renewed_at = EXCLUDED.renewed_at, expires_at = EXCLUDED.expires_at
  WHERE ` + freeSQL
)

// acquireLeaseSQL: a row that is not returned is held.
const acquireLeaseSQL = leaseValuesSQL + `
  WHERE ` + leaseIsFreeSQL + leaseConflictSQL + `
  RETURNING ` + leaseColumns

// acquireTries is how often a lease is tried that its holder releases at that moment.
const acquireTries = 3

// AcquireLease acquires the lease, or returns a [*fencing.LeaseHeldError]. It never waits for a
// holder. The lease ends ttl after now unless it is renewed.
func (d Leases) AcquireLease(
	ctx context.Context, name, holder string, ttl time.Duration,
) (lease fencing.Lease, err error) {
	held := &fencing.LeaseHeldError{}
	for range acquireTries {
		lease, err = queryLease(ctx, d.db, "acquire lease "+name, acquireLeaseSQL, name, holder, ttl)
		if !errors.Is(err, dberr.ErrNotFound) {
			return lease, err
		}
		held.Lease, held.Remaining, err = readLease(ctx, d.db, name)
		if err != nil {
			return fencing.Lease{}, err
		}
		if !held.Lease.Expired {
			break
		}
	}
	return fencing.Lease{}, held
}

// renewLeaseSQL compares with the clock of the moment, so an expired lease is not renewed.
const renewLeaseSQL = `
UPDATE maintenance.leases l SET renewed_at = now(), expires_at = now() + $4::interval
WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > clock_timestamp()
RETURNING ` + leaseColumns

// RenewLease extends a held lease to ttl after now. If the lease is no longer held, the error is
// [dberr.ErrLeaseLost].
func (d Leases) RenewLease(ctx context.Context, f fencing.Fence, ttl time.Duration) (fencing.Lease, error) {
	lease, err := queryLease(ctx, d.db, "renew lease "+f.Name, renewLeaseSQL, f.Name, f.Holder, f.Epoch, ttl)
	if errors.Is(err, dberr.ErrNotFound) {
		return fencing.Lease{}, fmt.Errorf("cannot renew lease %s on %s: %w", f.Name, d.db.Name, dberr.ErrLeaseLost)
	}
	return lease, err
}

// releaseLeaseSQL ends the lease a day ago: setting the clock back by less does not make it held
// again.
const releaseLeaseSQL = `
UPDATE maintenance.leases SET expires_at = now() - interval '1 day', renewed_at = now()
WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now()`

// ReleaseLease ends a held lease. A lease that another server has acquired meanwhile does not
// change.
func (d Leases) ReleaseLease(ctx context.Context, f fencing.Fence) error {
	_, err := pg.Exec(ctx, d.db, "release lease "+f.Name, releaseLeaseSQL, f.Name, f.Holder, f.Epoch)
	return err
}

// readLeaseSQL also returns for how many seconds the lease is held, up to a day.
const readLeaseSQL = `
SELECT ` + leaseColumns + `,
  greatest(0, extract(epoch FROM least(l.expires_at, clock_timestamp() + interval '24 hours') - clock_timestamp()))::float8
FROM maintenance.leases l WHERE l.name = $1`

// readLease reads a lease and how long it is still held, 0 if it has expired.
func readLease(
	ctx context.Context, d *pg.Database, name string,
) (lease fencing.Lease, remaining time.Duration, err error) {
	var left float64
	err = pg.QueryRow(ctx, d, "read lease "+name, append(lease.Columns(), &left), readLeaseSQL, name)
	lease.Database = d.Name
	return lease, seconds(left), err
}

// listLeasesSQL reads leases by their names, including expired ones.
const listLeasesSQL = `
SELECT ` + leaseColumns + ` FROM maintenance.leases l WHERE l.name = ANY ($1) ORDER BY l.name`

// ListLeases reads the rows of these names, including expired ones.
func (d Leases) ListLeases(ctx context.Context, names []string) ([]fencing.Lease, error) {
	return pg.Collect(ctx, d.db, pg.NewQuery("list leases", listLeasesSQL, names), d.scanLease)
}

// queryLease runs a statement that returns one lease. Without a row the error is
// [dberr.ErrNotFound].
func queryLease(
	ctx context.Context, d *pg.Database, operation, sql string, args ...any,
) (lease fencing.Lease, err error) {
	err = pg.QueryRow(ctx, d, operation, lease.Columns(), sql, args...)
	lease.Database = d.Name
	return lease, err
}

// scanLease reads a lease, and sets the database that contains it.
func (d Leases) scanLease(row pgx.CollectableRow) (lease fencing.Lease, err error) {
	err = row.Scan(lease.Columns()...)
	lease.Database = d.db.Name
	return lease, err
}
