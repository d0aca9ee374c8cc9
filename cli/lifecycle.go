package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/caretaker-go/caretaker/repo"
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
		if err := i.server.Serve(i.api); err != nil {
			i.failed <- err
		}
	})
	watching, stopWatching := context.WithCancel(ctx)
	i.work.Go(func() { i.watchDatabases(watching) })
	if i.scheduler != nil {
		i.scheduler.Start()
	}
	var err error
	if i.working {
		err = i.queue.Start(i.service)
	}
	i.logger.InfoContext(ctx, "serving", "version", version(), "listen", i.api.Addr().String(), "metrics_listen", i.metricsAddress(),
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

// databaseCheck is how often databases that did not answer at the start are tried again.
const databaseCheck = 5 * time.Second

// watchDatabases says when a database that did not answer at the start is there, and if it still has to be migrated.
// It ends when all are in order.
func (i *instance) watchDatabases(ctx context.Context) {
	open := map[*repo.Database]string{}
	for _, d := range i.databases {
		open[d] = ""
	}
	for len(open) > 0 {
		for d, said := range open {
			err := checkMigrated(ctx, d)
			switch {
			case err == nil:
				delete(open, d)
				if said != "" {
					i.logger.InfoContext(ctx, "database is in order now", "database", d.Name)
				}
			case ctx.Err() != nil:
				return
			case err.Error() != said && errors.Is(err, repo.ErrNotMigrated):
				i.logger.ErrorContext(ctx, "database is not migrated: run caretaker migrate", "database", d.Name, "error", err.Error())
				open[d] = err.Error()
			case said == "":
				open[d] = "unreachable"
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(databaseCheck):
		}
	}
}

func (i *instance) names() (names []string) {
	for _, d := range i.databases {
		names = append(names, d.Name)
	}
	return names
}

func (i *instance) metricsAddress() string {
	if i.metrics == nil {
		return ""
	}
	return i.metrics.Addr
}
