package repo

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Reader decides where one run of a worker, or a look at its backlog, finds its candidates: on the
// replica once that has replayed what the database had written when the run first asked, and the
// run's own writes, else on the primary. The methods of this package that only find candidates or
// count a backlog ask the reader of their context; all others, and all without one, read the primary.
type Reader struct {
	database *Database

	mu sync.Mutex
	// want is what the replica must have replayed, if it is known; replayed: it has.
	want            position
	known, replayed bool
	// places are where has been read; why is the reason for which the primary was last chosen.
	places []string
	why    string
}

// Where a [Reader] has read.
const (
	fromPrimary = "primary"
	fromReplica = "replica"
)

// Reader is for one run in this database, or one look at a backlog. It is nil without a replica; its
// methods accept a nil receiver.
func (d *Database) Reader() *Reader {
	if d.replica == nil {
		return nil
	}
	return &Reader{database: d}
}

// Wrote records that the run has written, or may have, in a database.
func (r *Reader) Wrote(d *Database) {
	if r == nil || r.database != d {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = false
}

// Source is where has been read, "primary", "replica" or "primary, replica", "" for nowhere, and
// why the primary was last chosen.
func (r *Reader) Source() (places, why string) {
	if r == nil {
		return "", ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.places, ", "), r.why
}

// note remembers where has been read.
func (r *Reader) note(place, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
	if i, found := slices.BinarySearch(r.places, place); !found {
		r.places = slices.Insert(r.places, i, place)
	}
}

// catchUpTime is how long a replica may take to replay what was written just now, catchUpPause how
// long it is left alone in between. Mostly it needs a few milliseconds.
const (
	catchUpTime  = 50 * time.Millisecond
	catchUpPause = 5 * time.Millisecond
)

// ready finds out what the replica must have replayed, and whether it has. why says why the replica
// cannot be read, "" if it may be tried. It takes no round trip unless the run has written since.
func (r *Reader) ready(ctx context.Context) (want position, why string) {
	replica := r.database.replica
	if why := replica.avoided(); why != "" {
		return want, why
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		var err error
		if r.want, err = r.database.written(ctx); err != nil {
			return want, "the position of the primary's log could not be read"
		}
		r.known, r.replayed = true, false
	}
	if !r.replayed {
		if why := replica.catchUp(ctx, r.want); why != "" {
			return want, why
		}
		r.replayed = true
	}
	return r.want, ""
}

// catchUp waits a moment for the replica to replay the log up to a position, and says why it cannot
// be read.
func (r *replica) catchUp(ctx context.Context, want position) string {
	bounded, cancel := context.WithTimeoutCause(ctx, replicaPatience, ErrUnreachable)
	defer cancel()
	for end := time.Now().Add(catchUpTime); ; {
		var state replicaState
		err := r.queryRow(bounded, "look at the replica", state.columns(),
			replicaStateSQL, want.args()...)
		if err != nil {
			return r.markUnhealthy(ctx, reasonOf(err), err)
		}
		if trouble := state.trouble(); trouble != "" {
			return r.markUnhealthy(ctx, trouble, nil)
		}
		if state.replayed {
			return ""
		}
		if time.Now().After(end) {
			return r.markBehind()
		}
		select {
		case <-bounded.Done():
			return behind
		case <-time.After(catchUpPause):
		}
	}
}

// candidate sends a query that only finds candidates or counts a backlog. stale says that a replica
// has answered: whatever is decided by it must be read again on the primary.
func (d *Database) candidate(
	ctx context.Context, l Limits, q query, read func(pgx.BatchResults) error,
) (stale bool, err error) {
	if d.onReplica(ctx, l, q, read) {
		return true, nil
	}
	return false, d.send(ctx, q.operation, l, []statement{q.statement}, read)
}

// onReplica runs a query on the replica if the reader of ctx lets it, and says whether its rows
// have been read.
func (d *Database) onReplica(
	ctx context.Context, l Limits, q query, read func(pgx.BatchResults) error,
) bool {
	r := scopeOf(ctx).reader
	if r == nil || r.database != d {
		return false
	}
	want, why := r.ready(ctx)
	if why == "" {
		why = d.replica.ask(ctx, l, q, want, read)
	}
	if why != "" {
		r.note(fromPrimary, why)
		return false
	}
	r.note(fromReplica, "")
	return true
}

// candidateRow is readRow for such a query, candidateRows readRows.
func (d *Database) candidateRow(
	ctx context.Context, l Limits, q query, into ...any,
) (stale bool, err error) {
	return d.candidate(ctx, l, q, func(results pgx.BatchResults) error {
		return results.QueryRow().Scan(into...)
	})
}

func candidateRows[T any](
	ctx context.Context, d *Database, l Limits, q query, scan pgx.RowToFunc[T],
) (out []T, stale bool, err error) {
	stale, err = d.candidate(ctx, l, q, collectInto(&out, scan))
	return out, stale, err
}
