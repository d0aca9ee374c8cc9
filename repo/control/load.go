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

// LoadProbe selects the measurements. Measurements that are not selected cost nothing.
type LoadProbe struct {
	Replicas, WAL, Locks bool
	// IgnoredReplicas are the application_names of standbys whose lag does not matter.
	IgnoredReplicas []string
}

// Load is the load of a primary. Values hidden from our role are zero: standbys require pg_monitor.
type Load struct {
	// Replica is the application_name of the slowest streaming standby, "" for none. Lag is the
	// minimum age of the log that it has not replayed.
	Replica string
	Lag     time.Duration
	// Hidden is the number of standbys hidden from our role.
	Hidden int
	// WALRate is the recent growth of the write-ahead log in bytes per second, 0 if unknown.
	WALRate int64
	// Queues are the tables with a lock queue.
	Queues []LockQueue
}

// LockQueue is the queue for a lock on a table.
type LockQueue struct {
	// Table has its schema. Root is the partitioned table that it belongs to, or Table itself.
	Table, Root string
	// Seconds is how long the first waiting transaction has waited.
	Seconds float64
}

// Of reports whether the queue is of this table, or of one of its partitions. A table without a
// schema matches any table of that name.
func (q LockQueue) Of(t catalog.Table) bool {
	name := t.Schema + "." + t.Name
	if t.Schema == "" && t.Name != "" {
		return strings.HasSuffix(q.Table, name) || strings.HasSuffix(q.Root, name)
	}
	return name == q.Table || name == q.Root
}

// loadSQL: the position is the flushed one, because standbys receive no more. A standby does not
// stream during a base backup or while it catches up. A subscriber of logical replication is no
// standby.
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

// lockQueuesSQL: to_jsonb, because waitstart is missing before PostgreSQL 14.
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

// Load probes a primary, in one round trip with at most half a second per statement. Callers cache
// the result. Lags and rates compare with previous calls, so frequent calls make them more exact.
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

// seconds converts an interval as statements return it: its text form depends on IntervalStyle.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// largeLag is the lag in bytes from which a replica's own figure counts: an idle primary has not
// just written that much.
const largeLag = 16 << 20
