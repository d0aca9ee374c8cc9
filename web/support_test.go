package web

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

var databases devdb.Tests

func TestMain(m *testing.M) {
	otel.SetTracerProvider(trace.NewTracerProvider())
	code := databases.Run(m)
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	tokens = "inactive_token_deletion"
	keys   = "loose_foreign_keys_cleanup"
)

// fixture is a page on a database of its own.
type fixture struct {
	t    *testing.T
	main *repo.Database
	// databases are those of the configuration.
	databases []*repo.Database
	sql       *pgx.Conn
	service   *service.Service
	site      *Site
	url       string
	client    *http.Client
}

func start(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	address := databases.Clone(t, servicetest.Demo())
	f := &fixture{t: t, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(f.client.CloseIdleConnections)
	f.sql = servicetest.Connect(t, address)
	f.main = servicetest.Open(t, address)
	f.databases = []*repo.Database{f.main}
	f.newService()
	f.serve(change)
	return f
}

// newService makes the service on the databases.
func (f *fixture) newService() {
	t := f.t
	t.Helper()
	queue := assert.Must(scheduler.NewQueue(f.main, scheduler.QueueConfig{Logger: slog.New(slog.DiscardHandler)}))(t)
	c := service.Config{
		Databases: f.databases, Queue: queue, Logger: slog.New(slog.DiscardHandler), Replica: "here",
	}
	service.Settings[lfk.Config](&c).Definitions = servicetest.Definitions(t, devdb.Definitions())
	config.Defaults(&c)
	f.service = assert.Must(service.New(c))(t)
	t.Cleanup(func() { _ = f.service.Shutdown(context.Background()) })
}

func (f *fixture) serve(change []func(*Config)) {
	f.t.Helper()
	api := assert.Must(server.New(server.Config{Service: f.service}))(f.t)
	config := Config{Service: f.service, Version: "v1", Call: api.Call}
	for _, c := range change {
		c(&config)
	}
	site := assert.Must(New(config))(f.t)
	f.site = site
	listener := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(f.t)
	f.url = "http://" + listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- site.Serve(listener) }()
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
		defer cancel()
		site.Stop(ctx)
		if err := <-served; err != nil {
			f.t.Error(err)
		}
	})
}

func (f *fixture) run(worker string, dry bool) run.Run {
	f.t.Helper()
	r := assert.Must(f.service.RunBatch(f.t.Context(), run.Request{Worker: worker, DryRun: dry, RequestedBy: "a test"}))(f.t)
	return r
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.sql.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// reply is an answer without its body.
type reply struct {
	Status     string
	StatusCode int
	Header     http.Header
}

// request asks for a path and returns the answer and its whole body.
func (f *fixture) request(method, path string, change ...func(*http.Request)) (reply, string) {
	f.t.Helper()
	r := assert.Must(http.NewRequestWithContext(f.t.Context(), method, f.url+path, nil))(f.t)
	for _, c := range change {
		c(r)
	}
	answer, err := f.client.Do(r)
	assert.NoError(f.t, err)
	defer func() { _ = answer.Body.Close() }()
	body := assert.Must(io.ReadAll(answer.Body))(f.t)
	return reply{answer.Status, answer.StatusCode, answer.Header}, string(body)
}

// page asks for a page and fails the test unless it has all parts.
func (f *fixture) page(path string, parts ...string) string {
	f.t.Helper()
	answer, body := f.request(http.MethodGet, path)
	assert.Equal(f.t, answer.StatusCode, http.StatusOK, path, answer.Status)
	for _, p := range parts {
		assert.That(f.t, strings.Contains(body, p), "%s: %q is not in\n%s", path, p, body)
	}
	return body
}

// eventually waits until a page has all parts.
func (f *fixture) eventually(path string, parts ...string) {
	f.t.Helper()
	devdb.Eventually(f.t, fmt.Sprintf("%s with %q", path, parts), func() bool {
		_, body := f.request(http.MethodGet, path)
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(body, p) })
	})
}

// fresh lets the next request read everything again.
func (f *fixture) fresh() {
	f.site.pages.recent.mu.Lock()
	defer f.site.pages.recent.mu.Unlock()
	clear(f.site.pages.recent.known)
}
