package ghostuser

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "ghost_user_migration"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"*/2 * * * *"`
	// Limit is how many rows of the queue a run takes.
	Limit int `key:"limit" default:"1000" max:"100000"`
	// MaxRuntime is how long a run may take; under a second the log warns at the start.
	MaxRuntime time.Duration `key:"max_runtime" default:"60s" max:"24h"`
}

// ghostMigration is the worker; the package comment is its design.
type ghostMigration struct {
	config Config
	run.Deps
	sizes *bulk.StatementSizes
}

// New makes the worker, with the kinds of job that belong to it. It does not connect; an error names the
// configuration key that is wrong.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	g := &ghostMigration{config, d, bulk.NewStatementSizes()}
	return &run.Worker{
		Name:       Name,
		Config:     config.WorkerConfig,
		Fences:     d.Databases[1:],
		Missing:    g.missing,
		MaxRuntime: func(string, map[string]bool) (time.Duration, bool) { return config.MaxRuntime, false },
		Work:       g.work,
		Backlog:    g.backlog,
		NotDone:    []string{"failed_users"},
		Actions: map[string]string{
			"migrated_users": "migrated_users", "deferred_users": "deferred_users", "failed_users": "failed_users",
			"moved_rows": "moved", "nullified_rows": "nullified", "deleted_rows": "deleted",
		},
	}, nil, nil
}

func (g *ghostMigration) missing(ctx context.Context) (string, error) {
	c, err := g.Main.Tables(ctx, repo.GhostTables())
	if err != nil {
		return "", err
	}
	_, missing := c.GhostQueue()
	if missing == "" {
		return "", nil
	}
	return fmt.Sprintf("database main has no %s in the application schema", missing), nil
}

func (g *ghostMigration) backlog(ctx context.Context, d *repo.Database) (repo.Backlog, string, error) {
	c, err := d.Tables(ctx, repo.GhostTables())
	if err != nil {
		return repo.Backlog{}, "", err
	}
	queue, missing := c.GhostQueue()
	if missing != "" {
		return repo.Backlog{}, "", nil
	}
	backlog, err := d.GhostBacklog(ctx, queue, repo.Limits{Statement: run.BacklogPatience, Lock: time.Second})
	return backlog, "", err
}

// ghostRun is one run of the worker.
type ghostRun struct {
	*ghostMigration
	x     *run.Execution
	queue repo.GhostQueue
	plan  *ghostPlan
	// seen are the rows of a dry run that would be gone by now, by database.
	seen map[*repo.Database]bulk.Seen

	migrated, deferred, failed int
	// stopped is what ended the run before the rows were through: a limit, "" if nothing did.
	stopped string
}

func (g *ghostMigration) work(ctx context.Context, x *run.Execution) error {
	r := &ghostRun{ghostMigration: g, x: x, seen: map[*repo.Database]bulk.Seen{}}
	var err error
	if r.plan, err = g.newPlan(ctx, x); err != nil {
		return err
	}
	r.queue = r.plan.queue
	due, err := x.Database.DueMigrations(ctx, r.queue, x.Now(), g.config.Limit+1, run.ReadLimits())
	if err != nil {
		return err
	}
	more := len(due) > g.config.Limit
	if err := r.all(ctx, due[:min(len(due), g.config.Limit)]); err != nil {
		if run.EndsEarly(err) {
			r.conclude()
		}
		return err
	}
	if more && r.stopped == "" {
		r.stopped = "limit reached: limit"
	}
	r.conclude()
	r.warn(ctx)
	return nil
}

// all works the rows in order until the time is up.
func (r *ghostRun) all(ctx context.Context, due []repo.GhostMigration) error {
	for i, m := range due {
		if r.x.Left() <= 0 {
			r.stopped = "limit reached: max_runtime"
			return nil
		}
		if err := r.x.Stopped(); err != nil {
			return err
		}
		if err := r.one(ctx, m, i < len(due)-1); err != nil {
			return err
		}
	}
	return nil
}

// conclude says in the run's record what was left, and why.
func (r *ghostRun) conclude() {
	var why []string
	if r.stopped != "" {
		why = append(why, r.stopped)
	}
	if r.deferred > 0 {
		why = append(why, fmt.Sprintf("%d users deferred", r.deferred))
	}
	if r.failed > 0 {
		why = append(why, fmt.Sprintf("%d users failed", r.failed))
	}
	reason := strings.Join(why, "; ")
	switch {
	case r.stopped != "":
		r.x.Limit(r.stopped, reason)
	case r.deferred > 0:
		r.x.Limit(fmt.Sprintf("%s, %d users deferred", run.AllSeen, r.deferred), reason)
	default:
		r.x.Report(func(record *run.Run) { record.Reason = reason })
	}
}

const (
	// manyPending and manyFailed (in a hundred) are the thresholds of an alert.
	manyPending = 1000
	manyFailed  = 10
)

// warn compares the end of the run with its thresholds. The work is done: what cannot be read is no failure of it.
func (r *ghostRun) warn(ctx context.Context) {
	if r.x.DryRun {
		return
	}
	if all := r.migrated + r.deferred + r.failed; r.failed*100 > manyFailed*all {
		r.x.Log.WarnContext(ctx, "many users failed", "failed_users", r.failed, "users", all, "threshold_percent", manyFailed)
	}
	backlog, err := r.x.Database.GhostBacklog(ctx, r.queue, repo.Limits{Statement: run.BacklogPatience, Lock: time.Second})
	switch {
	case err != nil:
		r.x.Log.WarnContext(ctx, "backlog not read", "error", err)
	case backlog.Pending > manyPending:
		r.x.Log.WarnContext(ctx, "many users pending", "pending", backlog.Pending, "threshold", manyPending)
	}
}
