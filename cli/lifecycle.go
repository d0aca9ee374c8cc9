package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// Bounds of an orderly end. Jobs snooze and runs stop after the statement in flight, which takes 10 s at most.
const (
	jobsPatience  = 20 * time.Second
	runsPatience  = 20 * time.Second
	callsPatience = 5 * time.Second
	flushPatience = 5 * time.Second
)

// untilSignal returns a context that ends with the first SIGINT or SIGTERM; a second one kills the process.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// run serves until ctx ends or a listener breaks, and then shuts everything down in an order in which nothing is lost:
// no new work, runs to their ends, callers their answers, then the rest.
func (i *instance) run(ctx context.Context) error {
	i.work.Go(func() {
		if err := i.server.Serve(i.listening.api); err != nil {
			i.failed <- err
		}
	})
	if i.site != nil {
		i.work.Go(func() {
			if err := i.site.Serve(i.listening.web); err != nil {
				i.failed <- err
			}
		})
	}
	watching, stopWatching := context.WithCancel(ctx)
	for _, d := range i.databases {
		i.work.Go(func() { i.watchDatabase(watching, d) })
	}
	if i.scheduler != nil {
		i.scheduler.Start()
	}
	var err error
	if i.working {
		err = i.queue.Start(i.service)
	}
	i.logger.InfoContext(ctx, "serving", "version", version(), "listen", i.listening.api.Addr().String(), "metrics_listen", i.metricsAddress(), "web_listen", i.webAddress(),
		"databases", i.names(), "scheduler", i.scheduler != nil, "jobs", i.working)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-i.failed:
		}
	}
	i.logger.InfoContext(ctx, "stopping")
	stopWatching()
	ctx = context.WithoutCancel(ctx)
	i.server.Drain()
	if i.scheduler != nil {
		i.complain("scheduler not stopped", i.scheduler.Stop())
	}
	// Jobs and runs end together: a job may wait for a run.
	i.work.Go(func() {
		i.bounded(ctx, jobsPatience, func(ctx context.Context) { i.complain("jobs not ended", i.queue.Stop(ctx)) })
	})
	i.bounded(ctx, runsPatience, func(ctx context.Context) { i.complain("runs not ended", i.service.Shutdown(ctx)) })
	i.bounded(ctx, callsPatience, i.server.Stop)
	if i.site != nil {
		i.bounded(ctx, callsPatience, i.site.Stop)
	}
	if i.metrics != nil {
		i.bounded(ctx, callsPatience, func(ctx context.Context) { _ = i.metrics.Shutdown(ctx) })
	}
	i.work.Wait()
	i.close()
	i.logger.InfoContext(ctx, "stopped")
	return err
}

func (i *instance) bounded(ctx context.Context, patience time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	do(ctx)
}

// close gives back what newInstance has taken.
func (i *instance) close() {
	for _, closer := range slices.Backward(i.closers) {
		closer()
	}
	i.closers = nil
	i.work.Wait()
}

func (i *instance) flush(ctx context.Context) {
	i.bounded(context.WithoutCancel(ctx), flushPatience, func(ctx context.Context) {
		i.complain("telemetry not sent", i.telemetry.Shutdown(ctx))
	})
}

func (i *instance) complain(what string, err error) {
	if err != nil {
		i.logger.Warn(what, "error", err.Error()) //nolint:sloglint // callers give constants
	}
}

// databaseCheck is how often a database is looked at, and tried again at least while it does not answer.
const databaseCheck = 5 * time.Second

// watchDatabase says when a database cannot work, and when it can again, or still has to be migrated. Nothing depends on
// it: whoever needs the database tries by himself.
func (i *instance) watchDatabase(ctx context.Context, d *repo.Database) {
	pace := service.Backoff{First: time.Second, Most: databaseCheck}
	said, migrated := "", false
	for {
		err := d.Writable(ctx)
		if err == nil && !migrated {
			err = checkMigrated(ctx, d)
			migrated = err == nil
		}
		if ctx.Err() != nil {
			return
		}
		if now := trouble(err); now != said {
			i.sayDatabase(ctx, d, err)
			said = now
		}
		wait, _ := pace.After(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(wait, databaseCheck)):
		}
	}
}

// trouble is in what way a database cannot work, "" for one that can.
func trouble(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, repo.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, repo.ErrNotMigrated):
		return "not migrated"
	}
	return "failing"
}

func (i *instance) sayDatabase(ctx context.Context, d *repo.Database, err error) {
	switch trouble(err) {
	case "":
		i.logger.InfoContext(ctx, "database is in order now", "database", d.Name)
	case "not migrated":
		i.logger.ErrorContext(ctx, "database is not migrated: run caretaker migrate", "database", d.Name, "error", err.Error())
	default:
		i.logger.WarnContext(ctx, "database cannot work at present, will be tried again", "database", d.Name, "error", err.Error())
	}
}

func (i *instance) names() (names []string) {
	for _, d := range i.databases {
		names = append(names, d.Name)
	}
	return names
}

func (i *instance) webAddress() string {
	if i.site == nil {
		return ""
	}
	return i.listening.web.Addr().String()
}

func (i *instance) metricsAddress() string {
	if i.metrics == nil {
		return ""
	}
	return i.metrics.Addr
}
