package run

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

const (
	// BacklogAge is the age from which a figure is read again.
	BacklogAge = 15 * time.Second
	// maxAge is the maximum age of a figure that is expensive to read.
	maxAge = time.Minute
	// BacklogTimeout is the timeout of one reading.
	BacklogTimeout = 2 * time.Second
)

// backlogs caches the last known backlog of each worker and database. Status calls and metrics cost
// at most one bounded query per [BacklogAge]. An expensive reading is repeated less often: it takes
// up to 1/200 of the time, until figures are as old as [maxAge].
type backlogs struct {
	mu    sync.Mutex
	known map[backlogKey]*backlogEntry
}

// backlogKey identifies the figures of a worker in one database.
type backlogKey struct {
	worker   string
	database *repo.Database
}

// KnownBacklog is the last backlog read of a worker in a database, with a remark on it.
type KnownBacklog struct {
	Backlog control.Backlog
	Remark  string
	// Known: read since this server started, at MeasuredAt by the host's clock.
	Known      bool
	MeasuredAt time.Time
}

// backlogEntry holds the newest reading of a backlog. mu guards all fields except stale.
type backlogEntry struct {
	// stale marks figures to be read again at any age.
	stale  atomic.Bool
	mu     sync.Mutex
	readAt time.Time
	// took is the duration of the newest reading, 0 if it failed.
	took time.Duration
	KnownBacklog
	// failure is the error of the newest reading.
	failure error
}

// manyPending is the backlog from which the end of a run does not cause a new count.
const manyPending = 100_000

// due reports whether to read again.
func (e *backlogEntry) due() bool {
	if e.stale.Load() && (!e.Known || e.Backlog.Pending < manyPending) {
		return true
	}
	return time.Since(e.readAt) > min(max(BacklogAge, 200*e.took), maxAge)
}

// newBacklogs returns a cache without any reading.
func newBacklogs() *backlogs { return &backlogs{known: map[backlogKey]*backlogEntry{}} }

// Get reads the backlog or returns the last known one with a remark. It does not query a database
// that is known to be in trouble.
func (b *backlogs) Get(
	ctx context.Context, w *Worker, d *repo.Database, failure error,
) KnownBacklog {
	e := b.entry(backlogKey{w.Name, d})
	e.mu.Lock()
	defer e.mu.Unlock()
	if failure == nil && e.due() {
		e.stale.Store(false)
		began := time.Now()
		// Others share the result, so the reading survives the end of this caller.
		ctx, cancel := context.WithTimeoutCause(
			context.WithoutCancel(ctx), BacklogTimeout, dberr.ErrUnreachable)
		defer cancel()
		reader := d.Reader(w.LeaseName(d), 0)
		fresh, remark, err := w.Backlog(repo.ReadBy(ctx, reader), d)
		remark = format.Join(remark, readRemark(reader, d))
		e.readAt, e.took, e.failure = time.Now(), 0, err
		if err == nil {
			e.took = e.readAt.Sub(began)
			e.KnownBacklog = KnownBacklog{fresh, remark, true, e.readAt}
		}
	}
	known := e.KnownBacklog
	if err := cmp.Or(failure, e.failure); err != nil && known.Known {
		known.Remark = fmt.Sprintf("backlog of %s could not be read (%s), so the last known figures are shown",
			d.Name, fault.BriefText(err))
	} else if err != nil {
		known.Remark = fmt.Sprintf("backlog of %s unknown: this server has not been able to read the backlog since it started (%s)",
			d.Name, fault.BriefText(err))
	}
	return known
}

// Renew makes the next Get read figures that would soon expire. A caller that comes every [maxAge]
// and has time uses it, so that no other caller waits for an expensive reading.
func (b *backlogs) Renew(w *Worker, d *repo.Database) {
	e := b.entry(backlogKey{w.Name, d})
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.readAt) > maxAge/2 {
		e.readAt = time.Time{}
	}
}

// readRemark returns why a backlog was not read from the configured replica.
func readRemark(reader *repo.Reader, d *repo.Database) string {
	if _, why := reader.Source(); why != "" {
		return "backlog of " + d.Name + " was read from the primary, because " + why
	}
	return ""
}

// entry returns the entry of a key. It creates a stale entry at the first call, so that the
// figures are read.
func (b *backlogs) entry(key backlogKey) *backlogEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.known[key]
	if e == nil {
		e = &backlogEntry{}
		e.stale.Store(true)
		b.known[key] = e
	}
	return e
}

// forget makes the next status read again, because a run has changed the backlog.
func (b *backlogs) forget(w *Worker, d *repo.Database) {
	b.entry(backlogKey{w.Name, d}).stale.Store(true)
}
