// Package authenticationevent is the worker authentication_event_cleanup, which deletes
// authentication events that are older than keep_days.
//
// Rows of authentication_events in main are due if they were created more than keep_days before the
// start of the run. The oldest come first.
//
// One batch is one statement. It deletes the due events among the batch_size oldest ones. The run
// ends when a batch deletes none, or at max_deletes, and the next run continues. A failure ends the
// run. Committed deletions are kept.
package authenticationevent

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name in settings, leases, labels and pages.
const Name = "authentication_event_cleanup"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"30 1 * * *" catch_up:"true"`
	// KeepDays is the number of days for which events are kept.
	KeepDays int `key:"keep_days" default:"365" max:"36500"`
	// BatchSize is the maximum number of events that one statement deletes.
	BatchSize int `key:"batch_size" default:"1000" max:"10000"`
	// MaxDeletes is the maximum number of events that a run deletes.
	MaxDeletes int `key:"max_deletes" default:"100000" max:"100000000"`
}

// cleanup is the worker. The package comment describes its design.
type cleanup struct {
	run.Deps
	config Config
}

// New returns the worker, which has no jobs.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	c := &cleanup{d, config}
	return &run.Worker{
		Name:        Name,
		Config:      config.WorkerConfig,
		Missing:     d.Main.Users.AuthenticationEvents,
		NoTimeLimit: true,
		Work:        c.work,
		Backlog:     c.backlog,
		Actions:     map[string]string{"deleted_rows": "deleted"},
	}, nil, nil
}

// table contains the events.
const table = "authentication_events"

// expired selects the events that are due at a time.
func (c *cleanup) expired(now time.Time, limit int) gitlab.ExpiredEvents {
	return gitlab.ExpiredEvents{Before: now.AddDate(0, 0, -c.config.KeepDays), Limit: limit}
}

func (c *cleanup) work(ctx context.Context, x *run.Execution) error {
	step := c.deleteBatch
	if x.DryRun {
		step = c.countAll
	}
	for left := c.config.MaxDeletes; left > 0; {
		var n int64
		err := x.Batch(ctx, func(ctx context.Context) (err error) {
			n, err = step(ctx, x, left)
			x.Count(ctx, "deleted_rows", n)
			x.Changed(table, n, 0)
			return err
		})
		if left -= int(n); err != nil || n == 0 || x.DryRun && left > 0 {
			return err
		}
	}
	x.Limit("limit reached: max_deletes", "limit reached: max_deletes")
	return nil
}

// deleteBatch deletes at most batch_size events, and at most left.
func (c *cleanup) deleteBatch(
	ctx context.Context, x *run.Execution, left int,
) (deleted int64, err error) {
	limits := fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
	permit, err := x.Permit(ctx, x.Database, catalog.Table{Name: table}, limits)
	if err != nil {
		return 0, err
	}
	defer permit.End(&err)
	events := c.expired(x.Now(), min(c.config.BatchSize, left))
	return x.Database.Users.DeleteExpiredEvents(ctx, permit.Permit, events)
}

// countAll counts the events that a run would delete.
func (c *cleanup) countAll(ctx context.Context, x *run.Execution, left int) (int64, error) {
	b, err := x.Database.Users.CountExpiredEvents(ctx, c.expired(x.Now(), left), run.ReadLimits())
	return b.Due, err
}

// backlog counts the events that a run would delete now.
func (c *cleanup) backlog(
	ctx context.Context, d *repo.Database,
) (b control.Backlog, remark string, err error) {
	now, err := d.Now(ctx)
	if err != nil {
		return b, "", err
	}
	limits := fencing.Limits{Statement: run.BacklogTimeout, Lock: time.Second}
	b, err = d.Users.CountExpiredEvents(ctx, c.expired(now, c.config.MaxDeletes), limits)
	return b, "", err
}
