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
	// tooSlow is how many looks in a row a database must be too slow for, for that to count as an excess of its own.
	tooSlow = 3
)

// loads are what all runs and jobs of this process know of the load: one of them looks every second, a statement for
// each database, and the others go by what it has seen. A look that fails stops nobody; one that takes too long lets what was seen before count
// on, and a few of them slow down.
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
	rates   rates
	// slow counts the looks in a row, up to the newest, that the database was too slow for.
	slow int
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
	found, busy := l.exceeded(ctx, d)
	if busy {
		// Begun just now: it slows down and ends nothing.
		worst = &excess{measure: d.Name + " is too busy for its load to be looked at", ratio: 1, began: time.Now()}
	}
	for _, e := range found {
		if (e.table == nil || e.table.Of(table)) && (worst == nil || e.ratio > worst.ratio) {
			worst = &e
		}
	}
	return worst
}

// ratio is by how much the worst limit is exceeded, 0: none is; not seen: nobody knows, because looks at the database fail.
func (l *loads) ratio(ctx context.Context, d *repo.Database) (ratio float64, seen bool) {
	if l.config.off() {
		return 0, true
	}
	worst := l.worst(ctx, d, repo.Table{})
	b := l.of(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	if worst != nil {
		ratio = worst.ratio
	}
	return ratio, worst != nil || b.known()
}

// known says whether a look counts that has been made. b.mu is held.
func (b *databaseLoad) known() bool { return b.slow > 0 || time.Since(b.seen) <= lookLife }

// lasting is the limit that has ended a run with this reason, if it is exceeded still; nil: it is not.
func (l *loads) lasting(ctx context.Context, d *repo.Database, reason string) *excess {
	found, _ := l.exceeded(ctx, d)
	for _, e := range found {
		if strings.HasPrefix(reason, reasonThrottled+": "+e.measure+": ") {
			return &e
		}
	}
	return nil
}

// exceeded are the limits of a database that are exceeded by the newest look, for the caller to read only, and whether
// it is too busy for looks.
func (l *loads) exceeded(ctx context.Context, d *repo.Database) (found []excess, busy bool) {
	if l.config.off() {
		return nil, false
	}
	b := l.of(d)
	l.look(ctx, d, b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known() {
		return nil, false
	}
	return b.excesses, b.slow >= tooSlow
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
			select {
			case <-looking:
			case <-ctx.Done():
			}
		}
		return
	}
	// A span a second would bury what the run's trace is for; what is seen is for others too, and our caller may be stopped.
	ctx = trace.ContextWithSpanContext(context.WithoutCancel(ctx), trace.SpanContextFromContext(ctx))
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, repo.ErrUnreachable)
	defer cancel()
	var load repo.Load
	err := errNoLook
	defer func() { l.looked(ctx, b, load, err) }()
	load, err = d.Load(ctx, l.config.question())
}

// errNoLook is the error of a look that panicked.
var errNoLook = errors.New("the look has not ended")

// looked notes what a look has shown.
func (l *loads) looked(ctx context.Context, b *databaseLoad, load repo.Load, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.looking)
	b.looking = nil
	refused, is := errors.AsType[*repo.Error](err)
	switch {
	case err == nil:
		now := time.Now()
		b.excesses = since(l.config.excesses(b, load, b.rates.observe(load.WAL, now)), b.excesses, now, b.slow > 0 || now.Sub(b.seen) <= lookLife)
		b.seen, b.slow = now, 0
	case ctx.Err() != nil, is && refused.Class() == repo.ClassTimeout:
		b.slow++
	default:
		b.slow = 0
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
		trouble = err.Error()
	case load.Hidden > 0:
		trouble = "grant pg_monitor to the role of caretaker, or set load.max_replica_lag to 0"
	}
	if trouble != "" && trouble != b.told {
		l.logger.WarnContext(ctx, "load not seen in full, what is not seen slows nothing down", "database", b.name, "why", trouble)
	}
	b.told = trouble
}
