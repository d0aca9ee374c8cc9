package repo

import (
	"context"
	"strings"
	"sync"
	"time"
)

// LoadProbe is what to measure. What is not asked for costs nothing.
type LoadProbe struct {
	Replicas, WAL, Archive, Locks, Autovacuum bool
	// IgnoredReplicas are the application_names of standbys that may be as late as they like.
	IgnoredReplicas []string
}

// Load is how busy a primary is. What our role may not see is zero: all of it needs pg_monitor,
// except the write-ahead log, its archive and locks.
type Load struct {
	// Replica is the application_name of the slowest standby that streams, "" if there is none; Lag
	// for how long, at least, it has not replayed something that was written.
	Replica string
	Lag     time.Duration
	// Hidden standbys are those that our role may not look at.
	Hidden int
	// WAL is the position of the write-ahead log in bytes, 0 on a standby; Unarchived is how much
	// of it, in whole segments, waits to be archived.
	WAL, Unarchived int64
	// Tables with a lock queue, or under an autovacuum.
	Tables []TableLoad
}

// TableLoad is what is going on at a table.
type TableLoad struct {
	// Table, with its schema and, in Root, the partitioned table it belongs to, or itself.
	Table, Root string
	// Locked is for how long somebody has waited for a lock on it, Vacuumed for how long an
	// autovacuum has been at work.
	Locked, Vacuumed time.Duration
}

// Of says whether it is about this table, or one of its partitions. One without a schema is any of
// that name.
func (l TableLoad) Of(t Table) bool {
	name := t.Schema + "." + t.Name
	if t.Schema == "" && t.Name != "" {
		return strings.HasSuffix(l.Table, name) || strings.HasSuffix(l.Root, name)
	}
	return name == l.Table || name == l.Root
}

// loadSQL: the position is what has been flushed, as no standby gets to see more. A standby that
// has been asked for a base backup, or is being caught up, does not stream; a subscriber of logical
// replication is none. The archiver takes the oldest segment first: behind the one it archived
// last, or from the one that it has failed with since, everything waits, except the segment that is
// being written. The history of a backup bears the name of the segment in which the backup began:
// behind it nothing need wait. to_jsonb, because waitstart is not there before PostgreSQL 14.
const loadSQL = `
WITH log AS MATERIALIZED (
  SELECT CASE WHEN ($1 OR $2 OR $3) AND NOT pg_is_in_recovery()
      THEN pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint ELSE 0 END AS written,
    pg_size_bytes(current_setting('wal_segment_size')) AS size
),
standby AS MATERIALIZED (
  SELECT r.application_name, r.state, pg_wal_lsn_diff(r.replay_lsn, '0/0')::bigint AS replayed, r.replay_lag
  FROM pg_stat_replication r
  WHERE $1 AND r.application_name <> ALL ($6::text[])
    AND NOT EXISTS (
      SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
),
slowest AS (
  SELECT application_name, replayed, extract(epoch FROM replay_lag) AS lag
  FROM standby WHERE state = 'streaming' AND replayed IS NOT NULL ORDER BY replayed LIMIT 1
),
archiver AS (
  SELECT a.last_failed_time > coalesce(a.last_archived_time, '-infinity') AS failing,
    CASE WHEN a.last_failed_time > coalesce(a.last_archived_time, '-infinity')
      THEN a.last_failed_wal ELSE a.last_archived_wal END AS name
  FROM pg_stat_archiver a WHERE $3 AND current_setting('archive_mode') <> 'off'
),
unarchived AS (
  SELECT greatest(0, log.written / log.size
    - (('x' || substr(name, 9, 8))::bit(32)::bigint * (4294967296 / log.size)
      + ('x' || substr(name, 17, 8))::bit(32)::bigint
      + CASE WHEN failing THEN 0 ELSE 1 END)) * log.size AS bytes
  FROM archiver, log WHERE name ~ CASE WHEN failing THEN '^[0-9A-F]{24}' ELSE '^[0-9A-F]{24}$' END
),
busy AS (
  SELECT l.relation, NULL::interval AS vacuumed,
    max(clock_timestamp() - (to_jsonb(l) ->> 'waitstart')::timestamptz) AS locked
  FROM pg_locks l
  WHERE $4 AND NOT l.granted AND l.relation IS NOT NULL
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  GROUP BY l.relation
  UNION ALL
  SELECT p.relid, clock_timestamp() - a.xact_start, NULL
  FROM pg_stat_progress_vacuum p JOIN pg_stat_activity a ON a.pid = p.pid
  WHERE $5 AND p.datname = current_database() AND a.backend_type = 'autovacuum worker'
),
tables AS (
  SELECT n.nspname || '.' || c.relname AS name,
    coalesce(rn.nspname || '.' || r.relname, n.nspname || '.' || c.relname) AS root,
    coalesce(extract(epoch FROM max(b.locked)), 0)::float8 AS locked,
    coalesce(extract(epoch FROM max(b.vacuumed)), 0)::float8 AS vacuumed
  FROM busy b
  JOIN pg_class c ON c.oid = b.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
  LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
  GROUP BY 1, 2 ORDER BY 1 LIMIT 1000
)
SELECT log.written, coalesce((SELECT bytes FROM unarchived), 0),
  coalesce((SELECT application_name FROM slowest), ''),
  coalesce((SELECT replayed FROM slowest), log.written),
  coalesce((SELECT lag FROM slowest), 0)::float8,
  (SELECT count(*) FROM standby WHERE state IS NULL),
  ARRAY(SELECT name FROM tables ORDER BY name), ARRAY(SELECT root FROM tables ORDER BY name),
  ARRAY(SELECT locked FROM tables ORDER BY name), ARRAY(SELECT vacuumed FROM tables ORDER BY name)
FROM log`

