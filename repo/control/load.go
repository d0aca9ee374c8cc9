package control

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// LoadProbe is what to measure. What is not asked for costs nothing.
type LoadProbe struct {
	Replicas, WAL, Locks bool
	// IgnoredReplicas are the application_names of standbys that may be as late as they like.
	IgnoredReplicas []string
}

// Load is how busy a primary is. What our role may not see is zero: standbys need pg_monitor.
type Load struct {
	// Replica is the application_name of the slowest standby that streams, "" if there is none; Lag
	// for how long, at least, it has not replayed something that was written.
	Replica string
	Lag     time.Duration
	// Hidden standbys are those that our role may not look at.
	Hidden int
	// WALRate is the bytes a second by which the write-ahead log has grown lately, 0 if it is unknown.
	WALRate int64
	// Queues are the tables with a lock queue.
	Queues []LockQueue
}

// LockQueue is the queue for a lock on a table.
type LockQueue struct {
	// Table, with its schema and, in Root, the partitioned table it belongs to, or itself.
	Table, Root string
	// Seconds is how long the first waiting transaction has waited.
	Seconds float64
}

// Of reports whether it is about this table, or one of its partitions. One without a schema is any
// of that name.
func (q LockQueue) Of(t catalog.Table) bool {
	name := t.Schema + "." + t.Name
	if t.Schema == "" && t.Name != "" {
		return strings.HasSuffix(q.Table, name) || strings.HasSuffix(q.Root, name)
	}
	return name == q.Table || name == q.Root
}

// loadSQL: the position is what has been flushed, as no standby gets to see more. A standby that
// has been asked for a base backup, or is being caught up, does not stream; a subscriber of logical
// replication is none.
const loadSQL = `
WITH log AS MATERIALIZED (
  SELECT CASE WHEN ($1 OR $2) AND NOT pg_is_in_recovery()
      THEN pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint ELSE 0 END AS written
),
standby AS MATERIALIZED (
  SELECT r.application_name, r.state, r.replay_lag,
    pg_wal_lsn_diff(r.replay_lsn, '0/0')::bigint AS replayed
  FROM pg_stat_replication r
  WHERE $1 AND r.application_name <> ALL ($3::text[])
    AND NOT EXISTS (
      SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
),
slowest AS (
  SELECT application_name, replayed, extract(epoch FROM replay_lag) AS lag
  FROM standby WHERE state = 'streaming' AND replayed IS NOT NULL ORDER BY replayed LIMIT 1
)
SELECT log.written, coalesce((SELECT application_name FROM slowest), ''),
  coalesce((SELECT replayed FROM slowest), log.written),
  coalesce((SELECT lag FROM slowest), 0)::float8,
  (SELECT count(*) FROM standby WHERE state IS NULL)
FROM log`

// lockQueuesSQL: to_jsonb, because waitstart is not there before PostgreSQL 14.
const lockQueuesSQL = `
SELECT n.nspname || '.' || c.relname,
  coalesce(rn.nspname || '.' || r.relname, n.nspname || '.' || c.relname),
  coalesce(extract(epoch FROM max(
    clock_timestamp() - (to_jsonb(l) ->> 'waitstart')::timestamptz)), 0)::float8
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE $1 AND NOT l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
GROUP BY 1, 2 ORDER BY 1 LIMIT 1000`

// loadLimits bound a probe.
func loadLimits() fencing.Limits {
	return fencing.Limits{Statement: 500 * time.Millisecond, Lock: 100 * time.Millisecond, ReadOnly: true}
}

// Load probes a primary, in one round trip of at most half a second a statement; callers cache it.
// Lags and rates are as exact as it is called often: they compare with the calls before.
func (d History) Load(ctx context.Context, q LoadProbe) (l Load, err error) {
	var written, replayed int64
	var said float64
	if q.IgnoredReplicas == nil {
		q.IgnoredReplicas = []string{}
	}
	statements := []stmt.Statement{
		{SQL: loadSQL, Args: []any{q.Replicas, q.WAL, q.IgnoredReplicas}}, {SQL: lockQueuesSQL, Args: []any{q.Locks}},
	}
	err = pg.Send(ctx, d.db, "probe the load", loadLimits(), statements, func(r pgx.BatchResults) error {
		if err := r.QueryRow().Scan(&written, &l.Replica, &replayed, &said, &l.Hidden); err != nil {
			return err
		}
		return pg.CollectInto(&l.Queues, pgx.RowToStructByPos[LockQueue])(r)
	})
	if err != nil {
		return Load{}, err
	}
	l.Lag, l.WALRate = d.db.LogMeter.Observe(written, replayed, time.Now())
	if written-replayed >= largeLag {
		l.Lag = max(l.Lag, seconds(said))
	}
	return l, nil
}

// seconds are an interval as statements return it: as text its form depends on IntervalStyle.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// largeLag is from where on a replica's own word counts: so much is no trifle that an idle primary
// has just written.
const largeLag = 16 << 20
