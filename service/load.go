package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// LoadConfig says from where on a database counts as loaded. A limit of 0 is off; the zero value never looks.
type LoadConfig struct {
	// MaxReplicaLag is how late a standby may be; IgnoredReplicas are the application_names of those that may be as late as
	// they like.
	MaxReplicaLag   time.Duration
	IgnoredReplicas []string
	// MaxWALRate is in bytes a second, over some seconds; MaxArchiveBacklog in bytes that wait to be archived.
	MaxWALRate, MaxArchiveBacklog int64
	// MaxLockWait is how long somebody may wait for a lock on the table at hand, MaxAutovacuum how long an autovacuum of it
	// may last.
	MaxLockWait, MaxAutovacuum time.Duration
	// Patience is how long a run goes on, slowed down, while a limit is exceeded; 0: 20 s.
	Patience time.Duration
}

func (c LoadConfig) validate() error {
	for key, negative := range map[string]bool{
		"max_replica_lag": c.MaxReplicaLag < 0, "max_wal_rate": c.MaxWALRate < 0, "max_wal_archive_backlog": c.MaxArchiveBacklog < 0,
		"max_lock_wait": c.MaxLockWait < 0, "max_autovacuum": c.MaxAutovacuum < 0, "patience": c.Patience < 0,
	} {
		if negative {
			return fmt.Errorf("load.%s: must not be negative; 0 is off", key)
		}
	}
	return nil
}

func (c LoadConfig) question() repo.LoadQuestion {
	return repo.LoadQuestion{
		Replicas: c.MaxReplicaLag > 0, WAL: c.MaxWALRate > 0, Archive: c.MaxArchiveBacklog > 0,
		Locks: c.MaxLockWait > 0, Autovacuum: c.MaxAutovacuum > 0, IgnoredReplicas: c.IgnoredReplicas,
	}
}

func (c LoadConfig) off() bool {
	q := c.question()
	return !q.Replicas && !q.WAL && !q.Archive && !q.Locks && !q.Autovacuum
}

const (
	// lookAge is how old a look may be that something is done by, lookTime how long one may take.
	lookAge, lookTime = time.Second, time.Second
	// lookLife is for how long a look counts if no newer one succeeds, and how long ago a limit must have been exceeded
	// before for that to be the same excess.
	lookLife = 10 * time.Second
)

// loads are what all runs and jobs of this process know of the load: one of them looks every second, a statement for
// each database, and the others go by what it has seen. A look that fails stops nobody.
type loads struct {
	config LoadConfig
	logger *slog.Logger

	mu        sync.Mutex
	databases map[*repo.Database]*databaseLoad
}

// databaseLoad is what is known of one database.
type databaseLoad struct {
	name string

	mu sync.Mutex
	// tried is when the newest look began, seen when the newest that succeeded ended.
	tried, seen time.Time
	// looking closes when the look ends that is under way; nil: none is.
	looking chan struct{}
	load    repo.Load
	rates   rates
	// excesses of the newest look, with when they began.
	excesses []excess
	// told: it has been logged that looks fail, or that our role may not see everything.
	told string
}

func newLoads(c LoadConfig, logger *slog.Logger) *loads {
	setDefault(&c.Patience, 20*time.Second)
	return &loads{config: c, logger: logger, databases: map[*repo.Database]*databaseLoad{}}
}

// worst is the limit that is exceeded most, as far as it concerns a table ("" for none): of the database, or of the table
// itself. nil: none is.
func (l *loads) worst(ctx context.Context, d *repo.Database, table repo.Table) (worst *excess) {
	if l.config.off() {
		return nil
	}
	b := l.of(d)
	l.look(ctx, d, b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.seen) > lookLife {
		return nil
	}
	for i := range b.excesses {
		e := b.excesses[i]
		if (e.table == nil || e.table.Of(table)) && (worst == nil || e.ratio > worst.ratio) {
			worst = &e
		}
	}
	return worst
}

func (l *loads) of(d *repo.Database) *databaseLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.databases[d] == nil {
		l.databases[d] = &databaseLoad{name: d.Name}
	}
	return l.databases[d]
}

// look looks at a database unless that was done a moment ago. While somebody else is at it nobody waits, except for what
// nothing is known of.
func (l *loads) look(ctx context.Context, d *repo.Database, b *databaseLoad) {
	b.mu.Lock()
	due, known, looking := b.looking == nil && time.Since(b.tried) >= lookAge, time.Since(b.seen) <= lookLife, b.looking
	if due {
		b.looking, b.tried = make(chan struct{}), time.Now()
	}
	b.mu.Unlock()
	if !due {
		if looking != nil && !known {
			<-looking
		}
		return
	}
	// A span a second would bury what the run's trace is for; what is seen is for others too, and our caller may be stopped.
	ctx = trace.ContextWithSpanContext(context.WithoutCancel(ctx), trace.SpanContextFromContext(ctx))
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, repo.ErrUnreachable)
	defer cancel()
	load, err := d.Load(ctx, l.config.question())
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.looking)
	b.looking = nil
	if err == nil {
		now := time.Now()
		b.load = load
		b.excesses = since(l.config.excesses(b, load, b.rates.observe(load.WAL, now)), b.excesses, now, now.Sub(b.seen) <= lookLife)
		b.seen = now
	}
	l.tell(ctx, b, load, err)
}

