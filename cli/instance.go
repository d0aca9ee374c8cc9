package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/telemetry"
	"github.com/caretaker-go/caretaker/web"
)

// instance is a running server with all that belongs to it. serve and dev have one each.
type instance struct {
	logger    *slog.Logger
	telemetry *telemetry.Telemetry
	databases []*repo.Database
	service   *service.Service
	// scheduler is nil when it is switched off.
	scheduler *scheduler.Scheduler
	queue     *scheduler.Queue
	// working says that jobs are worked here.
	working bool
	server  *server.Server
	// listening is nil until open has taken, or was given, the addresses.
	listening *listeners
	metrics   *http.Server
	// site is the status page, nil without.
	site *web.Site
	// replica is the name of this process in leases, runs and telemetry.
	replica string
	// failed gets what ends a listener before its time.
	failed chan error
	work   sync.WaitGroup
	// closers are called in reverse order at the end.
	closers []func()
}

// newInstance opens everything and listens, unless it is given listeners, so that a mistake shows at once; run serves. A
// database that cannot be reached is no mistake: it may come later.
func (a *app) newInstance(ctx context.Context, c *settings, given *listeners) (*instance, error) {
	i := &instance{logger: telemetry.NewLogger(a.Err, c.LogLevel, c.LogFormat), listening: given, failed: make(chan error, 3)}
	// What libraries say to the standard logger is JSON, too.
	slog.SetDefault(i.logger) //nolint:forbidigo // for libraries
	if given != nil {
		i.closers = append(i.closers, given.close)
	}
	if err := a.open(ctx, c, i); err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (a *app) open(ctx context.Context, c *settings, i *instance) (err error) {
	o := c.OpenTelemetry
	if len(o.Mistakes) > 0 {
		return errors.New(strings.Join(o.Mistakes, "\n"))
	}
	for _, doubt := range o.Doubts {
		i.logger.WarnContext(ctx, "a variable of OpenTelemetry is not understood", "error", doubt)
	}
	i.replica = run.ReplicaName()
	i.telemetry, err = telemetry.Start(ctx, telemetry.Config{
		Version: version(), Instance: i.replica, Disabled: o.Disabled, Traces: o.Traces, Metrics: o.Metrics, Logger: i.logger, Quiet: server.Polled(),
		Propagators: o.Propagators, IDs: run.SpanIDs{},
	})
	if err != nil {
		return err
	}
	i.closers = append(i.closers, func() { i.flush(ctx) })
	var closeDatabases func()
	if i.databases, closeDatabases, err = databases(ctx, c.Config); err != nil {
		return err
	}
	i.closers = append(i.closers, closeDatabases)
	i.useReplicas(ctx, c.Config)
	if err := i.checkDatabases(ctx); err != nil {
		return err
	}
	if err := i.wire(c); err != nil {
		return err
	}
	if i.listening == nil {
		if i.listening, err = listen(ctx, c.Config); err != nil {
			return err
		}
		i.closers = append(i.closers, i.listening.close)
	}
	i.serveMetrics()
	return nil
}

// wire makes the parts that do not need the network.
func (i *instance) wire(c *settings) (err error) {
	i.working = c.JobsEnabled
	if i.queue, err = scheduler.NewQueue(i.databases[0], scheduler.QueueConfig{Logger: i.logger}); err != nil {
		return err
	}
	work := c.service
	work.Databases, work.Queue, work.SchedulerOff, work.Logger = i.databases, i.queue, !c.SchedulerEnabled, i.logger
	work.Replica = i.replica
	if i.service, err = service.New(work); err != nil {
		return err
	}
	if c.SchedulerEnabled {
		if i.scheduler, err = scheduler.New(i.service, i.logger); err != nil {
			return err
		}
		i.closers = append(i.closers, func() { i.complain("scheduler not stopped", i.scheduler.Stop()) })
	}
	token, err := bearerToken(c.Auth)
	if err != nil {
		return err
	}
	api := server.Config{
		Service: i.service, Logger: i.logger, Token: token,
		CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, ClientCAFile: c.TLS.ClientCAFile,
	}
	if i.server, err = server.New(api); err != nil || c.WebListen == "" {
		return err
	}
	secure, err := api.TLS("h2", "http/1.1")
	if err != nil {
		return err
	}
	i.site, err = web.New(web.Config{
		Service: i.service, Logger: i.logger, Version: version(), Token: token, TLS: secure, TraceURL: c.WebTraceURL,
	})
	return err
}

func bearerToken(auth config.Auth) (string, error) {
	if auth.TokenFile == "" {
		return auth.Token, nil
	}
	content, err := os.ReadFile(auth.TokenFile)
	if err != nil {
		return "", fmt.Errorf("auth.token_file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("auth.token_file: %s is empty", auth.TokenFile)
	}
	return token, nil
}

// headerTime is how long a client of the metrics may take for its request.
const headerTime = 5 * time.Second

func (i *instance) serveMetrics() {
	listener := i.listening.metrics
	if listener == nil {
		return
	}
	i.metrics = &http.Server{Addr: listener.Addr().String(), Handler: i.telemetry.Handler(), ReadHeaderTimeout: headerTime}
	i.closers = append(i.closers, func() { _ = i.metrics.Close() })
	i.work.Go(func() {
		if err := i.metrics.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			i.failed <- fmt.Errorf("serve metrics: %w", err)
		}
	})
}

// checkMigrated checks the schema maintenance, with the queue of jobs where that is.
func checkMigrated(ctx context.Context, d *repo.Database) error {
	if err := d.CheckMigrated(ctx); err != nil || d.Name != "main" {
		return err
	}
	return scheduler.CheckQueueMigrated(ctx, d)
}

// notLetIn names the key whose URL is wrong, or wants rights.
func notLetIn(name string, refused *repo.Error) error {
	key := "databases." + name + ".url"
	return fmt.Errorf("%s (%s): %s: %w", key, config.Variable(key), refused.Explanation(), refused.Cause())
}

// checkDatabases refuses databases that are not migrated, and warns of those that do not answer.
func (i *instance) checkDatabases(ctx context.Context) error {
	var missing []string
	for _, d := range i.databases {
		err := checkMigrated(ctx, d)
		refused, is := errors.AsType[*repo.Error](err)
		switch {
		case err == nil:
			i.checkPooler(ctx, d)
			i.checkReplica(ctx, d)
		case is && refused.Refused():
			return notLetIn(d.Name, refused)
		case errors.Is(err, repo.ErrUnreachable):
			i.logger.WarnContext(ctx, "database unreachable, the server starts and goes on trying", "database", d.Name, "error", err.Error())
		case errors.Is(err, repo.ErrNotMigrated):
			missing = append(missing, d.Name)
		case err != nil:
			return fmt.Errorf("check database %s: %w", d.Name, err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the schema maintenance is missing or old in %s: run caretaker migrate with the same configuration, then start again",
			strings.Join(missing, ", "))
	}
	return nil
}
