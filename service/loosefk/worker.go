package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "loose_foreign_keys_cleanup"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"* * * * *"`
	// DefinitionsFile is the path of the definitions file; without one the worker is not configured.
	DefinitionsFile string `key:"definitions"`
	// Definitions say what becomes of the children of deleted parents; nil: what the file says.
	Definitions *Definitions
	// Rotation is minute, a fire works the database whose turn it is, or all, it works each that has records due.
	Rotation string `key:"rotation" default:"minute" of:"minute all"`
	// BatchSize is how many records are worked at a time.
	BatchSize int `key:"batch_size" default:"500" max:"10000"`
	// MaxDeletes is how many rows a run may delete. Turbo mode: 200000, or this if it is higher.
	MaxDeletes int64 `key:"max_deletes" default:"100000" max:"100000000"`
	// MaxUpdates is how many rows a run may nullify or mark. Turbo mode: 150000, or this if it is higher.
	MaxUpdates int64 `key:"max_updates" default:"50000" max:"100000000"`
	// MaxRuntime is how long a run may take; under a second the log warns at the start. Turbo mode: 45s, or this if it is
	// longer.
	MaxRuntime time.Duration `key:"max_runtime" default:"30s" max:"24h"`
}

// looseForeignKeys is the worker; the package comment is its design.
type looseForeignKeys struct {
	run.Deps
	config  Config
	sizes   *bulk.StatementSizes
	failing *failing

	mu sync.Mutex
	// absent are the child tables that hold records, as the last run of this process has found; looked: there was one.
	absent []string
	looked bool
}

// New makes the worker, with the kinds of job that belong to it. It does not connect; an error names the
// configuration key that is wrong.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	if config.Definitions == nil && config.DefinitionsFile != "" {
		var err error
		if config.Definitions, err = LoadDefinitions(config.DefinitionsFile); err != nil {
			return nil, nil, err
		}
	}
	k := &looseForeignKeys{config: config, Deps: d, sizes: bulk.NewStatementSizes(), failing: newFailing()}
	w := &run.Worker{
		Name:       Name,
		Config:     config.WorkerConfig,
		Databases:  d.Databases,
		Missing:    k.missing,
		MaxRuntime: k.maxRuntime,
		Work:       k.work,
		Backlog:    k.backlog,
		Sli:        true,
		Actions: map[string]string{
			"deleted_rows": "deleted", "updated_rows": "updated", "processed_records": "processed",
			"incremented_records": "incremented", "rescheduled_records": "rescheduled", "dead_records": "dead",
		},
	}
	if config.Rotation == RotationAll {
		w.Due = k.due
	} else {
		w.Starved = k.warnOfStarvation()
	}
	return w, nil, nil
}

// TurboFlag is the feature flag of a database's turbo mode.
func TurboFlag(database string) string { return "loose_foreign_keys_turbo_mode_" + database }

func (k *looseForeignKeys) maxRuntime(database string, flags map[string]bool) (time.Duration, bool) {
	if flags[TurboFlag(database)] {
		return max(k.config.MaxRuntime, 45*time.Second), true
	}
	return k.config.MaxRuntime, false
}

func (k *looseForeignKeys) maxRows(turbo bool) (deletes, updates int64) {
	if turbo {
		return max(k.config.MaxDeletes, 200_000), max(k.config.MaxUpdates, 150_000)
	}
	return k.config.MaxDeletes, k.config.MaxUpdates
}

func (k *looseForeignKeys) missing(context.Context) (string, error) {
	if k.config.Definitions == nil {
		return "no definitions: set workers.loose_foreign_keys_cleanup.definitions to a file in the format of GitLab's config/gitlab_loose_foreign_keys.yml", nil
	}
	return "", nil
}

// queueWriteLimits bound the writes on the queue: they wait for a lock.
func queueWriteLimits() repo.Limits {
	return repo.Limits{Statement: 2 * time.Second, Lock: bulk.LongLockTime}
}

func (k *looseForeignKeys) work(ctx context.Context, x *run.Execution) error {
	queue, err := x.Database.Queue(ctx)
	if none, is := errors.AsType[*repo.NoSchemaError](err); is {
		return &run.SkippedError{Reason: none.Error()}
	}
	if err != nil {
		return err
	}
	if !queue.Exists {
		return &run.SkippedError{Reason: fmt.Sprintf("database %s has no table loose_foreign_keys_deleted_records: caretaker lfk install --database %s makes it", x.Database.Name, x.Database.Name)}
	}
	if !queue.Partitioned {
		return &run.FailedError{Text: fmt.Sprintf("loose_foreign_keys_deleted_records on %s is not partitioned: caretaker lfk lint says what it should look like", x.Database.Name)}
	}
	if !x.DryRun {
		if queue, err = k.maintainPartitions(ctx, x, queue); err != nil {
			return err
		}
	}
	c, err := k.newCleanup(ctx, x, queue)
	if err != nil {
		return err
	}
	if x.DryRun {
		return c.dryRun(ctx)
	}
	return c.run(ctx)
}

// cleanup is one run of the worker.
type cleanup struct {
	*looseForeignKeys
	x        *run.Execution
	queue    repo.Queue
	budget   *budget
	loader   *loader
	failures *failures
	limit    limitReached
	locks    locks
	held     held
	// noted: the run is traced, and so are deletions of parents that it may meet.
	noted bool

	downMu sync.Mutex
	// downs are the databases that have stopped answering, or whose fence is held, and why.
	downs map[string]error
}

func (k *looseForeignKeys) newCleanup(ctx context.Context, x *run.Execution, queue repo.Queue) (*cleanup, error) {
	c := &cleanup{looseForeignKeys: k, x: x, queue: queue, failures: newFailures(x, k.failing), downs: map[string]error{}}
	_, turbo := k.maxRuntime(x.Database.Name, x.Flags)
	c.budget = newBudget(k.maxRows(turbo))
	if x.Span.IsRecording() && !x.DryRun {
		noted, err := x.Database.HasRecordTraces(ctx)
		c.noted = noted && err == nil
	}
	plans, err := k.plan(ctx, x, queue)
	if err != nil {
		return nil, err
	}
	limits := run.ReadLimits()
	limits.ReadOnly = x.DryRun
	c.loader = newLoader(x.Database, queue, k.config.BatchSize, plans)
	return c, c.loader.begin(ctx, limits)
}

// inFlight is how many batches are worked side by side.
const inFlight = 2

func (c *cleanup) run(ctx context.Context) error {
	defer c.tellHeld()
	var wait sync.WaitGroup
	errs := make([]error, inFlight)
	for i := range inFlight {
		wait.Go(func() {
			errs[i] = run.Guarded(func() error { return c.drain(ctx, i > 0) })
			if errs[i] != nil {
				c.x.Halt(run.ErrOtherBatch)
			}
		})
	}
	wait.Wait()
	c.tellLocks(ctx)
	c.tellOver(ctx)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !errors.Is(err, run.ErrOtherBatch) }); i >= 0 {
		return c.failures.with(errs[i])
	}
	if reason := c.limit.reason(); reason != "" {
		left, err := c.leftOver(ctx)
		if err != nil {
			return c.failures.with(err)
		}
		if left {
			c.x.Limit(reason, reason)
		}
	}
	return c.failures.err()
}

// drain works batch after batch until nothing is left or a limit is reached. A second loop joins in only while so much
// is left of the limits that it cannot take rows that the batch in hand needs.
func (c *cleanup) drain(ctx context.Context, joining bool) error {
	enough := func() bool {
		return c.limit.reached() || c.x.Stopped() != nil || joining && !c.budget.roomy()
	}
	for !enough() {
		b, err := c.loader.next(ctx, enough)
		if err != nil || b == nil {
			return err
		}
		if err := c.workBatch(ctx, b); err != nil {
			return err
		}
	}
	if c.limit.reached() {
		return nil
	}
	return c.x.Stopped()
}

// checkLimits is asked after every statement.
func (c *cleanup) checkLimits() bool {
	if kind := c.budget.exhausted(); kind != "" {
		c.limit.set("limit reached: " + kind)
	}
	if c.x.Left() <= 0 {
		c.limit.set("limit reached: max_runtime")
	}
	return c.limit.reached()
}

// leftOver says whether a limit left records incomplete, or some that were never tried.
func (c *cleanup) leftOver(ctx context.Context) (bool, error) {
	if c.limit.incomplete() {
		return true, nil
	}
	b, err := c.loader.next(ctx, c.limit.reached)
	return b != nil, err
}

func (k *looseForeignKeys) backlog(ctx context.Context, d *repo.Database) (repo.Backlog, string, error) {
	queue, err := d.QueueShape(ctx)
	if err != nil || !queue.Exists {
		return repo.Backlog{}, "", err
	}
	backlog, err := d.QueueBacklog(ctx, queue, repo.Limits{Statement: run.BacklogPatience, Lock: time.Second})
	backlog.Partitions = queue.Leaves
	if err != nil || k.config.Definitions == nil {
		return backlog, "", err
	}
	// The figures have been read, the remarks are an extra.
	queue, _ = d.Queue(ctx)
	accepted, _ := k.acceptedAbsent(ctx)
	failing, _ := d.FailingRecords(ctx, "", repo.FailingRecord{}, deadPage)
	remarks := append(failingRemark(d, failing), k.absentRemark(d, accepted, failing)...)
	due, _ := d.DueParents(ctx, queue, run.ReadLimits())
	defined := k.defined(accepted)
	due = slices.DeleteFunc(due, func(name string) bool {
		parent, ours := strings.CutPrefix(name, queue.Schema+".")
		return ours && defined[parent]
	})
	if len(due) > 0 {
		remarks = append(remarks, fmt.Sprintf("records on %s of parents without definitions: %s", d.Name, strings.Join(due, ", ")))
	}
	return backlog, strings.Join(remarks, "; "), nil
}
