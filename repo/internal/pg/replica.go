package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// replica is the read replica of a database: its connections and its known state.
type replica struct {
	*Database
	// view returns the same under the name of the database.
	view   func() *Database
	logger *slog.Logger

	mu sync.Mutex
	// avoidedUntil is when the replica may be queried again. why is its fault, which is logged once,
	// "" for none.
	avoidedUntil time.Time
	why          string
	problem      string
}

const (
	// replicaConns are few: only reads of candidates and backlogs use the replica.
	replicaConns = 4
	// replicaConnectTimeout is the timeout of connecting. The primary can be read instead.
	replicaConnectTimeout = 2 * time.Second
	// unhealthyTime is how long an unhealthy replica is skipped, laggingTime a lagging one.
	unhealthyTime = 10 * time.Second
	laggingTime   = time.Second
)

// UseReplica sends reads that only find candidates, or feed a backlog figure, to a read replica of
// the database. Call it before the database is used. It does not connect. If the replica cannot be
// read, the primary is. The logger receives each change. The error names the fault in the URL and
// never contains a password.
func (d *Database) UseReplica(ctx context.Context, url string, logger *slog.Logger) error {
	from := source{"databases." + d.Name + ".replica_url", url, replicaConns, replicaConnectTimeout}
	opened, err := open(ctx, d.Name+dberr.ReplicaSuffix, from)
	if err != nil {
		return err
	}
	d.Replica = &replica{Database: opened, logger: logger.With("database", d.Name)}
	// The view has the name of the database: plans name the place where the database has the rows.
	d.Replica.view = sync.OnceValue(func() *Database {
		view := &Database{
			Name: d.Name, pool: opened.pool, prepares: opened.prepares,
			connectTimeout: opened.connectTimeout,
			Sessions:       opened.Sessions, spans: opened.spans, attributes: opened.attributes,
			JobCascades: d.JobCascades,
		}
		if d.Adopt != nil {
			d.Adopt(view)
		}
		return view
	})
	return nil
}

// ReadCopy returns the replica, if it may be read and has replayed everything that the database has
// written until now. Otherwise it returns the database itself. All reads of the result go there. Do
// not close it.
func (d *Database) ReadCopy(ctx context.Context) *Database {
	if d.Replica == nil || d.Replica.unavailable() != "" {
		return d
	}
	now, err := logEnd(ctx, d)
	if err != nil || d.Replica.catchUp(ctx, now) != "" {
		return d
	}
	return d.Replica.view()
}

// position is a place in the write-ahead log of a cluster: timeline and LSN, and the cluster's
// identity.
type position struct {
	system   int64
	timeline int32
	lsn      string
}

// replicaStateSQL judges a server: is it a standby, of the cluster $1, on its timeline $2, and has
// it replayed $3? A standby's timeline comes from its received log if we may read that, otherwise
// from the pages it has written.
const replicaStateSQL = `
SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()) = $1::bigint,
  greatest((SELECT timeline_id FROM pg_control_checkpoint()), (SELECT min_recovery_end_timeline FROM pg_control_recovery()),
    (SELECT received_tli FROM pg_stat_wal_receiver LIMIT 1)) = $2::integer,
  coalesce(pg_last_wal_replay_lsn() >= $3::text::pg_lsn, false)`

// replicaState is a row of replicaStateSQL.
type replicaState struct{ standby, same, timeline, replayed bool }

func (p position) args() []any { return []any{p.system, p.timeline, p.lsn} }

func (s *replicaState) columns() []any { return []any{&s.standby, &s.same, &s.timeline, &s.replayed} }

// problem returns the fault of a server as a replica, "" for none. A lag is no fault.
func (s *replicaState) problem() string {
	switch {
	case !s.same:
		return "the replica and the primary belong to different clusters"
	case !s.standby:
		return "the server is not a standby"
	case !s.timeline:
		return "the replica and the primary are on different timelines"
	}
	return ""
}

// lagging is the reason why a healthy replica cannot be read yet.
const lagging = "the replica has not replayed the last write yet"

const logEndSQL = `
SELECT (SELECT system_identifier FROM pg_control_system()),
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
  pg_current_wal_insert_lsn()::text`

