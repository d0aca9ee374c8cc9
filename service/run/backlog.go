package run

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// BacklogAge is how old a figure may be before it is read again.
	BacklogAge = 15 * time.Second
	// BacklogPatience is how long one reading may take.
	BacklogPatience = 2 * time.Second
)

// backlogs keeps the last known backlog of each worker and database, so that status calls and metrics cost at most one
// bounded query every [BacklogAge].
type backlogs struct {
	mu    sync.Mutex
	known map[backlogKey]*backlogEntry
}

type backlogKey struct {
	worker   string
	database *repo.Database
}

type backlogEntry struct {
	// stale figures are read again, however young they are.
	stale  atomic.Bool
	mu     sync.Mutex
	readAt time.Time
	// measuredAt is when the known backlog was read.
	measuredAt time.Time
	known      bool
	backlog    repo.Backlog
	remark     string
	// failure is why the newest reading failed.
	failure error
}

func newBacklogs() *backlogs { return &backlogs{known: map[backlogKey]*backlogEntry{}} }

// Get reads the backlog or returns the last known one with a remark; ok is false if it was never known. A database that
// is known to be in trouble is not asked.
func (b *backlogs) Get(ctx context.Context, w *Worker, d *repo.Database, trouble error) (backlog repo.Backlog, remark string, ok bool) {
	e := b.entry(backlogKey{w.Name, d})
	e.mu.Lock()
	defer e.mu.Unlock()
	if trouble == nil && (e.stale.Swap(false) || time.Since(e.readAt) > BacklogAge) {
		// What is read is for others too: this caller may go away.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), BacklogPatience, repo.ErrUnreachable)
		defer cancel()
		reader := d.Reader(w.LeaseName(d), 0)
		fresh, remark, err := w.Backlog(repo.ReadBy(ctx, reader), d)
		remark = strings.Join(slices.DeleteFunc([]string{remark, readRemark(reader, d)}, func(s string) bool { return s == "" }), "; ")
		e.readAt, e.failure = time.Now(), err
		if err == nil {
			e.backlog, e.remark, e.known, e.measuredAt = fresh, remark, true, e.readAt
		}
	}
	switch err := cmp.Or(trouble, e.failure); {
	case err != nil && e.known:
		return e.backlog, "backlog of " + d.Name + " not read (" + briefText(err) + "), last known figures", true
	case err != nil:
		return e.backlog, "backlog of " + d.Name + " not known: not read since this server was started (" + briefText(err) + ")", false
	}
	return e.backlog, e.remark, e.known
}

// readRemark says why a backlog was not read from the replica that there is.
func readRemark(reader *repo.Reader, d *repo.Database) string {
	if _, why := reader.Source(); why != "" {
		return "backlog of " + d.Name + " read from its primary: the replica was left out as " + why
	}
	return ""
}

// MeasuredAt is when the backlog was read that Get returns.
func (b *backlogs) MeasuredAt(w *Worker, d *repo.Database) time.Time {
	e := b.entry(backlogKey{w.Name, d})
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.measuredAt
}

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

// forget makes the next status read afresh: a run has just changed the backlog.
func (b *backlogs) forget(w *Worker, d *repo.Database) {
	b.entry(backlogKey{w.Name, d}).stale.Store(true)
}
