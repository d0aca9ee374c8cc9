package run

import (
	"fmt"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Excess is a limit that is exceeded.
type Excess struct {
	// measure and key name what is measured and the limit's configuration key; queue is the one
	// that it is about, nil for the whole database.
	measure, key string
	queue        *repo.LockQueue
	value, limit string
	// ratio of value to limit.
	ratio float64
	// began is when it was first seen.
	began time.Time
}

// Far reports whether the limit is exceeded so far that nothing is changed at all.
func (e *Excess) Far() bool { return e.ratio >= 4 }

// String is for the reason of a run and the detail of a condition.
func (e *Excess) String() string {
	if e.key == "" {
		return e.measure
	}
	return fmt.Sprintf("%s: %s, over load.%s = %s", e.measure, e.value, e.key, e.limit)
}

// excesses are the limits of a database that a probe shows to be exceeded.
func (c LoadConfig) excesses(name string, l repo.Load) (found []Excess) {
	add := func(e Excess, value, limit float64, text func(float64) string) {
		if limit > 0 && value > limit {
			e.value, e.limit, e.ratio = text(value), text(limit), value/limit
			found = append(found, e)
		}
	}
	add(Excess{measure: "replica " + l.Replica + " of " + name + " is late", key: "max_replica_lag"},
		l.Lag.Seconds(), c.MaxReplicaLag.Seconds(), asSeconds)
	add(Excess{measure: "write-ahead log of " + name + " a second", key: "max_wal_rate"},
		float64(l.WALRate), float64(c.MaxWALRate), asBytes)
	for i := range l.Queues {
		q := &l.Queues[i]
		measure := "somebody waits for a lock on " + q.Table + " of " + name
		add(Excess{measure: measure, key: "max_lock_wait", queue: q},
			q.Seconds, c.MaxLockWait.Seconds(), asSeconds)
	}
	return found
}

// since gives excesses their beginnings: those of before, if there was no gap in between.
func since(now, before []Excess, at time.Time, continuous bool) []Excess {
	for i := range now {
		now[i].began = at
		for _, old := range before {
			if continuous && old.measure == now[i].measure {
				now[i].began = old.began
			}
		}
	}
	return now
}

func asSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

func asBytes(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for ; n >= 1024 && i < len(units)-1; i++ {
		n /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + units[i]
}
