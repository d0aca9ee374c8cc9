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

// replica is the read replica of a database: its connections, and what is known of its state.
type replica struct {
	*Database
	// view returns the same under the name of the database.
	view   func() *Database
	logger *slog.Logger

	mu sync.Mutex
	// avoidedUntil is until when it is not asked; trouble is why, in words that are said once, "" if
	// nothing is wrong with it.
	avoidedUntil time.Time
	why          string
	trouble      string
}

const (
	// replicaConns are few: only reads of candidates and backlogs go there.
	replicaConns = 4
	// replicaPatience is how long a connection to it may take. The primary can be read instead.
	replicaPatience = 2 * time.Second
	// unhealthyTime is for how long a replica in trouble is left alone, behindTime one that is behind.
	unhealthyTime = 10 * time.Second
	behindTime    = time.Second
)

// UseReplica lets reads that only find candidates, or feed a backlog figure, go to a read replica
// of the database. It must be called before the database is used; it does not connect. Where the
// replica cannot be read the primary is, and the logger hears of each change. The error names what
// is wrong with the URL and never contains a password.
func (d *Database) UseReplica(ctx context.Context, url string, logger *slog.Logger) error {
	from := source{"databases." + d.Name + ".replica_url", url, replicaConns, replicaPatience}
	opened, err := open(ctx, d.Name+dberr.ReplicaSuffix, from)
	if err != nil {
		return err
	}
	d.Replica = &replica{Database: opened, logger: logger.With("database", d.Name)}
	// It answers to the name of the database: what is read for a plan is where the database has it.
	d.Replica.view = sync.OnceValue(func() *Database {
		return &Database{
			Name: d.Name, pool: opened.pool, prepares: opened.prepares, patience: opened.patience,
			Sessions: opened.Sessions, spans: opened.spans, attributes: opened.attributes,
			JobCascades: d.JobCascades,
		}
	})
	return nil
}

// ReadCopy is the replica, if it may be read and has replayed what the database has written until
// now, else the database itself. All reads of what it returns go there; it must not be closed.
func (d *Database) ReadCopy(ctx context.Context) *Database {
	if d.Replica == nil || d.Replica.unavailable() != "" {
		return d
	}
	now, err := logEnd(ctx, d)
	if err != nil || d.Replica.CatchUp(ctx, now) != "" {
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
// it replayed $3? A standby's timeline is known from the log that it receives, where we may see
// that, else as of the pages it has written.
const replicaStateSQL = `
SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()) = $1::bigint,
  greatest((SELECT timeline_id FROM pg_control_checkpoint()), (SELECT min_recovery_end_timeline FROM pg_control_recovery()),
    (SELECT received_tli FROM pg_stat_wal_receiver LIMIT 1)) = $2::integer,
  coalesce(pg_last_wal_replay_lsn() >= $3::text::pg_lsn, false)`

// replicaState is a row of replicaStateSQL.
type replicaState struct{ standby, same, timeline, replayed bool }

func (p position) args() []any { return []any{p.system, p.timeline, p.lsn} }

func (s *replicaState) columns() []any { return []any{&s.standby, &s.same, &s.timeline, &s.replayed} }

// trouble says what is wrong with a server as a replica, "" if nothing is. To be behind is no
// trouble.
func (s *replicaState) trouble() string {
	switch {
	case !s.same:
		return "it belongs to another cluster than the primary"
	case !s.standby:
		return "it is no standby, it has been promoted or never was one"
	case !s.timeline:
		return "it follows another timeline than the primary"
	}
	return ""
}

// behind is why a replica in order cannot be read yet.
const behind = "it has not replayed the last write yet"

const logEndSQL = `
SELECT (SELECT system_identifier FROM pg_control_system()),
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
  pg_current_wal_insert_lsn()::text`

// logEnd is where the log of the primary ends now.
func logEnd(ctx context.Context, d *Database) (p position, err error) {
	err = QueryRow(ctx, d, "read the position of the log",
		[]any{&p.system, &p.timeline, &p.lsn}, logEndSQL)
	return p, err
}

// CheckReplica says what is wrong with the database's replica now, if there is one. To be
// behind is not wrong.
func (d *Database) CheckReplica(ctx context.Context) error {
	if d.Replica == nil {
		return nil
	}
	now, err := logEnd(ctx, d)
	if err != nil {
		return err
	}
	var state replicaState
	err = QueryRow(ctx, d.Replica.Database, "look at the replica", state.columns(), replicaStateSQL, now.args()...)
	if trouble := state.trouble(); err == nil && trouble != "" {
		return fmt.Errorf("databases.%s.replica_url: %s", d.Name, trouble)
	}
	return err
}

// unavailable says why the replica is to be left alone for now, "" if it may be asked.
func (r *replica) unavailable() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.avoidedUntil) {
		return r.why
	}
	return ""
}

