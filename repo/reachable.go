package repo

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// reachability is what the statements of this process have found out about a server.
type reachability struct {
	mu sync.Mutex
	// since when the database cannot work; zero: it can.
	since time.Time
	// readOnly is when it last answered and refused to write: for a while that a query succeeds says
	// nothing then.
	readOnly time.Time
	// resetAt is when connections were last given up because of that.
	resetAt time.Time
}

// readOnlyState is the SQLSTATE of a write on a standby, or where transactions are read-only by
// default.
const readOnlyState = "25006"

const (
	// resetInterval is how often connections are given up at most.
	resetInterval = time.Second
	// readOnlyMemory is for how long a database is taken for read-only, unless [Database.Writable]
	// finds that it is not: longer than the time between two of the questions of a server that watches
	// it.
	readOnlyMemory = 10 * time.Second
)

// observe records how a statement ended. After a fail-over connections may lead to a server
// that has become a standby, and stay there: they are given up, so that new ones find the primary.
func (d *Database) observe(err error) {
	refused, ok := errors.AsType[*Error](err)
	if err != nil && !ok {
		// The caller has gone away.
		return
	}
	down := ok && refused.Class() == ClassUnreachable
	r := &d.reachability
	now := time.Now() //nolint:forbidigo // when we noticed: there is no database to ask
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !down && now.Sub(r.readOnly) < readOnlyMemory:
		return
	case !down:
		r.since = time.Time{}
		return
	case r.since.IsZero():
		r.since = now
	}
	if refused.SQLState == readOnlyState {
		r.readOnly = now
		if now.Sub(r.resetAt) >= resetInterval {
			r.resetAt = now
			d.pool.Reset()
		}
	}
}

// UnreachableSince is when this process first noticed that the database cannot work; zero: it can,
// as far as is known.
func (d *Database) UnreachableSince() time.Time {
	r := &d.reachability
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since
}

const writableSQL = `SELECT current_setting('transaction_read_only') = 'on'`

// Writable says whether the database answers and is not read-only, as a standby is; else the error
// is [ErrUnreachable].
func (d *Database) Writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	var readOnly bool
	err := d.pool.QueryRow(ctx, writableSQL).Scan(&readOnly)
	if err == nil && readOnly {
		err = &pgconn.PgError{Severity: "ERROR", Code: readOnlyState, Message: "the server is read-only"}
	}
	if err == nil {
		d.reachability.mu.Lock()
		d.reachability.readOnly = time.Time{}
		d.reachability.mu.Unlock()
	}
	return d.wrap(ctx, "look whether it can write", err)
}
