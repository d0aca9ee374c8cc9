// Package load measures the load of databases for all runs and jobs of the process, and slows runs
// down accordingly.
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

// Config has the limits above which a database counts as overloaded. A limit of 0 is off. With the
// zero value nothing is probed.
type Config struct {
	// MaxReplicaLag is the maximum lag of a streaming standby, as the primary reports it. New
	// standbys that are still catching up, and subscribers of logical replication, do not count.
	MaxReplicaLag time.Duration `key:"max_replica_lag" default:"30s" max:"24h" off:"0"`
	// IgnoredReplicas are the comma-separated application_names of standbys to ignore, for example
	// delayed standbys (recovery_min_apply_delay).
	IgnoredReplicas []string `key:"ignored_replicas"`
	// MaxWALRate is the maximum amount of WAL that all clients together write per second, averaged over
	// the last 2 to 10 seconds.
	MaxWALRate int64 `key:"max_wal_rate" default:"0" max:"1024TB" off:"0" unit:"bytes"`
	// MaxLockWait is the maximum time that another session, such as a migration, waits for a lock on the
	// table or partition that a run changes.
	MaxLockWait time.Duration `key:"max_lock_wait" default:"5s" max:"24h" off:"0"`
	// Timeout is how long a run pauses or continues slowly, before it ends because of the load.
	Timeout time.Duration `key:"timeout" default:"20s" max:"24h"`
}

// question returns the parts of the load to read. A limit of 0 leaves its part out.
func (c Config) question() control.LoadProbe {
	return control.LoadProbe{
		Replicas: c.MaxReplicaLag > 0, WAL: c.MaxWALRate > 0, Locks: c.MaxLockWait > 0,
		IgnoredReplicas: c.IgnoredReplicas,
	}
}

// off reports whether no limit is set, so that no probe is needed.
func (c Config) off() bool {
	return c.MaxReplicaLag <= 0 && c.MaxWALRate <= 0 && c.MaxLockWait <= 0
}

const (
	// probeAge is the maximum age of a decisive probe, probeTimeout the timeout of a probe.
	probeAge, probeTimeout = time.Second, time.Second
	// probeLife is how long a probe counts if no newer one succeeds. A limit that is exceeded again
	// within that time is still the same excess.
	probeLife = 10 * time.Second
)

// Loads holds the known load for all runs and jobs of this process. One of them probes a database
// every second, in one round trip, and the others wait for its result. A failing probe stops no
// run. A probe that times out slows runs down, and the previous result still counts.
type Loads struct {
	config Config
	logger *slog.Logger

	// mu guards databases. It is not held during a probe.
	mu        sync.Mutex
	databases map[*repo.Database]*databaseLoad
}

// databaseLoad is the known load of one database.
type databaseLoad struct {
	name string

	// mu is held during a probe.
	mu sync.Mutex
	// probed is the end of the newest probe, seen the end of the newest successful one.
	probed, seen time.Time
	// slow: the newest probe timed out.
	slow bool
	// excesses are those of the newest probe, with their beginnings. load is the newest known load.
	excesses []Excess
	load     control.Load
	// warned is the last warning: probes fail, or caretaker's role cannot see everything.
	warned string
}

// New returns Loads without any probe.
func New(c Config, logger *slog.Logger) *Loads {
	return &Loads{config: c, logger: logger, databases: map[*repo.Database]*databaseLoad{}}
}

// Overloaded returns the limit that is exceeded most, of a database or of a table in it, or nil.
// The zero Table stands for no table.
func (l *Loads) Overloaded(ctx context.Context, d *repo.Database, table catalog.Table) *Excess {
	worst, _ := l.worst(ctx, d, func(e *Excess) bool { return e.queue == nil || e.queue.Of(table) })
	return worst
}

// StillExceeded returns the limit that ended a run with this reason if it is still exceeded, else
// nil.
func (l *Loads) StillExceeded(ctx context.Context, d *repo.Database, reason string) *Excess {
	ended := reasons.Read(reason)
	worst, _ := l.worst(ctx, d, func(e *Excess) bool {
		return ended.Code == fault.ReasonThrottled && strings.HasPrefix(ended.Detail, e.measure+": ")
	})
	return worst
}

// Ratio returns the excess of the worst limit, or 0. seen is false if the load is unknown because
// probes fail.
func (l *Loads) Ratio(ctx context.Context, d *repo.Database) (ratio float64, seen bool) {
	worst, seen := l.worst(ctx, d, func(e *Excess) bool { return e.queue == nil })
	if worst != nil {
		ratio = worst.ratio
	}
	return ratio, seen
}

// Measure is a measured value with its limit.
type Measure struct {
	// Name is what is measured, Key the key of its limit.
	Name, Key, Value, Limit string
	// Ratio is value by limit: above 1 the limit is exceeded.
	Ratio float64
}

