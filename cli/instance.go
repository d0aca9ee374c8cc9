package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/spans"
	"github.com/caretaker-go/caretaker/telemetry"
	"github.com/caretaker-go/caretaker/web"
)

// instance is a running server with all its parts. serve and dev each have one.
type instance struct {
	logger    *slog.Logger
	telemetry *telemetry.Telemetry
	databases []*repo.Database
	service   *service.Service
	// scheduler is nil if it is switched off.
	scheduler *scheduler.Scheduler
	// queue is nil if only loose foreign keys are in use, without jobs.
	queue *scheduler.Queue
	// worksJobs is the setting jobs.enabled, and is false without a queue.
	worksJobs bool
	server    *server.Server
	// site is the status page. It is nil if it is switched off.
	site    *web.Site
	metrics *http.Server
	// listening is nil until open creates the listeners.
	listening *listeners
	// replica names this process in leases, runs and telemetry.
	replica string
	// access authenticates the clients. secure is nil without TLS.
	access *access.Keys
	secure *tls.Config
	// hangups receives SIGHUP.
	hangups chan os.Signal
	// mainChecked is when the loop of watchDatabase last checked main.
	mainChecked atomic.Pointer[time.Time]
	// failed receives the errors of broken listeners.
	failed chan error
	work   sync.WaitGroup
	// closers run in reverse order when the instance closes.
	closers []func()
}

// newInstance opens all parts and listens, unless given has listeners, so that a wrong setting
// fails at once. run then serves. An unreachable database is no error, because it may come up
// later.
func newInstance(ctx context.Context, a *app, c *settings, given *listeners) (*instance, error) {
	i := &instance{
		logger:    telemetry.NewLogger(a.std.Err, c.LogLevel, c.LogFormat),
		listening: given, replica: run.ReplicaName(), failed: make(chan error, 3),
	}
	slog.SetDefault(i.logger) //nolint:forbidigo // for libraries that use the standard logger
	if given != nil {
		i.closers = append(i.closers, given.close)
	}
	if err := i.open(ctx, c); err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

// open opens all that a server needs. After an error, the caller closes what is open already.
func (i *instance) open(ctx context.Context, c *settings) (err error) {
	if err := i.startTelemetry(ctx, c.OpenTelemetry); err != nil {
		return err
	}
	// 1. Open and check the databases.
	var closeDatabases func()
	if i.databases, closeDatabases, err = databases(ctx, c); err != nil {
		return err
	}
	i.closers = append(i.closers, closeDatabases)
	i.useReplicas(ctx, c.Config)
	if err := i.checkDatabases(ctx); err != nil {
		return err
	}
	// 2. Open the listeners, unless dev has opened them.
	if i.listening == nil {
		if i.listening, err = listen(ctx, c.Config, ""); err != nil {
			return err
		}
		i.closers = append(i.closers, i.listening.close)
	}
	// 3. Connect the parts of the server.
	if err := i.wire(c); err != nil {
		return err
	}
	i.serveMetrics()
	return nil
}

// startTelemetry starts traces and metrics. Closing the instance sends the remaining data within
// flushTimeout.
func (i *instance) startTelemetry(ctx context.Context, o config.OpenTelemetry) (err error) {
	if o.Mistake != nil {
		return o.Mistake
	}
	i.telemetry, err = telemetry.Start(ctx, telemetry.Config{
		Version: version(), Instance: i.replica, Disabled: o.Disabled, Traces: o.Traces,
		Metrics: o.Metrics, Logger: i.logger, Quiet: server.ReadOnlyMethods(),
		Propagators: o.Propagators, IDs: spans.IDs{},
	})
	if err != nil {
		return err
	}
	i.closers = append(i.closers, func() {
		bounded(ctx, flushTimeout, func(ctx context.Context) {
			i.logWarning("telemetry lost at shutdown", i.telemetry.Shutdown(ctx))
		})
	})
	return nil
}

// wire creates the parts that do not need the network.
func (i *instance) wire(c *settings) (err error) {
	// 1. The queue of jobs, unless only loose foreign keys are in use.
	s := c.service
	if !s.LooseForeignKeysOnly() {
		i.queue, err = scheduler.NewQueue(i.databases[0], scheduler.QueueConfig{Logger: i.logger})
		if err != nil {
			return err
		}
		i.worksJobs, s.Queue = c.JobsEnabled, i.queue
	}
	// 2. The service with its scheduler.
	s.Databases, s.SchedulerOff = i.databases, !c.SchedulerEnabled
	s.Logger, s.Replica = i.logger, i.replica
	if i.service, err = service.New(s); err != nil {
		return err
	}
	if c.SchedulerEnabled {
		if i.scheduler, err = scheduler.New(i.service, i.logger); err != nil {
			return err
		}
		i.closers = append(i.closers, i.stopScheduler)
	}
	// 3. The API, and the status page if it has an address.
	if i.access, err = c.access(i.logger); err != nil {
		return err
	}
	api := c.tls()
	api.Service, api.Logger, api.Access = i.service, i.logger, i.access
	api.Identity = identity(i.databases, addressOf(i.listening.api), addressOf(i.listening.metrics),
		addressOf(i.listening.web))
	if i.server, err = server.New(api); err != nil {
		return err
	}
	if i.secure, err = api.TLS("h2", "http/1.1"); err != nil || c.WebListen == "" {
		return err
	}
	i.site, err = web.New(web.Config{
		Service: i.service, Logger: i.logger, Version: version(), Access: i.access, TLS: i.secure,
		TraceURL: c.WebTraceURL, Call: i.server.Call, Actions: c.ActsOnPage(),
	})
	return err
}

// Limits of a connection to the metrics: the time to read a request, to write an answer, and to
// stay idle.
const headerTimeout, metricsTimeout, metricsIdleTimeout = 5 * time.Second, time.Minute, 5 * time.Minute

// guardMetrics serves the metrics on loopback to all clients. On other addresses it protects them
// like the status page: with TLS, and for viewers only, if these are configured.
func (i *instance) guardMetrics(at net.Addr, all http.Handler) (http.Handler, *tls.Config) {
	if access.IsLoopback(at) {
		return all, nil
	}
	// An HTTP server changes its TLS configuration, so each server needs a copy.
	return i.access.Guard(all), i.secure.Clone()
}

// serveMetrics serves /metrics if it has a listener. An error of the server other than its end
// stops the instance.
func (i *instance) serveMetrics() {
	listener := i.listening.metrics
	if listener == nil {
		return
	}
	i.metrics = &http.Server{
		Addr:              listener.Addr().String(),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout,
		WriteTimeout: metricsTimeout, IdleTimeout: metricsIdleTimeout,
		ErrorLog: slog.NewLogLogger(i.logger.Handler(), slog.LevelDebug),
	}
	i.metrics.Handler, i.metrics.TLSConfig = i.guardMetrics(listener.Addr(), i.telemetry.Handler())
	serve := i.metrics.Serve
	if i.metrics.TLSConfig != nil {
		serve = func(l net.Listener) error { return i.metrics.ServeTLS(l, "", "") }
	}
	i.closers = append(i.closers, func() { _ = i.metrics.Close() })
	i.serve(func() error {
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("cannot serve metrics: %w", err)
		}
		return nil
	})
}