// logEnd returns the current end of the primary's log.
func logEnd(ctx context.Context, d *Database) (p position, err error) {
	err = QueryRow(ctx, d, "read the WAL position",
		[]any{&p.system, &p.timeline, &p.lsn}, logEndSQL)
	return p, err
}

// CheckReplica returns the current fault of the database's replica, if there is one. A lag is no
// fault.
func (d *Database) CheckReplica(ctx context.Context) error {
	if d.Replica == nil {
		return nil
	}
	now, err := logEnd(ctx, d)
	if err != nil {
		return err
	}
	var state replicaState
	err = QueryRow(ctx, d.Replica.Database, "read the replica", state.columns(), replicaStateSQL, now.args()...)
	if problem := state.problem(); err == nil && problem != "" {
		return fmt.Errorf("databases.%s.replica_url: %s", d.Name, problem)
	}
	return err
}

// unavailable returns why the replica must be skipped for now, "" if it may be read.
func (r *replica) unavailable() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.avoidedUntil) {
		return r.why
	}
	return ""
}

// markUnhealthy skips the replica for a while because of some trouble, and returns the trouble. It
// logs new trouble.
func (r *replica) markUnhealthy(ctx context.Context, problem string, err error) string {
	if ctx.Err() != nil {
		// The caller has timed out, which proves nothing about the replica.
		return problem
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.avoidedUntil, r.why = time.Now().Add(unhealthyTime), problem
	if r.problem != problem {
		r.problem = problem
		r.logger.WarnContext(ctx, "replica skipped, reading from the primary", "reason", problem, "error", err)
	}
	return problem
}

// markLagging skips the replica for a moment because it lags, without a log message.
func (r *replica) markLagging() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.avoidedUntil, r.why = time.Now().Add(laggingTime), lagging
	return lagging
}

// markHealthy records that the replica has been read.
func (r *replica) markHealthy(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem != "" {
		r.problem = ""
		r.logger.InfoContext(ctx, "replica in use again")
	}
}

// query runs one query on the replica, and checks in the same round trip whether the replica may be
// read. It returns "", or why the rows were not read and the primary must be. A fault of a replica
// is never an error.
func (r *replica) query(
	ctx context.Context, l fencing.Limits, q Query, want position, read func(pgx.BatchResults) error,
) (why string) {
	timeout := l.Statement + time.Second
	if end, has := ctx.Deadline(); has {
		// The remaining time must suffice to read the primary.
		timeout = min(timeout, time.Until(end)/2)
	}
	if timeout <= 0 {
		return "not enough time remained to query the replica"
	}
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, dberr.ErrUnreachable)
	defer cancel()
	// A standby refuses a transaction that may write.
	l.ReadOnly = true
	var state replicaState
	statements := []stmt.Statement{{SQL: replicaStateSQL, Args: want.args()}, q.Statement}
	err := Send(bounded, r.Database, q.Operation, l, statements, func(results pgx.BatchResults) error {
		err := results.QueryRow().Scan(state.columns()...)
		if err == nil && state.problem() == "" && state.replayed {
			err = read(results)
		}
		return err
	})
	if err != nil {
		return r.markUnhealthy(ctx, reasonOf(err), err)
	}
	if problem := state.problem(); problem != "" {
		return r.markUnhealthy(ctx, problem, nil)
	}
	if !state.replayed {
		return r.markLagging()
	}
	r.markHealthy(ctx)
	return ""
}

// reasonOf returns the fault of a replica that answers with an error.
func reasonOf(err error) string {
	var refused *dberr.Error
	switch {
	case !errors.As(err, &refused) || refused.Class() == dberr.ClassUnreachable:
		return "the replica is unreachable"
	case refused.Class() == dberr.ClassTimeout || refused.Class() == dberr.ClassLock:
		return "the replica is too slow, or cancels queries that conflict with replay"
	}
	return "the replica refuses the query: " + refused.Condition()
}

// lateTries is the number of waits for the replica, each as long as a run would wait.
const lateTries = 20

// ReplicaLate reports whether, after lateTries, the replica has not replayed what was written
// before the call.
func ReplicaLate(ctx context.Context, d *Database) (late bool, err error) {
	now, err := logEnd(ctx, d)
	late = err == nil
	for i := 0; late && i < lateTries; i++ {
		late = d.Replica.catchUp(ctx, now) == lagging
	}
	return late, err
}
