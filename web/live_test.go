package web

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestLive_ShowsHowMuchOfTheDueItemsIsDoneAtWhichRate(t *testing.T) {
	t.Parallel()
	progress := func(change func(*liveRun)) liveRun {
		l := live(part[run.Run]{Value: run.Run{
			Worker: "ghost_user_migration", State: running, StartedAt: time.Now().Add(-50 * time.Second),
			Counts: map[string]int64{"migrated_users": 20, "failed_users": 5, "moved_rows": 9},
			Tables: []run.TableCount{{Table: "a", Deleted: 1}, {Table: "b", Updated: 90_000}, {Table: "c"}, {Table: "d"}, {Table: "e"}, {Table: "f"}, {Table: "g"}},
		}}, []status.Worker{{Worker: "other"}, {Worker: "ghost_user_migration", Backlog: control.Backlog{Due: 75}}}, false)
		change(&l)
		return l
	}
	l := progress(func(*liveRun) {})
	assert.Equal(t, l.Progress().Percent(), 25, "%%")
	assert.That(t, l.Progress().Left() == "about 2 min left" || l.Progress().Left() == "about 3 min left", "got %q", l.Progress().Left())
	assert.That(t, strings.HasPrefix(l.Rate(), "1,") && strings.HasSuffix(l.Rate(), " rows/s"), "got %q", l.Rate())
	assert.That(t, len(l.Shown()) == busiestTables && l.Shown()[0].Table == "b", "got %v", l.Shown())
	for what, change := range map[string]func(*liveRun){
		"ended":    func(l *liveRun) { l.State = "succeeded" },
		"stale":    func(l *liveRun) { l.Read.Err = context.DeadlineExceeded },
		"dry":      func(l *liveRun) { l.DryRun = true },
		"not read": func(l *liveRun) { l.Status.BacklogUnknown = true },
		"at least": func(l *liveRun) { l.Status.Backlog.AtLeast = true },
		"none due": func(l *liveRun) { l.Status.Backlog.Due = 0 },
		"several":  func(l *liveRun) { l.Status.Leases = make([]run.Lease, 2) },
		"unknown":  func(l *liveRun) { l.Worker = "other" },
	} {
		l := progress(change)
		assert.Equal(t, l.Progress().Percent(), 0, what)
		assert.Equal(t, l.Progress().Left(), "", what)
	}
	on := progress(func(l *liveRun) {
		l.Database, l.Status.Leases = "ci", make([]run.Lease, 2)
		l.Status.Databases = []status.Database{{Name: "ci", KnownBacklog: run.KnownBacklog{Known: true, Backlog: control.Backlog{Due: 25}}}}
	})
	assert.Equal(t, on.Progress().Percent(), 50, "of its database, %%")
}

// atWork is the id of a run that another server has started.
const atWork = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4"