// serve runs do, which serves a listener. An error of do ends the instance.
func (i *instance) serve(do func() error) {
	i.work.Go(func() {
		if err := do(); err != nil {
			i.failed <- err
		}
	})
}

// Limits of an orderly shutdown. Jobs and runs stop after the current statement, which takes at
// most 10 s.
const (
	jobsTimeout, runsTimeout   = 20 * time.Second, 20 * time.Second
	callsTimeout, flushTimeout = 5 * time.Second, 5 * time.Second
)

// run serves until ctx ends or a listener breaks. Then it shuts down.
func (i *instance) run(ctx context.Context) error {
	// 1. Serve the listeners.
	i.serve(func() error { return i.server.Serve(i.listening.api) })
	if i.site != nil {
		i.serve(func() error { return i.site.Serve(i.listening.web) })
	}
	// 2. Watch the databases, and start schedules and jobs.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	for _, d := range i.databases {
		i.work.Go(func() { i.watchDatabase(watching, d) })
	}
	if i.scheduler != nil {
		i.scheduler.Start()
	}
	var err error
	if i.worksJobs {
		err = i.queue.Start(i.service)
	}
	i.logger.InfoContext(ctx, "serving", "version", version(),
		"listen", addressOf(i.listening.api), "metrics_listen", addressOf(i.listening.metrics),
		"web_listen", addressOf(i.listening.web), "databases", i.names(),
		"scheduler", i.scheduler != nil, "jobs", i.worksJobs)
	// 3. Report ready to systemd, and wait for the end.
	if err == nil {
		i.notify(daemon.SdNotifyReady)
		err = i.supervise(ctx)
	}
	// 4. Shut down.
	i.logger.InfoContext(ctx, "stopping")
	i.notify(daemon.SdNotifyStopping)
	stopWatching()
	i.shutdown(context.WithoutCancel(ctx))
	i.logger.InfoContext(ctx, "stopped")
	return err
}

// shutdown accepts no new work, stops runs and jobs, and answers the open calls. Then it closes
// everything else, so that no work is lost.
func (i *instance) shutdown(ctx context.Context) {
	i.server.Drain()
	i.stopScheduler()
	// Jobs and runs stop concurrently, because a job may wait for a run.
	if i.queue != nil {
		i.work.Go(func() {
			bounded(ctx, jobsTimeout, func(ctx context.Context) {
				i.logWarning("jobs not stopped", i.queue.Stop(ctx))
			})
		})
	}
	bounded(ctx, runsTimeout, func(ctx context.Context) {
		i.logWarning("runs not stopped", i.service.Shutdown(ctx))
	})
	bounded(ctx, callsTimeout, i.server.Stop)
	if i.site != nil {
		bounded(ctx, callsTimeout, i.site.Stop)
	}
	if i.metrics != nil {
		bounded(ctx, callsTimeout, func(ctx context.Context) { _ = i.metrics.Shutdown(ctx) })
	}
	i.work.Wait()
	i.close()
}

// stopScheduler stops the schedules, if this server has any, and logs a failure to stop.
func (i *instance) stopScheduler() {
	if i.scheduler != nil {
		i.logWarning("scheduler not stopped", i.scheduler.Stop())
	}
}

// bounded calls do with a context that ends after the limit, even if ctx has ended.
func bounded(ctx context.Context, limit time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	do(ctx)
}

// close closes everything that newInstance opened.
func (i *instance) close() {
	for _, closer := range slices.Backward(i.closers) {
		closer()
	}
	i.closers = nil
	i.work.Wait()
}

// logWarning logs an error. It does nothing without one.
func (i *instance) logWarning(message string, err error, attrs ...any) {
	if err != nil {
		i.logger.Warn(message, append(attrs, "error", err.Error())...) //nolint:sloglint // constants
	}
}

// names returns the names of all databases, for the log.
func (i *instance) names() (names []string) {
	for _, d := range i.databases {
		names = append(names, d.Name)
	}
	return names
}

// addressOf returns the address of a listener, or "" if it is off.
func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}
