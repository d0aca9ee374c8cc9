package fencing

import (
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Lease is a row of maintenance.leases.
type Lease struct {
	Fence
	// Database in which the row lives.
	Database                         string
	AcquiredAt, RenewedAt, ExpiresAt time.Time
	// Expired: the lease has expired by the clock of the database, so it is free.
	Expired bool
}

// Holding names the holder of the lease and its expiry, for messages. The expiry of a released lease
// is in the past, and is omitted.
func (l *Lease) Holding() string {
	if l.Expired {
		return fmt.Sprintf("%s was just released by %s: try again", l.Name, l.Holder)
	}
	if l.ExpiresAt.Equal(stmt.Latest()) {
		return fmt.Sprintf("%s is held by %s and never expires: if no run is active, set expires_at of this lease "+
			"in maintenance.leases to now()",
			l.Name, l.Holder)
	}
	return fmt.Sprintf("%s is held by %s until %s", l.Name, l.Holder, l.ExpiresAt.UTC().Format(time.RFC3339))
}

// Columns returns the destinations into which a row of a lease is scanned.
func (l *Lease) Columns() []any {
	return []any{&l.Name, &l.Holder, &l.Epoch, &l.AcquiredAt, &l.RenewedAt, &l.ExpiresAt, &l.Expired}
}

// LeaseHeldError means that another run holds the requested lease.
type LeaseHeldError struct {
	// Lease is its current row.
	Lease Lease
	// Remaining is the time until the lease expires by the clock of its database, 24 hours at most.
	// Retry after it.
	Remaining time.Duration
	// RunID is our run that holds the lease, "" if unknown.
	RunID string
}

// Error names the holder and the next step.
func (e *LeaseHeldError) Error() string {
	text := "lease " + e.Lease.Holding()
	if e.RunID != "" {
		text += fmt.Sprintf(": to follow the active run, use `caretaker watch %s`", e.RunID)
	}
	return text
}

// Details returns the reason and the metadata for clients.
func (e *LeaseHeldError) Details() (string, map[string]string) {
	metadata := map[string]string{
		"lease": e.Lease.Name, "holder": e.Lease.Holder,
		"expires_at": e.Lease.ExpiresAt.UTC().Format(time.RFC3339Nano),
	}
	if e.RunID != "" {
		metadata["run_id"] = e.RunID
	}
	return "LEASE_HELD", metadata
}

// RetryAfter returns the time until the next attempt makes sense.
func (e *LeaseHeldError) RetryAfter() time.Duration { return max(e.Remaining, time.Millisecond) }
