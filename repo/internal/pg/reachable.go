package pg

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// reachability is what the statements of this process have learned about a server.
type reachability struct {
	mu sync.Mutex
	// since is when the database stopped working. Zero means that it works.
	since time.Time
	// readOnly is when the server last answered and refused to write. For a while after that, a
	// successful query proves nothing.
	readOnly time.Time
	// resetAt is when connections were last closed for that reason.
	resetAt time.Time
	// writableAt is when the database was last found not to be read-only. Zero: it has failed
	// since.
	writableAt time.Time
}

const (
	// resetInterval is the minimum time between two resets of the connections.
	resetInterval = time.Second
	// readOnlyMemory is how long a database counts as read-only, unless [Database.Writable] finds
	// that it is not. It is longer than the interval at which a watching server queries.
	readOnlyMemory = 10 * time.Second
	// writableMemory is how long [Database.StillWritable] trusts a result. It is longer than the
	// interval between two queries for due jobs, which renew the result.
	writableMemory = 2500 * time.Millisecond
)

// observe records how a statement ended. After a failover, connections may stay on a server that
// has become a standby. They are closed, so that new connections find the primary.
func (d *Database) observe(err error) {
	refused, ok := errors.AsType[*dberr.Error](err)
	if err != nil && !ok {
		// The caller has cancelled.
		return
	}
	down := ok && refused.Class() == dberr.ClassUnreachable
	r := &d.reachability
	now := time.Now() //nolint:forbidigo // when we noticed: no database can be asked
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
	r.writableAt = time.Time{}
	if refused.SQLState == dberr.ReadOnlyState {
		r.readOnly = now
		if now.Sub(r.resetAt) >= resetInterval {
			r.resetAt = now
			d.pool.Reset()
		}
	}
}

// UnreachableSince returns when this process first noticed that the database cannot work. Zero
// means that it works, as far as is known.
func (d *Database) UnreachableSince() time.Time {
	r := &d.reachability
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since
}

const writableSQL = `SELECT current_setting('transaction_read_only') = 'on'`

// Writable reports whether the database answers and is not read-only, as a standby is. Otherwise
// the error is [dberr.ErrUnreachable].
func (d *Database) Writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	var readOnly bool
	err := d.pool.QueryRow(ctx, writableSQL).Scan(&readOnly)
	if err == nil {
		err = RecordWritable(d, readOnly)
	}
	return Wrap(ctx, d, "check whether the database is writable", err)
}

// StillWritable is Writable for callers that repeat it. It sends nothing if a statement has found
// the database writable within the last 2.5 s and none has failed since.
func (d *Database) StillWritable(ctx context.Context) error {
	r := &d.reachability
	now := time.Now() //nolint:forbidigo // how long ago we noticed
	r.mu.Lock()
	known := now.Sub(r.writableAt) < writableMemory
	r.mu.Unlock()
	if known {
		return nil
	}
	return d.Writable(ctx)
}

// RecordWritable records that a database is not read-only. If it is, RecordWritable returns the
// error.
func RecordWritable(d *Database, readOnly bool) error {
	if readOnly {
		return &pgconn.PgError{Severity: "ERROR", Code: dberr.ReadOnlyState, Message: "the server is read-only"}
	}
	r := &d.reachability
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readOnly = time.Time{}
	r.writableAt = time.Now() //nolint:forbidigo // when we noticed: no database can be asked
	return nil
}
