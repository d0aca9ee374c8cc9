package pg

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Reader decides where one run of a worker, or one reading of its backlog, finds its candidates. It
// chooses the replica if that has replayed the last write of this worker in this database,
// otherwise the primary. The methods of this package that only find candidates or count a backlog
// ask the reader of their context. All other methods, and all without a reader, read the primary.
//
// The last write of a finished run is the position of the log at its end. It is stored in
// maintenance.replica_positions with the lease's name and epoch. A run that died has stored none
// for its epoch: then the current end of the log counts.
type Reader struct {
	database *Database
	name     string
	epoch    int64

	mu sync.Mutex
	// wrote: the run has written. known: want is the worker's last write. recent: want is the current
	// end of the log.
	wrote, known, recent bool
	want                 position
	// places are the servers that were read. why is the reason for the last choice of the primary.
	places []string
	why    string
}

// Places where a [Reader] has read.
const (
	fromPrimary = "primary"
	fromReplica = "replica"
)

// Reader returns a reader for the run that holds the lease with this name and epoch in this
// database. With epoch 0 the reader reads the backlog of its worker. It is nil without a replica,
// and its methods accept a nil receiver.
func (d *Database) Reader(name string, epoch int64) *Reader {
	if d.Replica == nil {
		return nil
	}
	return &Reader{database: d, name: name, epoch: epoch}
}

