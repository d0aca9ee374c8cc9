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
	// Expired by the clock of the database: the lease is free.
	Expired bool
}

// Holding says who has the lease, and until when.
func (l *Lease) Holding() string {
	if l.ExpiresAt.Equal(stmt.Latest()) {
		return fmt.Sprintf("%s is held by %s and never expires: if nobody is at work, set its expires_at in maintenance.leases to now()",
			l.Name, l.Holder)
	}
	return fmt.Sprintf("%s is held by %s until %s", l.Name, l.Holder, l.ExpiresAt.UTC().Format(time.RFC3339))
}

// Columns are what a row of a lease is read into.
func (l *Lease) Columns() []any {
	return []any{&l.Name, &l.Holder, &l.Epoch, &l.AcquiredAt, &l.RenewedAt, &l.ExpiresAt, &l.Expired}
}

// LeaseHeldError says who holds the lease that was asked for.
type LeaseHeldError struct {
	// Lease as it stands.
	Lease Lease
	// Remaining is for how long it is held by the clock of its database, 24 hours at most: when to
	// look again.
	Remaining time.Duration
	// RunID is the run of ours that holds it, "" if that is not known.
	RunID string
}

// Error names the holder, and what to do about it.
func (e *LeaseHeldError) Error() string {
	text := "lease " + e.Lease.Holding()
	if e.RunID != "" {
		text += fmt.Sprintf(": run %s is at work, WatchRun (caretaker watch %s) follows it", e.RunID, e.RunID)
	}
	return text
}

// Details are the reason and the metadata that clients get.
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

// RetryAfter is when to look again.
func (e *LeaseHeldError) RetryAfter() time.Duration { return max(e.Remaining, time.Millisecond) }
