package repo

import (
	"context"
	"sync"
	"time"
)

// ReplicaLag is how far a replica is behind the primary.
type ReplicaLag struct {
	// Bytes of the write-ahead log that it has not replayed.
	Bytes int64
	// Time is for how long, at least, it has not replayed something that was written. It is as exact as it is asked for
	// often: what was written between two calls counts from the second.
	Time time.Duration
}

// largeLag is from where on a replica's own word counts: so much is no trifle that an idle primary has just written.
const largeLag = 16 << 20

const (
	// streamingSQL is where the slowest of the standbys stands that follow the primary. A role without pg_monitor sees none.
	streamingSQL = `
SELECT count(replay_lsn), pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, coalesce(pg_wal_lsn_diff(min(replay_lsn), '0/0'), 0)::bigint
FROM pg_stat_replication`

	replayedSQL = `
SELECT coalesce(pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0'), 0)::bigint,
  coalesce(greatest(clock_timestamp() - pg_last_xact_replay_timestamp(), interval '0'), interval '0')
WHERE pg_is_in_recovery()`
)

// ReplicaLag measures the configured replica or, where none is, the slowest of the standbys that the primary shows us.
// known is false if there are none. A configured replica that does not answer, or is none any more ([ErrNotFound]), is an
// error. It takes two small statements, with no configured replica one; callers cache it.
func (d *Database) ReplicaLag(ctx context.Context) (lag ReplicaLag, known bool, err error) {
	var standbys int
	var written, replayed int64
	var age time.Duration
	if err := d.queryRow(ctx, "look at the standbys", []any{&standbys, &written, &replayed}, streamingSQL); err != nil {
		return lag, false, err
	}
	if d.replica != nil {
		if err := d.replica.queryRow(ctx, "look at the replica", []any{&replayed, &age}, replayedSQL); err != nil {
			return lag, false, err
		}
	} else if standbys == 0 {
		return lag, false, nil
	}
	lag.Bytes = max(written-replayed, 0)
	lag.Time = d.lag.observe(written, replayed, time.Now())
	if lag.Bytes >= largeLag {
		lag.Time = max(lag.Time, age)
	}
	return lag, true, nil
}

// lagMeter remembers when the log stood where, and so knows for how long something has not been replayed. It needs no
// clock but ours, and nothing has to be written for it.
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

// observe notes where primary and replica stand, and returns the age of the oldest mark that is not replayed.
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
