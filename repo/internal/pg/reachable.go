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
	// writableAt is when it was last found not to be read-only; zero: it has failed since.
	writableAt time.Time
}

const (
	// resetInterval is how often connections are given up at most.
	resetInterval = time.Second
	// readOnlyMemory is for how long a database is taken for read-only, unless [Database.Writable]
	// finds that it is not: longer than the time between two of the questions of a server that watches
	// it.
	readOnlyMemory = 10 * time.Second
	// writableMemory is for how long [Database.StillWritable] believes an answer: longer than the time
	// between two looks for due jobs, which answer the question along the way.
	writableMemory = 2500 * time.Millisecond
)

// observe records how a statement ended. After a fail-over connections may lead to a server
// that has become a standby, and stay there: they are given up, so that new ones find the primary.
func (d *Database) observe(err error) {
	refused, ok := errors.AsType[*dberr.Error](err)
	if err != nil && !ok {
		// The caller has gone away.
		return
	}
	down := ok && refused.Class() == dberr.ClassUnreachable
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
	r.writableAt = time.Time{}
	if refused.SQLState == dberr.ReadOnlyState {
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

// Writable reports whether the database answers and is not read-only, as a standby is; else the
// error is [dberr.ErrUnreachable].
func (d *Database) Writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	var readOnly bool
	err := d.pool.QueryRow(ctx, writableSQL).Scan(&readOnly)
	if err == nil {
		err = NoteWritable(d, readOnly)
	}
	return Wrap(ctx, d, "look whether it can write", err)
}

// StillWritable is Writable for those who ask again and again: nothing is sent if a statement has
// found it out within the last 2.5 s, and none has found the database down since.
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

// NoteWritable records that a database is not read-only, or returns the error of one that is.
func NoteWritable(d *Database, readOnly bool) error {
	if readOnly {
		return &pgconn.PgError{Severity: "ERROR", Code: dberr.ReadOnlyState, Message: "the server is read-only"}
	}
	r := &d.reachability
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readOnly = time.Time{}
	r.writableAt = time.Now() //nolint:forbidigo // when we noticed: there is no database to ask
	return nil
}
