package repo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Fence names the lease under which a transaction writes.
type Fence struct {
	Name, Holder string
	Epoch        int64
}

// Lease is a row of maintenance.leases.
type Lease struct {
	Fence
	// Database in which the row lives.
	Database                         string
	AcquiredAt, RenewedAt, ExpiresAt time.Time
	// Expired by the clock of the database: the lease is free.
	Expired bool
}

// Holding says who has the lease, and until when.
func (l *Lease) Holding() string {
	if l.ExpiresAt.Equal(latest()) {
		return fmt.Sprintf("%s is held by %s and never expires: if nobody is at work, set its expires_at in maintenance.leases to now()",
			l.Name, l.Holder)
	}
	return fmt.Sprintf("%s is held by %s until %s", l.Name, l.Holder, l.ExpiresAt.UTC().Format(time.RFC3339))
}

// freeSQL is the condition for a lease (alias l) that nobody holds. Only expires_at counts, whoever
// wrote it.
const freeSQL = `(l.expires_at > clock_timestamp()) IS NOT TRUE`

// leaseColumns in the order of (*Lease).columns. A row may have been written by anybody, in a table
// that lets columns be empty; of a holder's name the beginning is enough.
const leaseColumns = `l.name, left(coalesce(l.holder, ''), 200), coalesce(l.epoch, 0), coalesce(l.acquired_at, '-infinity'),
  coalesce(l.renewed_at, '-infinity'), coalesce(l.expires_at, '-infinity'), ` + freeSQL

// The parts of a statement that takes the lease $1 for the holder $2 and the time $3, if nobody has
// it or it has expired. One that is plainly held is only read: locking it would wait for the
// holder's statement in flight, and make the next wait.
const (
	leaseValuesSQL = `
  INSERT INTO maintenance.leases AS l (name, holder, epoch, acquired_at, renewed_at, expires_at)
  SELECT $1::text, $2::text, 1, now(), now(), now() + $3::interval`
	leaseIsFreeSQL = `NOT EXISTS (
    SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp())`
	leaseConflictSQL = `
  ON CONFLICT (name) DO UPDATE
  SET holder = EXCLUDED.holder, epoch = coalesce(l.epoch, 0) + 1,
    acquired_at = EXCLUDED.acquired_at, renewed_at = EXCLUDED.renewed_at, expires_at = EXCLUDED.expires_at
  WHERE ` + freeSQL
)

// acquireLeaseSQL: a row that does not come back is held.
const acquireLeaseSQL = leaseValuesSQL + `
  WHERE ` + leaseIsFreeSQL + leaseConflictSQL + `
  RETURNING ` + leaseColumns

// AcquireLease takes the lease, or returns a [*LeaseHeldError]. It tries once and never waits for a
// holder. The lease ends ttl after now unless it is renewed.
func (d *Database) AcquireLease(
	ctx context.Context, name, holder string, ttl time.Duration,
) (Lease, error) {
	lease, err := d.queryLease(ctx, "acquire lease "+name, acquireLeaseSQL, name, holder, ttl)
	if !errors.Is(err, ErrNotFound) {
		return lease, err
	}
	held, remaining, err := d.readLease(ctx, name)
	if err != nil {
		return Lease{}, err
	}
	return Lease{}, &LeaseHeldError{Lease: held, Remaining: remaining}
}

const renewLeaseSQL = `
UPDATE maintenance.leases l SET renewed_at = now(), expires_at = now() + $4::interval
WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > clock_timestamp()
RETURNING ` + leaseColumns

// RenewLease lets a held lease end ttl after now. A lease that is not held any more is
// [ErrLeaseLost].
func (d *Database) RenewLease(ctx context.Context, f Fence, ttl time.Duration) (Lease, error) {
	lease, err := d.queryLease(ctx, "renew lease "+f.Name, renewLeaseSQL, f.Name, f.Holder, f.Epoch, ttl)
	if errors.Is(err, ErrNotFound) {
		return Lease{}, fmt.Errorf("renew lease %s on %s: %w", f.Name, d.Name, ErrLeaseLost)
	}
	return lease, err
}

// releaseLeaseSQL ends the lease a day ago: a clock that is set back by less does not make it held
// again.
const releaseLeaseSQL = `
UPDATE maintenance.leases SET expires_at = now() - interval '1 day', renewed_at = now()
WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now()`

// ReleaseLease ends a held lease. A lease that somebody else has taken meanwhile stays as it is.
func (d *Database) ReleaseLease(ctx context.Context, f Fence) error {
	_, err := d.exec(ctx, "release lease "+f.Name, releaseLeaseSQL, f.Name, f.Holder, f.Epoch)
	return err
}

// readLeaseSQL also says for how many seconds it is held, up to a day.
const readLeaseSQL = `
SELECT ` + leaseColumns + `,
  greatest(0, extract(epoch FROM least(l.expires_at, clock_timestamp() + interval '24 hours') - clock_timestamp()))::float8
FROM maintenance.leases l WHERE l.name = $1`

func (d *Database) readLease(
	ctx context.Context, name string,
) (lease Lease, remaining time.Duration, err error) {
	var left float64
	err = d.queryRow(ctx, "read lease "+name, append(lease.columns(), &left), readLeaseSQL, name)
	lease.Database = d.Name
	return lease, seconds(left), err
}

const listLeasesSQL = `
SELECT ` + leaseColumns + ` FROM maintenance.leases l WHERE l.name = ANY ($1) ORDER BY l.name`

// ListLeases reads the rows of these names, expired ones included.
func (d *Database) ListLeases(ctx context.Context, names []string) ([]Lease, error) {
	return collect(ctx, d, newQuery("list leases", listLeasesSQL, names), d.scanLease)
}

func (d *Database) queryLease(
	ctx context.Context, operation, sql string, args ...any,
) (lease Lease, err error) {
	err = d.queryRow(ctx, operation, lease.columns(), sql, args...)
	lease.Database = d.Name
	return lease, err
}

func (d *Database) scanLease(row pgx.CollectableRow) (lease Lease, err error) {
	err = row.Scan(lease.columns()...)
	lease.Database = d.Name
	return lease, err
}

func (l *Lease) columns() []any {
	return []any{&l.Name, &l.Holder, &l.Epoch, &l.AcquiredAt, &l.RenewedAt, &l.ExpiresAt, &l.Expired}
}
