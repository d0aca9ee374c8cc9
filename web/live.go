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
	// maxStreams and maxOfClient are the maximum numbers of open streams: of all clients, and of one.
	maxStreams, maxOfClient = 100, 50
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
	Read part[run.Run]
	// Status is the status of its worker, the zero value if unknown.
	Status status.Worker
	// All shows all tables, not only the busiest.
	All bool
}

// live returns the progress of a run, with its worker among all.
func live(r part[run.Run], workers []status.Worker, all bool) liveRun {
	l := liveRun{Run: r.Value, Read: r, All: all}
	for _, w := range workers {
		if w.Worker == l.Worker {
			l.Status = w
		}
	}
	l.Tables = slices.Clone(l.Tables)
	slices.SortStableFunc(l.Tables, func(a, b run.TableCount) int {
		return cmp.Compare(b.Deleted+b.Updated, a.Deleted+a.Updated)
	})
	return l
}

// Progress returns the progress through the items of the run's database that are due.
func (l liveRun) Progress() run.Progress {
	done, known := service.Processed(l.Worker, l.Counts)
	b, unknown := l.Status.Backlog, l.Status.BacklogUnknown || len(l.Status.Leases) > 1
	for _, d := range l.Status.Databases {
		if d.Name == l.Database {
			b, unknown = d.Backlog, !d.Known
		}
	}
	if !known || unknown || l.State != running || l.DryRun || b.AtLeast || b.Due == 0 || l.Read.Stale() {
		return run.Progress{}
	}
	return run.Progress{Done: done, Total: done + b.Due, Elapsed: time.Since(l.StartedAt)}
}

// Rate returns the rows per second since the start, "" without any, or while they are not known.
func (l liveRun) Rate() string {
	rows := int64(0)
	for _, t := range l.Tables {
		rows += t.Deleted + t.Updated
	}
	perSecond := int64(float64(rows) / max(time.Since(l.StartedAt).Seconds(), 1))
	if perSecond == 0 || l.Read.Stale() {
		return ""
	}
	return format.Number(perSecond) + " rows/s"
}

// Shown returns the tables with the most changed rows.
func (l liveRun) Shown() []run.TableCount {
	if l.All {
		return l.Tables
	}
	return l.Tables[:min(len(l.Tables), busiestTables)]
}

// readRun returns a run, read at most maxAge ago for any client.
func (p *pages) readRun(ctx context.Context, id string, maxAge time.Duration) part[run.Run] {
	id = strings.ToLower(id)
	return read(ctx, p.recent, "run "+id, maxAge,
		func(ctx context.Context) (run.Run, error) { return p.config.Service.Run(ctx, id) })
}

// streams counts the open streams by client.
type streams struct {
	mu sync.Mutex
	of map[string]int
}

// add counts n streams more of a client, and reports whether the limits allow them.
func (s *streams) add(client string, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := n
	for _, open := range s.of {
		all += open
	}
	if all > maxStreams || s.of[client]+n > maxOfClient {
		return false
	}
	if s.of[client] += n; s.of[client] == 0 {
		delete(s.of, client)
	}
	return true
}

// events streams the progress of a run as Server-Sent Events, until it ends, the client loses its
// access, or the server stops. Each event is the HTML of the template live.
func (p *pages) events(w http.ResponseWriter, r *http.Request) {
	client := cmp.Or(clientOf(r).Name, hostOf(r.RemoteAddr))
	if !p.streams.add(client, 1) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many live pages are open, so this page reloads instead", http.StatusServiceUnavailable)
		return
	}
	defer p.streams.add(client, -1)
	current := p.readRun(r.Context(), r.PathValue("id"), readEvery)
	if current.At.IsZero() {
		p.fail(w, r, current.Err)
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
	for p.send(w, r, answer, current) {
		select {
		case <-ticks.C:
		case <-p.stopping.Done():
			return
		case <-r.Context().Done():
			return
		}
		of, err := p.config.Access.ClientOf(r)
		if err != nil || of.Role < access.Viewer {
			return
		}
		current = p.readRun(r.Context(), r.PathValue("id"), streamEvery)
	}
}

// send sends a run as one event, and reports whether more will follow.
func (p *pages) send(w http.ResponseWriter, r *http.Request, answer *http.ResponseController, current part[run.Run]) bool {
	var out bytes.Buffer
	l := live(current, p.statuses(r.Context()).Value, r.URL.Query().Get("tables") == "all")
	if err := p.templates["run"].ExecuteTemplate(&out, "live", l); err != nil {
		p.config.Logger.ErrorContext(r.Context(), "page not rendered",
			"page", "live", "error", err.Error())
		return false
	}
	html := strings.NewReplacer("\r", " ", "\n", "\ndata: ").Replace(string(bytes.Map(printable, out.Bytes())))
	text := "data: " + html + "\n\n"
	if l.State != running {
		text += "event: end\ndata: " + l.State + "\n\n"
	}
	if answer.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
		return false
	}
	if _, err := w.Write([]byte(text)); err != nil || answer.Flush() != nil {
		return false
	}
	return l.State == running
}