// Measures returns the load of a database for each limit that is set. known is false if probes
// fail.
func (l *Loads) Measures(
	ctx context.Context, d *repo.Database,
) (measures []Measure, known bool) {
	if _, known = l.worst(ctx, d, func(*Excess) bool { return false }); !known || l.config.off() {
		return nil, known
	}
	b := l.of(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	add := func(name, key string, value, limit float64, text func(float64) string) {
		if limit > 0 {
			m := Measure{name, "load." + key, text(value), text(limit), value / limit}
			measures = append(measures, m)
		}
	}
	c, wait := l.config, 0.0
	for _, q := range b.load.Queues {
		wait = max(wait, q.Seconds)
	}
	add("replica lag", "max_replica_lag", b.load.Lag.Seconds(), c.MaxReplicaLag.Seconds(), asSeconds)
	add("WAL rate", "max_wal_rate",
		float64(b.load.WALRate), float64(c.MaxWALRate), asBytes)
	add("longest lock wait", "max_lock_wait", wait, c.MaxLockWait.Seconds(), asSeconds)
	return measures, true
}

// worst returns the limit that is exceeded most among those that count, by a recent probe. seen is
// false if the load is unknown.
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
		// It starts now: it slows runs down and ends none.
		busy := b.name + " is too busy to report its load"
		found = append(found, Excess{measure: busy, ratio: 1, began: time.Now()})
	}
	for _, e := range found {
		if counts(&e) && (worst == nil || e.ratio > worst.ratio) {
			worst = &e
		}
	}
	return worst, true
}

// of returns the known load of a database. It creates the entry at the first call, and holds l.mu
// only for that.
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
	// A span per second would bury the useful spans of the trace. Others share the result, and the
	// caller may be stopped.
	ctx = trace.ContextWithSpanContext(context.WithoutCancel(ctx), trace.SpanContextFromContext(ctx))
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, dberr.ErrUnreachable)
	defer cancel()
	load, err := d.History.Load(ctx, l.config.question())
	now := time.Now()
	b.probed = now
	if err == nil {
		found := l.config.excesses(b.name, load)
		b.excesses = since(found, b.excesses, now, b.slow || now.Sub(b.seen) <= probeLife)
		b.seen, b.slow, b.load = now, false, load
	} else {
		refused, ok := errors.AsType[*dberr.Error](err)
		b.slow = ctx.Err() != nil || ok && refused.Class() == dberr.ClassTimeout
	}
	l.warn(ctx, b, load, err)
}

// warn logs once why the load cannot be read.
func (l *Loads) warn(ctx context.Context, b *databaseLoad, load control.Load, err error) {
	problem := ""
	switch {
	case errors.Is(err, dberr.ErrUnreachable):
		// The caller that needs the database reports this itself.
		return
	case err != nil:
		problem = err.Error()
	case load.Hidden > 0:
		problem = "grant pg_monitor to the role of caretaker, or set load.max_replica_lag to 0"
	}
	if problem != "" && problem != b.warned {
		l.logger.WarnContext(ctx, "load partly unavailable, affected limits disabled",
			"database", b.name, "why", problem)
	}
	b.warned = problem
}

// Excess is a limit that is exceeded.
type Excess struct {
	// measure and key name what is measured and the limit's configuration key. queue is the queue
	// concerned. nil means the whole database.
	measure, key string
	queue        *control.LockQueue
	value, limit string
	// ratio is value by limit.
	ratio float64
	// began is when the excess was first seen.
	began time.Time
}

// severeRatio is the ratio of value to limit from which runs write nothing.
const severeRatio = 4

// Severe reports whether the excess is so large that runs write nothing.
func (e *Excess) Severe() bool { return e.ratio >= severeRatio }

// String returns a text for the reason of a run and the detail of a condition.
func (e *Excess) String() string {
	if e.key == "" {
		return e.measure
	}
	return fmt.Sprintf("%s: %s, over load.%s = %s", e.measure, e.value, e.key, e.limit)
}

// excesses returns the limits of a database that a probe shows as exceeded.
func (c Config) excesses(name string, l control.Load) (found []Excess) {
	add := func(e Excess, value, limit float64, text func(float64) string) {
		if limit > 0 && value > limit {
			e.value, e.limit, e.ratio = text(value), text(limit), value/limit
			found = append(found, e)
		}
	}
	add(Excess{measure: "lag of replica " + l.Replica + " of " + name, key: "max_replica_lag"},
		l.Lag.Seconds(), c.MaxReplicaLag.Seconds(), asSeconds)
	add(Excess{measure: "WAL rate of " + name, key: "max_wal_rate"},
		float64(l.WALRate), float64(c.MaxWALRate), asBytes)
	for i := range l.Queues {
		q := &l.Queues[i]
		measure := "lock wait on " + q.Table + " in " + name
		add(Excess{measure: measure, key: "max_lock_wait", queue: q},
			q.Seconds, c.MaxLockWait.Seconds(), asSeconds)
	}
	return found
}

// since sets the beginnings of excesses: the previous ones, if there was no gap.
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
	return min(time.Since(e.began), time.Since(started)) >= l.config.Timeout
}

// Off reports whether no limit is set.
func (l *Loads) Off() bool { return l.config.off() }

// asSeconds formats a duration in seconds for messages.
func asSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// asBytes formats a size with one decimal, in steps of 1024 from B to TB: "1.5MB".
func asBytes(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for ; n >= 1024 && i < len(units)-1; i++ {
		n /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + units[i]
}
