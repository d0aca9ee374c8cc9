// Package load measures the load of databases, for all runs and jobs of the process, and slows runs
// down by it.
package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Config says from when on a database counts as overloaded. A limit of 0 is off; with the zero
// value nothing is probed.
type Config struct {
	// MaxReplicaLag is how far a standby that streams may be behind, as the primary sees it. Those being made or catching
	// up, and subscribers of logical replication, do not count.
	MaxReplicaLag time.Duration `key:"max_replica_lag" default:"30s" max:"24h" off:"0"`
	// IgnoredReplicas are the application_names, with commas between them, of standbys that may be as late as they like: set
	// it for one with recovery_min_apply_delay.
	IgnoredReplicas []string `key:"ignored_replicas"`
	// MaxWALRate is how much the write-ahead log may grow in a second, whoever writes it, over the last 2 to 10 seconds.
	MaxWALRate int64 `key:"max_wal_rate" default:"0" max:"1024TB" off:"0" unit:"bytes"`
	// MaxLockWait is how long somebody may wait for a lock on the table at hand, or its partition: a migration, say, behind
	// which everybody else queues.
	MaxLockWait time.Duration `key:"max_lock_wait" default:"5s" max:"24h" off:"0"`
	// Patience is for how long a run goes on, slowed down, while a limit is exceeded.
	Patience time.Duration `key:"patience" default:"20s" max:"24h"`
}

func (c Config) question() control.LoadProbe {
	return control.LoadProbe{
		Replicas: c.MaxReplicaLag > 0, WAL: c.MaxWALRate > 0, Locks: c.MaxLockWait > 0,
		IgnoredReplicas: c.IgnoredReplicas,
	}
}

func (c Config) off() bool {
	return c.MaxReplicaLag <= 0 && c.MaxWALRate <= 0 && c.MaxLockWait <= 0
}

const (
	// probeAge is how old a probe may be that decides something, probeTimeout how long one may take.
	probeAge, probeTimeout = time.Second, time.Second
	// probeLife is for how long a probe counts if no newer one succeeds. A limit that is exceeded
	// again within that time is still the same excess.
	probeLife = 10 * time.Second
)

// Loads are what all runs and jobs of this process know of the load. One of them probes a database
// every second, in one round trip, and the others wait for its result. A probe that fails stops
// nobody. One that times out slows runs down, and the result before it still counts.
type Loads struct {
	config Config
	logger *slog.Logger

	mu        sync.Mutex
	databases map[*repo.Database]*databaseLoad
}

// databaseLoad is what is known of one database.
type databaseLoad struct {
	name string

	// mu is held during a probe.
	mu sync.Mutex
	// probed is when the newest probe ended, seen when the newest that succeeded did.
	probed, seen time.Time
	// slow: the newest probe timed out.
	slow bool
	// excesses found by the newest probe, with when they began.
	excesses []Excess
	// warned is the last warning: that probes fail, or that our role may not see everything.
	warned string
}

// New has probed nothing yet.
func New(c Config, logger *slog.Logger) *Loads {
	return &Loads{config: c, logger: logger, databases: map[*repo.Database]*databaseLoad{}}
}

// Overloaded is the limit that is exceeded most, of a database or of a table in it; the zero Table
// stands for none. nil: no limit is exceeded.
func (l *Loads) Overloaded(ctx context.Context, d *repo.Database, table catalog.Table) *Excess {
	worst, _ := l.worst(ctx, d, func(e *Excess) bool { return e.queue == nil || e.queue.Of(table) })
	return worst
}

// StillExceeded is the limit that has ended a run with this reason, if it is exceeded still; nil: it is
// not.
func (l *Loads) StillExceeded(ctx context.Context, d *repo.Database, reason string) *Excess {
	ended := reasons.ReadReason(reason)
	worst, _ := l.worst(ctx, d, func(e *Excess) bool {
		return ended.Code == fault.ReasonThrottled && strings.HasPrefix(ended.Detail, e.measure+": ")
	})
	return worst
}

