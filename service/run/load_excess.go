package run

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Excess is a limit that is exceeded.
type Excess struct {
	// measure and key name what is measured and the limit's configuration key; table is the one
	// that it is about, nil for the whole database.
	measure, key string
	table        *repo.TableLoad
	value, limit string
	// ratio of value to limit.
	ratio float64
	// began is when it was first seen, Far when it was first seen to be far over the limit; zero:
	// it is not.
	began, Far time.Time
}

// String is for the reason of a run and the detail of a condition.
func (e *Excess) String() string {
	if e.key == "" {
		return e.measure
	}
	return fmt.Sprintf("%s: %s, over load.%s = %s", e.measure, e.value, e.key, e.limit)
}

// excesses are the limits that a probe shows to be exceeded.
func (c LoadConfig) excesses(b *databaseLoad, l repo.Load, rate int64) (found []Excess) {
	add := func(e Excess, value, limit float64, text func(float64) string) {
		if limit > 0 && value > limit {
			e.value, e.limit, e.ratio = text(value), text(limit), value/limit
			found = append(found, e)
		}
	}
	log := "write-ahead log of " + b.name
	add(Excess{measure: "replica " + l.Replica + " of " + b.name + " is late", key: "max_replica_lag"},
		l.Lag.Seconds(), c.MaxReplicaLag.Seconds(), asSeconds)
	add(Excess{measure: log + " a second", key: "max_wal_rate"},
		float64(rate), float64(c.MaxWALRate), asBytes)
	add(Excess{measure: log + " that waits to be archived", key: "max_wal_archive_backlog"},
		float64(l.Unarchived), float64(c.MaxArchiveBacklog), asBytes)
	for i := range l.Tables {
		t := &l.Tables[i]
		place := t.Table + " of " + b.name
		add(Excess{measure: "somebody waits for a lock on " + place, key: "max_lock_wait", table: t},
			t.Locked.Seconds(), c.MaxLockWait.Seconds(), asSeconds)
		add(Excess{measure: "autovacuum of " + place, key: "max_autovacuum", table: t},
			t.Vacuumed.Seconds(), c.MaxAutovacuum.Seconds(), asSeconds)
	}
	return found
}

// farOver is the ratio from which on nothing is changed at all.
const farOver = 4

// since gives excesses their beginnings: those of before, if there was no gap in between.
func since(now, before []Excess, at time.Time, continuous bool) []Excess {
	for i := range now {
		e := &now[i]
		e.began = at
		if e.ratio >= farOver {
			e.Far = at
		}
		for _, old := range before {
			if !continuous || old.measure != e.measure {
				continue
			}
			e.began = old.began
			if e.ratio >= farOver && !old.Far.IsZero() {
				e.Far = old.Far
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

// rates is where the write-ahead log stood in the last seconds.
type rates struct {
	marks []rateMark
}

type rateMark struct {
	position int64
	at       time.Time
}

// A rate is over minRateTime at least, so that one statement of ours is no load, and maxRateTime at
// most.
const minRateTime, maxRateTime = 2 * time.Second, 10 * time.Second

// observe notes a position and returns the bytes a second up to it, 0 if nobody probed lately.
func (r *rates) observe(position int64, at time.Time) int64 {
	if n := len(r.marks); n > 0 && r.marks[n-1].position > position {
		// Another server has taken over, or this is a standby now.
		r.marks = nil
	}
	r.marks = append(r.marks, rateMark{position, at})
	for len(r.marks) > 0 && at.Sub(r.marks[0].at) > maxRateTime {
		r.marks = r.marks[1:]
	}
	for _, mark := range slices.Backward(r.marks) {
		if took := at.Sub(mark.at); took >= minRateTime {
			return int64(float64(position-mark.position) / took.Seconds())
		}
	}
	return 0
}
