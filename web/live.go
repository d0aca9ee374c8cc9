package web

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// maxStreams is the maximum number of open streams.
	maxStreams = 100
	// streamEvery is how often a stream sends the run, and checks that its client still has access.
	streamEvery = time.Second
	// sendTime limits the sending of one event.
	sendTime = 5 * time.Second
	// busiestTables is the number of tables in the list of running runs.
	busiestTables = 6
)

// liveRun is the part of a page that shows the progress of a running run.
type liveRun struct {
	run.Run
	// Status is the status of its worker, the zero value if unknown.
	Status status.Worker
	// All shows all tables, not only the busiest.
	All bool
}

// live returns the progress of a run, with its worker among all.
func live(r run.Run, workers []status.Worker, all bool) liveRun {
	l := liveRun{Run: r, All: all}
	for _, w := range workers {
		if w.Worker == r.Worker {
			l.Status = w
		}
	}
	l.Tables = slices.Clone(l.Tables)
	slices.SortStableFunc(l.Tables, func(a, b run.TableCount) int {
		return cmp.Compare(b.Deleted+b.Updated, a.Deleted+a.Updated)
	})
	return l
}

// done returns the number of processed items and of those that are due, 0 and 0 if unknown.
func (l liveRun) done() (done, due int64) {
	done, known := service.Processed(l.Worker, l.Counts)
	b, unknown := l.Status.Backlog, l.Status.BacklogUnknown || len(l.Status.Leases) > 1
	for _, d := range l.Status.Databases {
		if d.Name == l.Database {
			b, unknown = d.Backlog, !d.Known
		}
	}
	if !known || unknown || l.State != running || l.DryRun || b.AtLeast || b.Due == 0 {
		return 0, 0
	}
	return done, b.Due
}

// Percent returns the processed percentage of a running run, 0 if unknown.
func (l liveRun) Percent() int64 {
	done, due := l.done()
	return done * 100 / max(done+due, 1)
}

// Rate returns the rows per second since the start, "" without any.
func (l liveRun) Rate() string {
	rows := int64(0)
	for _, t := range l.Tables {
		rows += t.Deleted + t.Updated
	}
	perSecond := int64(float64(rows) / max(time.Since(l.StartedAt).Seconds(), 1))
	if perSecond == 0 {
		return ""
	}
	return format.Number(perSecond) + " rows/s"
}

// Left returns the estimated time until all due items are processed, "" if unknown.
func (l liveRun) Left() string {
	done, due := l.done()
	if done == 0 {
		return ""
	}
	return "about " + span(time.Duration(float64(time.Since(l.StartedAt))/float64(done)*float64(due))) + " left"
}

// Shown returns the tables with the most changed rows.
func (l liveRun) Shown() []run.TableCount {
	if l.All {
		return l.Tables
	}
	return l.Tables[:min(len(l.Tables), busiestTables)]
}

// Hidden returns the number of tables that are not shown.
func (l liveRun) Hidden() int64 { return int64(len(l.Tables) - len(l.Shown())) }

// streams are the open streams of running runs. Those of the same run share one watch.
type streams struct {
	mu      sync.Mutex
	open    int
	watches map[string]*watch
}

// watch follows one run.
type watch struct {
	id   string
	stop context.CancelFunc
	// seen is closed when the run is known, ended when the watch has ended.
	seen, ended chan struct{}

	// mu guards the fields below.
	mu  sync.Mutex
	run run.Run
	err error
	// streams is guarded by the mutex of streams.
	streams int
}

// current returns the run as it was last seen.
func (w *watch) current() (run.Run, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run, w.err
}

// follow keeps the run up to date until it ends.
func (w *watch) follow(ctx context.Context, s *service.Service) {
	defer close(w.ended)
	first := sync.OnceFunc(func() { close(w.seen) })
	err := s.WatchRun(ctx, w.id, func(r run.Run) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.run = r
		first()
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// join opens a stream of a run, nil if too many are open. Each call needs one of leave.
func (s *streams) join(ctx context.Context, of *service.Service, id string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= maxStreams {
		return nil
	}
	s.open++
	w := s.watches[id]
	if w == nil {
		ctx, stop := context.WithCancel(ctx)
		w = &watch{id: id, stop: stop, seen: make(chan struct{}), ended: make(chan struct{})}
		s.watches[id] = w
		go w.follow(ctx, of)
	}
	w.streams++
	return w
}

// leave closes a stream. The last one of a run ends its watch and waits for it.
func (s *streams) leave(w *watch) {
	s.mu.Lock()
	s.open--
	w.streams--
	last := w.streams == 0
	if last {
		delete(s.watches, w.id)
	}
	s.mu.Unlock()
	if last {
		w.stop()
		<-w.ended
	}
}

// events streams the progress of a run as Server-Sent Events, until it ends, the client loses its
// access, or the server stops. Each event is the HTML of the template live.
func (p *pages) events(w http.ResponseWriter, r *http.Request) {
	watch := p.streams.join(p.stopping, p.config.Service, strings.ToLower(r.PathValue("id")))
	if watch == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many live pages are open, this page reloads instead", http.StatusServiceUnavailable)
		return
	}
	defer p.streams.leave(watch)
	select {
	case <-watch.seen:
	case <-watch.ended:
		if _, err := watch.current(); err != nil {
			p.fail(w, r, err)
			return
		}
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	answer := http.NewResponseController(w)
	// The server's limits are for pages. Without a limit of reading, a closed connection is noticed.
	if answer.SetReadDeadline(time.Time{}) != nil {
		return
	}
	ticks := time.NewTicker(streamEvery)
	defer ticks.Stop()
	for p.send(w, r, answer, watch) {
		select {
		case <-watch.ended:
		case <-ticks.C:
		case <-r.Context().Done():
			return
		}
		client, err := p.config.Access.ClientOf(r)
		if err != nil || client.Role < access.Viewer {
			return
		}
	}
}

// send sends the run as one event, and reports whether more will follow.
func (p *pages) send(
	w http.ResponseWriter, r *http.Request, answer *http.ResponseController, watch *watch,
) bool {
	current, err := watch.current()
	if err != nil || r.Context().Err() != nil {
		return false
	}
	var out bytes.Buffer
	l := live(current, p.statuses(r.Context()).Value, r.URL.Query().Get("tables") == "all")
	if err := p.templates["run"].ExecuteTemplate(&out, "live", l); err != nil {
		p.config.Logger.ErrorContext(r.Context(), "page not rendered",
			"page", "live", "error", err.Error())
		return false
	}
	html := strings.ReplaceAll(string(bytes.Map(printable, out.Bytes())), "\n", "\ndata: ")
	text := "data: " + html + "\n\n"
	if current.State != running {
		text += "event: end\ndata: " + current.State + "\n\n"
	}
	if answer.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
		return false
	}
	if _, err := w.Write([]byte(text)); err != nil || answer.Flush() != nil {
		return false
	}
	return current.State == running
}