// markUnhealthy leaves the replica alone for a while because of some trouble with it, which it
// returns. It is logged when that is news.
func (r *replica) markUnhealthy(ctx context.Context, trouble string, err error) string {
	if ctx.Err() != nil {
		// The caller has lost patience, which says nothing about the replica.
		return trouble
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.avoidedUntil, r.why = time.Now().Add(unhealthyTime), trouble
	if r.trouble != trouble {
		r.trouble = trouble
		r.logger.WarnContext(ctx, "replica not read, the primary is", "reason", trouble, "error", err)
	}
	return trouble
}

// markLagging leaves the replica alone for a moment because it is behind, which is no news.
func (r *replica) markLagging() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.avoidedUntil, r.why = time.Now().Add(behindTime), behind
	return behind
}

// markHealthy says that the replica has been read.
func (r *replica) markHealthy(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trouble != "" {
		r.trouble = ""
		r.logger.InfoContext(ctx, "replica is read again")
	}
}

// query runs one query on the replica, in one round trip with the question whether it may be read. It
// returns why the query's rows were not read, so that the primary has to be, or "". Whatever goes
// wrong with a replica is no error.
func (r *replica) query(
	ctx context.Context, l fencing.Limits, q Query, want position, read func(pgx.BatchResults) error,
) (why string) {
	patience := l.Statement + time.Second
	if end, has := ctx.Deadline(); has {
		// The primary may have to be read in what is left.
		patience = min(patience, time.Until(end)/2)
	}
	if patience <= 0 {
		return "there was no time left for it"
	}
	bounded, cancel := context.WithTimeoutCause(ctx, patience, dberr.ErrUnreachable)
	defer cancel()
	// A standby refuses a transaction that may write.
	l.ReadOnly = true
	var state replicaState
	statements := []stmt.Statement{{SQL: replicaStateSQL, Args: want.args()}, q.Statement}
	err := Send(bounded, r.Database, q.Operation, l, statements, func(results pgx.BatchResults) error {
		err := results.QueryRow().Scan(state.columns()...)
		if err == nil && state.trouble() == "" && state.replayed {
			err = read(results)
		}
		return err
	})
	if err != nil {
		return r.markUnhealthy(ctx, reasonOf(err), err)
	}
	if trouble := state.trouble(); trouble != "" {
		return r.markUnhealthy(ctx, trouble, nil)
	}
	if !state.replayed {
		return r.markLagging()
	}
	r.markHealthy(ctx)
	return ""
}

// reasonOf is what is wrong with a replica that answers with an error.
func reasonOf(err error) string {
	var refused *dberr.Error
	switch {
	case !errors.As(err, &refused) || refused.Class() == dberr.ClassUnreachable:
		return "it cannot be reached"
	case refused.Class() == dberr.ClassTimeout || refused.Class() == dberr.ClassLock:
		return "it is too slow, or cancels the query because of what it replays"
	}
	return "it refuses the query: " + refused.Condition()
}

// lateTries is how often it is waited for, each time for as long as a run would.
const lateTries = 20

// ReplicaLate reports whether the replica has not replayed what was written before the call, after lateTries.
func ReplicaLate(ctx context.Context, d *Database) (late bool, err error) {
	now, err := logEnd(ctx, d)
	late = err == nil
	for i := 0; late && i < lateTries; i++ {
		late = d.Replica.CatchUp(ctx, now) == behind
	}
	return late, err
}