// Ratio is by how much the worst limit is exceeded, 0: none is; not seen: nobody knows, because
// probes fail.
func (l *Loads) Ratio(ctx context.Context, d *repo.Database) (ratio float64, seen bool) {
	worst, seen := l.worst(ctx, d, func(e *Excess) bool { return e.queue == nil })
	if worst != nil {
		ratio = worst.ratio
	}
	return ratio, seen
}

// worst is the limit that is exceeded most among those that count, by a probe of a moment ago. Not
// seen: nobody knows.
func (l *Loads) worst(ctx context.Context, d *repo.Database, counts func(*Excess) bool) (worst *Excess, seen bool) {
	if l.config.off() {
		return nil, true
	}
	b := l.of(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.probed) >= probeAge {
		l.probe(ctx, d, b)
	}
	if !b.slow && time.Since(b.seen) > probeLife {
		return nil, false
	}
	found := slices.Clone(b.excesses)
	if b.slow {
		// Begun just now: it slows down and ends nothing.
		busy := b.name + " is too busy for its load to be read"
		found = append(found, Excess{measure: busy, ratio: 1, began: time.Now()})
	}
	for _, e := range found {
		if counts(&e) && (worst == nil || e.ratio > worst.ratio) {
			worst = &e
		}
	}
	return worst, true
}

func (l *Loads) of(d *repo.Database) *databaseLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.databases[d] == nil {
		l.databases[d] = &databaseLoad{name: d.Name}
	}
	return l.databases[d]
}

// probe reads the load of a database. b.mu is held.
func (l *Loads) probe(ctx context.Context, d *repo.Database, b *databaseLoad) {
	// A span a second would bury what the run's trace is for; what is seen is for others too, and
	// our caller may be stopped.
	ctx = trace.ContextWithSpanContext(context.WithoutCancel(ctx), trace.SpanContextFromContext(ctx))
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, dberr.ErrUnreachable)
	defer cancel()
	load, err := d.History.Load(ctx, l.config.question())
	now := time.Now()
	b.probed = now
	if err == nil {
		found := l.config.excesses(b.name, load)
		b.excesses = since(found, b.excesses, now, b.slow || now.Sub(b.seen) <= probeLife)
		b.seen, b.slow = now, false
	} else {
		refused, ok := errors.AsType[*dberr.Error](err)
		b.slow = ctx.Err() != nil || ok && refused.Class() == dberr.ClassTimeout
	}
	l.warn(ctx, b, load, err)
}

// warn logs once what keeps us from seeing the load.
func (l *Loads) warn(ctx context.Context, b *databaseLoad, load control.Load, err error) {
	problem := ""
	switch {
	case errors.Is(err, dberr.ErrUnreachable):
		// Whoever needs the database says so.
		return
	case err != nil:
		problem = err.Error()
	case load.Hidden > 0:
		problem = "grant pg_monitor to the role of caretaker, or set load.max_replica_lag to 0"
	}
	if problem != "" && problem != b.warned {
		l.logger.WarnContext(ctx, "load only partly visible, limits that cannot be measured are ignored",
			"database", b.name, "why", problem)
	}
	b.warned = problem
}

// Excess is a limit that is exceeded.
type Excess struct {
	// measure and key name what is measured and the limit's configuration key; queue is the one
	// that it is about, nil for the whole database.
	measure, key string
	queue        *control.LockQueue
	value, limit string
	// ratio of value to limit.
	ratio float64
	// began is when it was first seen.
	began time.Time
}

// Severe reports whether the limit is exceeded so far that nothing is changed at all.
func (e *Excess) Severe() bool { return e.ratio >= 4 }

// String is for the reason of a run and the detail of a condition.
func (e *Excess) String() string {
	if e.key == "" {
		return e.measure
	}
	return fmt.Sprintf("%s: %s, over load.%s = %s", e.measure, e.value, e.key, e.limit)
}

// excesses are the limits of a database that a probe shows to be exceeded.
func (c Config) excesses(name string, l control.Load) (found []Excess) {
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

// TimedOut reports whether an excess has lasted too long for a run that started then.
func (l *Loads) TimedOut(e *Excess, started time.Time) bool {
	return min(time.Since(e.began), time.Since(started)) >= l.config.Patience
}

// Off reports whether no limit is set.
func (l *Loads) Off() bool { return l.config.off() }

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