// slow is a run in another process, which goes on until finish.
func (f *fixture) slow() {
	f.t.Helper()
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, started_at, lease_epoch, counts, tables)
		VALUES ($1, 'ghost_user_migration', 'request', 'running', '1 hour', clock_timestamp() - interval '10 s', 1, '{"moved_rows": 12345}', '[{"table": "notes", "deleted": 0, "updated": 12345}]')`, atWork)
}

func (f *fixture) finish() {
	f.t.Helper()
	f.exec(`UPDATE maintenance.runs SET state = 'succeeded', finished_at = clock_timestamp() WHERE id = $1`, atWork)
}

// stream is the answer of a stream. The end of the test closes it.
type stream struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

// stream opens the stream of a run.
func (f *fixture) stream(ctx context.Context, id string, change ...func(*http.Request)) stream {
	f.t.Helper()
	return f.streamOf(ctx, f.client, id, change...)
}

func (f *fixture) streamOf(ctx context.Context, client *http.Client, id string, change ...func(*http.Request)) stream {
	f.t.Helper()
	r := assert.Must(http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/runs/"+id+"/events", nil))(f.t)
	for _, c := range change {
		c(r)
	}
	answer, err := client.Do(r)
	assert.NoError(f.t, err)
	f.t.Cleanup(func() { _ = answer.Body.Close() })
	return stream{answer.StatusCode, answer.Header, answer.Body}
}

func TestEvents_ShowTheProgressEverySecondUntilTheRunEnds(t *testing.T) {
	f := start(assert.Parallel(t))
	f.slow()
	f.page("/runs/"+atWork, `data-events="/runs/`+atWork+`/events?tables=all"`)
	f.page("/", `data-events="/runs/`+atWork+`/events"`)
	answer := f.stream(t.Context(), strings.ToUpper(atWork))
	assert.Equal(t, answer.StatusCode, http.StatusOK)
	assert.Equal(t, answer.Header.Get("Content-Type"), "text/event-stream")
	lines, events := bufio.NewScanner(answer.Body), 0
	var last []string
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			if events++; events == 3 {
				f.finish()
			}
			continue
		}
		assert.That(t, strings.HasPrefix(line, "data: ") || strings.HasPrefix(line, "event: "), "got %q", line)
		last = append(last, line)
	}
	assert.That(t, strings.Contains(strings.Join(last, "\n"), ">12,345</td>"), "no rows in %q", last)
	assert.That(t, events >= 4 && slices.Contains(last, "event: end") && slices.Contains(last, "data: succeeded"), "%d events, the last are %q", events, last)
	assert.Equal(t, f.stream(t.Context(), strings.Repeat("0", 36)).StatusCode, http.StatusNotFound)
}

func TestEvents_AThousandAttemptsOfAClientLeaveStreamsToOthers(t *testing.T) {
	f := start(assert.Parallel(t))
	f.slow()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	// from opens streams from an address, and returns how many are open and how many were refused.
	from := func(address string, attempts int) (opened, refused int64) {
		var open, busy atomic.Int64
		var wait sync.WaitGroup
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		t.Cleanup(client.CloseIdleConnections)
		for range attempts {
			wait.Go(func() {
				answer := f.streamOf(ctx, client, atWork)
				switch {
				case answer.StatusCode == http.StatusOK:
					open.Add(1)
				case answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") == "10":
					busy.Add(1)
				}
			})
		}
		wait.Wait()
		return open.Load(), busy.Load()
	}
	for _, c := range []struct {
		address               string
		attempts              int
		wantOpen, wantRefused int64
	}{
		{"127.0.0.1", 1000, maxOfClient, 1000 - maxOfClient},
		{"127.0.0.2", maxOfClient, maxStreams - maxOfClient, 0},
		{"127.0.0.3", 1, 0, 1},
	} {
		opened, refused := from(c.address, c.attempts)
		assert.That(t, opened == c.wantOpen && refused == c.wantRefused, "%s: %d open, %d refused", c.address, opened, refused)
	}
	f.page("/", atWork)
	refusal := f.stream(t.Context(), atWork)
	assert.Equal(t, refusal.StatusCode, http.StatusServiceUnavailable)
	assert.Contains(t, string(assert.Must(io.ReadAll(refusal.Body))(t)), "too many live pages are open", "this page reloads instead")
	leave()
	devdb.Eventually(t, "all streams to be free", func() bool { return f.site.pages.streams.none() })
	assert.Equal(t, f.stream(t.Context(), atWork).StatusCode, http.StatusOK)
}

// none reports whether no stream is open.
func (s *streams) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of) == 0
}

func TestFault_MainDown_ARunIsNotShownAsRunning(t *testing.T) {
	f := start(assert.Parallel(t))
	f.slow()
	f.page("/runs/"+atWork, `>running</span>`)
	lines := bufio.NewScanner(f.stream(t.Context(), atWork).Body)
	assert.That(t, lines.Scan(), "no event")
	f.main.Close()
	for lines.Scan() && !strings.Contains(lines.Text(), "Could not refresh since") {
		assert.That(t, !strings.HasPrefix(lines.Text(), "event: end"), "the run has ended")
	}
	assert.Contains(t, lines.Text(), "main", "/docs/operate/troubleshooting.md")
	f.eventually("/runs/"+atWork, "<title>last known: running", ">last known: running</span>", "Could not refresh since", "12,345")
}

func TestEvents_EndWhenTheTokenIsRevoked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	assert.NoError(t, os.WriteFile(file, []byte("secret"), 0o600))
	keys := assert.Must(access.New(access.Config{TokenFile: file}))(t)
	f := start(t, func(c *Config) { c.Access = keys })
	f.slow()
	viewer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }
	assert.Equal(t, f.stream(t.Context(), atWork).StatusCode, http.StatusUnauthorized, "without a token")
	lines := bufio.NewScanner(f.stream(t.Context(), atWork, viewer).Body)
	assert.That(t, lines.Scan(), "no event")
	assert.NoError(t, os.WriteFile(file, []byte("another"), 0o600))
	keys.Reload()
	for lines.Scan() {
		assert.That(t, lines.Text() != "event: end", "the run has ended")
	}
	assert.Equal(t, f.stream(t.Context(), atWork, viewer).StatusCode, http.StatusUnauthorized, "afterwards")
}

func TestEvents_EndWhenTheServerStops(t *testing.T) {
	f := start(assert.Parallel(t))
	f.slow()
	lines := bufio.NewScanner(f.stream(t.Context(), atWork).Body)
	assert.That(t, lines.Scan(), "no event")
	f.site.Stop(t.Context())
	for lines.Scan() {
		assert.That(t, lines.Text() != "event: end", "the run has ended")
	}
	assert.That(t, t.Context().Err() == nil && f.site.pages.streams.none(), "streams are open")
}