// tell says once what keeps us from seeing the load.
func (l *loads) tell(ctx context.Context, b *databaseLoad, load repo.Load, err error) {
	trouble := ""
	switch {
	case errors.Is(err, repo.ErrUnreachable):
		// Whoever needs the database says so.
		return
	case err != nil:
		trouble = "the load of the database cannot be seen, nothing is slowed down by it"
	case load.Hidden > 0:
		trouble = "the lag of the replicas cannot be seen: grant pg_monitor to the role of caretaker, or set load.max_replica_lag to 0"
	}
	if trouble != "" && trouble != b.told {
		l.logger.WarnContext(ctx, trouble, "database", b.name, "error", err)
	}
	b.told = trouble
}

// excess is a limit that is exceeded.
type excess struct {
	// measure and key name what is measured and the limit's configuration key; table is the one that it is about, nil for
	// the whole database.
	measure, key string
	table        *repo.TableLoad
	value, limit string
	// ratio of value to limit.
	ratio float64
	// began is when it was first seen, far when it was first seen to be far over the limit; zero: it is not.
	began, far time.Time
}

// String is for the reason of a run and the detail of a condition.
func (e *excess) String() string {
	return fmt.Sprintf("%s: %s, over load.%s = %s", e.measure, e.value, e.key, e.limit)
}

// excesses are the limits that a look shows to be exceeded.
func (c LoadConfig) excesses(b *databaseLoad, l repo.Load, rate int64) (found []excess) {
	add := func(measure, key string, table *repo.TableLoad, value, limit float64, text func(float64) string) {
		if limit > 0 && value > limit {
			found = append(found, excess{measure: measure, key: key, table: table, value: text(value), limit: text(limit), ratio: value / limit})
		}
	}
	add("replica "+l.Replica+" of "+b.name+" is late", "max_replica_lag", nil, l.Lag.Seconds(), c.MaxReplicaLag.Seconds(), asSeconds)
	add("write-ahead log of "+b.name+" a second", "max_wal_rate", nil, float64(rate), float64(c.MaxWALRate), asBytes)
	add("write-ahead log of "+b.name+" that waits to be archived", "max_wal_archive_backlog", nil, float64(l.Unarchived), float64(c.MaxArchiveBacklog), asBytes)
	for i := range l.Tables {
		t := &l.Tables[i]
		place := t.Table + " of " + b.name
		add("somebody waits for a lock on "+place, "max_lock_wait", t, t.Locked.Seconds(), c.MaxLockWait.Seconds(), asSeconds)
		add("autovacuum of "+place, "max_autovacuum", t, t.Vacuumed.Seconds(), c.MaxAutovacuum.Seconds(), asSeconds)
	}
	return found
}

// farOver is the ratio from which on nothing is changed at all.
const farOver = 4

// since gives excesses their beginnings, those that they had before if they go on.
func since(now, before []excess, at time.Time, goesOn bool) []excess {
	for i := range now {
		e := &now[i]
		e.began = at
		if e.ratio >= farOver {
			e.far = at
		}
		for _, old := range before {
			if !goesOn || old.measure != e.measure {
				continue
			}
			e.began = old.began
			if e.ratio >= farOver && !old.far.IsZero() {
				e.far = old.far
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

// A rate is over minRateTime at least, so that one statement of ours is no load, and maxRateTime at most.
const minRateTime, maxRateTime = 2 * time.Second, 10 * time.Second

// observe notes a position and returns the bytes a second up to it, 0 if nobody looked lately.
func (r *rates) observe(position int64, at time.Time) int64 {
	if n := len(r.marks); n > 0 && r.marks[n-1].position > position {
		// Another server has taken over, or this is a standby now.
		r.marks = nil
	}
	r.marks = append(r.marks, rateMark{position, at})
	for len(r.marks) > 0 && at.Sub(r.marks[0].at) > maxRateTime {
		r.marks = r.marks[1:]
	}
	for i := len(r.marks) - 1; i >= 0; i-- {
		if took := at.Sub(r.marks[i].at); took >= minRateTime {
			return int64(float64(position-r.marks[i].position) / took.Seconds())
		}
	}
	return 0
}