// loadLimits bound a probe.
func loadLimits() Limits {
	return Limits{Statement: 500 * time.Millisecond, Lock: 100 * time.Millisecond, ReadOnly: true}
}

// Load probes a primary, in one statement of at most half a second; callers cache it. Lags are as
// exact as it is called often: what was written between two calls counts from the second.
func (d *Database) Load(ctx context.Context, q LoadProbe) (l Load, err error) {
	var replayed int64
	var said float64
	var names, roots []string
	var locked, vacuumed []float64
	if q.IgnoredReplicas == nil {
		q.IgnoredReplicas = []string{}
	}
	ask := newQuery("probe the load", loadSQL,
		q.Replicas, q.WAL, q.Archive, q.Locks, q.Autovacuum, q.IgnoredReplicas)
	err = d.readRow(ctx, loadLimits(), ask, &l.WAL, &l.Unarchived, &l.Replica, &replayed, &said,
		&l.Hidden, &names, &roots, &locked, &vacuumed)
	if err != nil {
		return Load{}, err
	}
	for i, name := range names {
		l.Tables = append(l.Tables, TableLoad{
			Table: name, Root: roots[i],
			Locked: seconds(locked[i]), Vacuumed: seconds(vacuumed[i]),
		})
	}
	l.Lag = d.loadLag.observe(l.WAL, replayed, time.Now())
	if l.WAL-replayed >= largeLag {
		l.Lag = max(l.Lag, seconds(said))
	}
	return l, nil
}

// seconds are an interval as statements return it: as text its form depends on IntervalStyle.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// largeLag is from where on a replica's own word counts: so much is no trifle that an idle primary
// has just written.
const largeLag = 16 << 20

// lagMeter remembers when the log stood where, and so knows for how long something has not been
// replayed. It needs no clock but ours, and nothing has to be written for it.
type lagMeter struct {
	mu    sync.Mutex
	marks []lagMark
}

type lagMark struct {
	lsn int64
	at  time.Time
}

// maxLagMarks bounds what a meter remembers; beyond it only every other mark stays.
const maxLagMarks = 256

// observe notes where primary and replica stand, and returns the age of the oldest mark that is not
// replayed.
func (m *lagMeter) observe(written, replayed int64, at time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.marks) > 0 && m.marks[0].lsn <= replayed {
		m.marks = m.marks[1:]
	}
	if n := len(m.marks); written > replayed && (n == 0 || m.marks[n-1].lsn < written) {
		m.marks = append(m.marks, lagMark{written, at})
	}
	if n := len(m.marks); n > maxLagMarks {
		kept := make([]lagMark, 0, n)
		for i := 0; i < n; i += 2 {
			kept = append(kept, m.marks[i])
		}
		m.marks = kept
	}
	if len(m.marks) == 0 {
		return 0
	}
	return at.Sub(m.marks[0].at)
}