// Wrote records that the run has written, or may have, in a database.
func (r *Reader) Wrote(d *Database) {
	if r == nil || r.database != d {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote, r.known = true, false
}

// Source returns the servers that were read, "primary", "replica", "primary, replica" or "", and
// why the primary was last chosen.
func (r *Reader) Source() (places, why string) {
	if r == nil {
		return "", ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.places, ", "), r.why
}

// note records the server that was read.
func (r *Reader) note(place, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
	if i, found := slices.BinarySearch(r.places, place); !found {
		r.places = slices.Insert(r.places, i, place)
	}
}

// rememberSQL: a run without writes keeps the previous last write, if that is the previous run's.
const rememberSQL = `
INSERT INTO maintenance.replica_positions AS p (name, epoch, timeline, lsn)
SELECT $1::text, $2::bigint, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer, pg_current_wal_insert_lsn()
ON CONFLICT (name) DO UPDATE SET epoch = EXCLUDED.epoch, timeline = EXCLUDED.timeline,
  lsn = CASE WHEN $3::boolean OR p.epoch <> EXCLUDED.epoch - 1 OR p.timeline <> EXCLUDED.timeline THEN EXCLUDED.lsn ELSE p.lsn END
WHERE p.epoch < EXCLUDED.epoch`

// SavePosition stores the run's last write for the next run. Call it once, after the last write and
// before the release of the lease. The next run notices if a run died before storing it.
func (r *Reader) SavePosition(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	wrote := r.wrote
	r.mu.Unlock()
	_, err := Exec(ctx, r.database, "save the position of the last write", rememberSQL, r.name, r.epoch, wrote)
	return err
}

// lastWriteSQL reads the end of the log and the last write of the worker $1, "" if unknown. The run
// with the epoch $2 reads the previous run's write. A reader of the backlog ($2 = 0) reads the
// newest.
const lastWriteSQL = `
SELECT (SELECT system_identifier FROM pg_control_system()), w.timeline, w.lsn::text, coalesce((
  SELECT p.lsn::text FROM maintenance.replica_positions p
  WHERE p.name = $1 AND p.timeline = w.timeline AND CASE WHEN $2::bigint > 0 THEN p.epoch = $2 - 1 ELSE EXISTS (
    SELECT FROM maintenance.leases l WHERE l.name = p.name AND l.epoch = p.epoch AND l.expires_at <= clock_timestamp()) END), '')
FROM (SELECT pg_current_wal_insert_lsn() AS lsn,
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline) w`

// catchUpTime is how long a replica may take to replay a write of just now, catchUpPause the pause
// between checks. A replica usually needs a few milliseconds.
const (
	catchUpTime  = 50 * time.Millisecond
	catchUpPause = 5 * time.Millisecond
)

// ready finds what the replica must have replayed and, if that was written just now, whether it
// has. why is the reason why the replica cannot be read, "" if it may be tried. It takes no round
// trip unless there was a write since the last.
func (r *Reader) ready(ctx context.Context) (want position, why string) {
	replica := r.database.Replica
	if why := replica.unavailable(); why != "" {
		return want, why
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		var last string
		err := QueryRow(ctx, r.database, "read the position of the last write",
			[]any{&r.want.system, &r.want.timeline, &r.want.lsn, &last}, lastWriteSQL, r.name, r.epoch)
		if err != nil {
			return want, "the position of the last write could not be read"
		}
		if r.known, r.recent = true, true; last != "" && !r.wrote {
			r.want.lsn, r.recent = last, false
		}
	}
	if r.recent {
		if why := replica.catchUp(ctx, r.want); why != "" {
			return want, why
		}
		r.recent = false
	}
	return r.want, ""
}

// catchUp waits briefly for the replica to replay the log up to a position. It returns the reason if
// the replica did not. "" means that it did.
func (r *replica) catchUp(ctx context.Context, want position) string {
	bounded, cancel := context.WithTimeoutCause(ctx, replicaConnectTimeout, dberr.ErrUnreachable)
	defer cancel()
	for end := time.Now().Add(catchUpTime); ; {
		var state replicaState
		err := QueryRow(bounded, r.Database, "read the replica", state.columns(),
			replicaStateSQL, want.args()...)
		if err != nil {
			return r.markUnhealthy(ctx, reasonOf(err), err)
		}
		if problem := state.problem(); problem != "" {
			return r.markUnhealthy(ctx, problem, nil)
		}
		if state.replayed {
			return ""
		}
		if time.Now().After(end) {
			return r.markLagging()
		}
		select {
		case <-bounded.Done():
			return lagging
		case <-time.After(catchUpPause):
		}
	}
}

// replicaQuery sends a query that only finds candidates or counts a backlog. stale reports whether
// a replica answered: decisions based on its rows require a second read on the primary.
func (d *Database) replicaQuery(
	ctx context.Context, l fencing.Limits, q Query, read func(pgx.BatchResults) error,
) (stale bool, err error) {
	if OnReplica(ctx, d, l, q, read) {
		return true, nil
	}
	return false, Send(ctx, d, q.Operation, l, []stmt.Statement{q.Statement}, read)
}

// OnReplica runs a query on the replica if the reader of ctx permits it, and reports whether its
// rows have been read.
func OnReplica(
	ctx context.Context, d *Database, l fencing.Limits, q Query, read func(pgx.BatchResults) error,
) bool {
	r, _ := ctx.Value(readerKey{}).(*Reader)
	if r == nil || r.database != d {
		return false
	}
	want, why := r.ready(ctx)
	if why == "" {
		why = d.Replica.query(ctx, l, q, want, read)
	}
	if why != "" {
		r.note(fromPrimary, why)
		return false
	}
	r.note(fromReplica, "")
	return true
}

// ReplicaRow is [ReadRow] for a query that a replica may answer.
func ReplicaRow(
	ctx context.Context, d *Database, l fencing.Limits, q Query, into ...any,
) (stale bool, err error) {
	return d.replicaQuery(ctx, l, q, func(results pgx.BatchResults) error {
		return results.QueryRow().Scan(into...)
	})
}

// ReplicaRows is [ReadRows] for a query that a replica may answer. stale reports whether one has.
func ReplicaRows[T any](
	ctx context.Context, d *Database, l fencing.Limits, q Query, scan pgx.RowToFunc[T],
) (out []T, stale bool, err error) {
	stale, err = d.replicaQuery(ctx, l, q, CollectInto(&out, scan))
	return out, stale, err
}

// confirmable is a row of a replica that may have to be read again on the primary.
type confirmable interface{ NeedsConfirmation() bool }

// ConfirmedReplicaRows is [ReplicaRows], repeated on the primary if one of the rows needs it.
func ConfirmedReplicaRows[T confirmable](
	ctx context.Context, d *Database, l fencing.Limits, q Query, scan pgx.RowToFunc[T],
) ([]T, error) {
	rows, stale, err := ReplicaRows(ctx, d, l, q, scan)
	if err == nil && stale && slices.ContainsFunc(rows, T.NeedsConfirmation) {
		return ReadRows(ctx, d, l, q, scan)
	}
	return rows, err
}

type readerKey struct{}

// ReadBy returns a context in which the reader decides where methods read. A nil reader decides
// nothing.
func ReadBy(ctx context.Context, r *Reader) context.Context {
	return context.WithValue(ctx, readerKey{}, r)
}
