package ghost

import (
	"context"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "ghost_user_migration"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"*/2 * * * *"`
	// Limit is how many users a run takes from the queue.
	Limit int `key:"limit" default:"1000" max:"100000"`
	// MaxRuntime is the maximum duration of a run, at least a few seconds.
	MaxRuntime time.Duration `key:"max_runtime" default:"60s" max:"24h"`
}

// DoneCounts are the counts of due users that a run has handled.
func (Config) DoneCounts() []string {
	return []string{
		"migrated_users", "deferred_users", "failed_users",
	}
}

// worker is the worker. The package comment is its design.
type worker struct {
	config Config
	run.Deps
	// sizes of statements are learned by all runs of the process together.
	sizes *bulk.StatementSizes
}

// New makes the worker, which has no jobs, without connecting. It always succeeds.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	d.Databases = run.GitLabs(d.Databases)
	w := &worker{config, d, bulk.NewStatementSizes(0)}
	return &run.Worker{
		Name:    Name,
		Config:  config.WorkerConfig,
		Fences:  d.Databases[1:],
		Missing: w.missing,
		Uses:    uses,
		MaxRuntime: func(string, map[string]bool) (time.Duration, bool) {
			return config.MaxRuntime, false
		},
		Work:       w.work,
		Candidates: true,
		Plan:       w.planUser,
		Backlog:    w.backlog,
		Waiting:    w.waiting,
		Actions: map[string]string{
			"migrated_users": "migrated_users", "deferred_users": "deferred_users",
			"failed_users": "failed_users", "moved_rows": "moved", "nullified_rows": "nullified",
			"deleted_rows": "deleted",
		},
		FailureCounts: []string{"failed_users"},
	}, nil, nil
}

// missing returns what main's schema is missing for the queue of users, or "".
func (w *worker) missing(ctx context.Context) (string, error) {
	c, err := w.Main.Schema.Tables(ctx, gitlab.GhostTables())
	if err != nil {
		return "", err
	}
	_, missing := w.Main.Ghosts.Queue(ctx, c)
	return missing, nil
}

// backlog reads the figures of the queue within the limits of backlog queries. A database without
// a usable queue has a backlog of 0.
func (w *worker) backlog(ctx context.Context, d *repo.Database) (control.Backlog, string, error) {
	c, err := d.Schema.Tables(ctx, gitlab.GhostTables())
	if err != nil {
		return control.Backlog{}, "", err
	}
	queue, missing := d.Ghosts.Queue(ctx, c)
	if missing != "" {
		return control.Backlog{}, "", nil
	}
	backlog, err := d.Ghosts.GhostBacklog(ctx, queue, run.BacklogLimits())
	return backlog, "", err
}

// waiting lists the first 100 users of the queue: the refused ones if dead, else the postponed
// ones. Without a usable queue the list is empty.
func (w *worker) waiting(
	ctx context.Context, d *repo.Database, dead bool,
) ([]jobqueue.Waiting, error) {
	c, err := d.Schema.Tables(ctx, gitlab.GhostTables())
	if err != nil {
		return nil, err
	}
	queue, missing := d.Ghosts.Queue(ctx, c)
	if missing != "" {
		return nil, nil
	}
	return d.Ghosts.WaitingGhosts(ctx, queue, dead, run.BacklogLimits())
}

// workerRun is one run of the worker.
type workerRun struct {
	*worker
	x          *run.Execution
	references *references
	// seen are the rows that a dry run has counted as deleted, by database.
	seen map[*repo.Database]bulk.Seen
	// plan is the plan to count for. nil means none.
	plan *plan.Plan

	// Numbers of users, by what the run did with them.
	migrated, deferred, failed, protected int
	// keptRows is the number of queue rows that keep their state because of keptBy, the last cause.
	keptRows int
	keptBy   *repo.ProtectedError
	// stopped is the limit that ended the run before all rows were worked, or "".
	stopped string
}

// work migrates up to config.Limit due users. It reports the end of the run also if a stop or a
// limit ends the run early.
func (w *worker) work(ctx context.Context, x *run.Execution) error {
	// 1. Read the references to users in all databases.
	lists, err := newReferences(ctx, x.Log, w.Databases)
	if err != nil {
		return err
	}
	// One more than the limit, to detect remaining rows.
	due, err := x.Database.Ghosts.DueMigrations(
		ctx, lists.queue, x.Now(), w.config.Limit+1, run.ReadLimits())
	if err != nil {
		return err
	}
	// 2. Migrate the users, one after the other.
	r := &workerRun{worker: w, x: x, references: lists, seen: map[*repo.Database]bulk.Seen{}}
	err = r.migrateAll(ctx, due[:min(len(due), w.config.Limit)])
	if err != nil && !fault.EndsEarly(err) {
		return err
	}
	if err == nil && len(due) > w.config.Limit && r.stopped == "" {
		r.stopped = "limit reached: workers.ghost_user_migration.limit"
	}
	// 3. Report the outcome. Warnings follow only a complete run that is no dry run.
	r.reportEnd()
	if err == nil && !x.DryRun {
		r.warn(ctx)
	}
	return err
}

// migrateAll works the rows in order until the time limit.
func (r *workerRun) migrateAll(ctx context.Context, due []gitlab.GhostMigration) error {
	for i, m := range due {
		if r.x.Left() <= 0 {
			r.stopped = "limit reached: max_runtime"
			r.x.CandidatesPartial()
			return nil
		}
		if err := r.x.Stopped(); err != nil {
			return err
		}
		if !r.x.MayTouch(control.KindUser, m.UserID, run.ActionDelete) {
			continue
		}
		if err := r.migrate(ctx, m, i < len(due)-1); err != nil {
			return err
		}
	}
	return nil
}

// reportEnd records the remaining rows, and why they remain.
func (r *workerRun) reportEnd() {
	var why []string
	if r.stopped != "" {
		why = append(why, r.stopped)
	}
	if r.deferred > 0 {
		why = append(why, format.Pluralize(r.deferred, "user")+" deferred")
	}
	if r.protected > 0 {
		why = append(why, format.Pluralize(r.protected, "protected user")+" kept")
	}
	if r.keptRows > 0 {
		why = append(why, format.Pluralize(r.keptRows, "queue row")+" kept: "+r.keptBy.Error())
	}
	if r.failed > 0 {
		why = append(why, format.Pluralize(r.failed, "user")+" failed")
	}
	reason := strings.Join(why, "; ")
	switch {
	case r.stopped != "":
		r.x.Limit(r.stopped, reason)
	case r.deferred > 0:
		r.x.Limit(run.AllSeen+", "+format.Pluralize(r.deferred, "user")+" deferred", reason)
	default:
		r.x.Report(func(record *run.Run) { record.Reason = reason })
	}
}

// The thresholds of the warnings at the end of a run, as in the shipped alert rules.
const (
	manyPending       = 1000
	manyFailedPercent = 10
)

// warn logs exceeded thresholds. The work is done by then: a backlog that cannot be read is no
// failure of the run.
func (r *workerRun) warn(ctx context.Context) {
	all := r.migrated + r.deferred + r.protected + r.failed
	if r.failed*100 > manyFailedPercent*all {
		r.x.Log.WarnContext(ctx, "many user deletions failed",
			"failed_users", r.failed, "users", all, "threshold_percent", manyFailedPercent)
	}
	backlog, err := r.x.Database.Ghosts.GhostBacklog(ctx, r.references.queue, run.BacklogLimits())
	switch {
	case err != nil:
		r.x.Log.WarnContext(ctx, "backlog not read", "error", err)
	case backlog.Pending > manyPending:
		r.x.Log.WarnContext(ctx, "many users pending",
			"pending", backlog.Pending, "threshold", manyPending)
	}
}
