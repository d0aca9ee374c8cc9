package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// caretaker is the worker as the server runs it.
type caretaker struct {
	databases []*repo.Database
	service   *service.Service
}

// newCaretaker opens the worker on a database, and on shards beside it. Limits that are 0 are out of the way.
func newCaretaker(ctx context.Context, d *database, keys []lfkrepo.Definition, maxDeletes int64, shards ...*database) (*caretaker, error) {
	c := &caretaker{}
	for i, each := range append([]*database{d}, shards...) {
		opened, err := repo.Open(ctx, databaseName(i), each.url)
		if err != nil {
			c.closeDatabases()
			return nil, err
		}
		c.databases = append(c.databases, opened)
	}
	all := service.Config{Databases: c.databases, Logger: slog.New(slog.DiscardHandler)}
	*service.Settings[lfk.Config](&all) = lfk.Config{
		Definitions: &lfk.Definitions{File: "bench", Keys: keys},
		MaxDeletes:  cmp.Or(maxDeletes, 1<<40), MaxUpdates: 1 << 40, MaxRuntime: 10 * time.Minute,
	}
	config.Defaults(&all)
	s, err := service.New(all) //nolint:contextcheck // counters begin with the service, not with a call
	if err != nil {
		c.closeDatabases()
		return nil, err
	}
	c.service = s
	d.closers = append(d.closers, c.close)
	return c, nil
}

func (c *caretaker) closeDatabases() {
	for _, d := range c.databases {
		d.Close()
	}
}

func (c *caretaker) close() error {
	defer c.closeDatabases()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.service.Shutdown(ctx)
}

// clean is one run.
func (c *caretaker) clean(ctx context.Context) (run.Run, error) { return c.cleanIn(ctx, "main") }

func (c *caretaker) cleanIn(ctx context.Context, database string) (run.Run, error) {
	run, err := c.service.RunBatch(ctx, run.Request{Worker: lfk.Name, Database: database})
	if err == nil && run.State != control.RunSucceeded {
		err = errors.New(run.Error)
		if run.Error == "" {
			err = fmt.Errorf("the run ended %s: %s", run.State, run.Reason)
		}
	}
	return run, err
}
