package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// WorkerConfig is what every worker's configuration has. The tag of the embedding has the worker's defaults.
type WorkerConfig struct {
	// Schedule is a cron expression of five fields in UTC.
	Schedule string `key:"schedule"`
	// Enabled enables scheduled runs. Manual runs are always possible.
	Enabled *bool `key:"enabled" default:"true"`
	// CatchUp starts one run for all schedule ticks that were missed during a downtime.
	CatchUp *bool `key:"catch_up" default:"false"`
}

// Check returns an error for an invalid schedule. An empty one stands for the default.
func (WorkerConfig) Check(key, text string) error {
	if key != "schedule" || text == "" {
		return nil
	}
	if _, err := ParseSchedule(text); err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	return nil
}

// DoneCounts are the counts that together are the number of due items that a run has handled, with
// any outcome. Clients show its progress by them. None here: a worker's own settings define them.
func (WorkerConfig) DoneCounts() []string { return nil }

// Disabled reports whether the worker is switched off.
func (c WorkerConfig) Disabled() bool { return c.Enabled != nil && !*c.Enabled }

// Deps are the dependencies of workers and their jobs.
type Deps struct {
	Main *repo.Database
	// Databases in the order of the rotation, main first.
	Databases []*repo.Database
	// Queue takes deferred jobs. nil means no queue.
	Queue  jobqueue.Queue
	Logger *slog.Logger
	// RunBatch is [Runner.RunBatch].
	RunBatch func(context.Context, Request) (Run, error)
	// LooseForeignKeys returns the definitions in use. nil means none are configured. They change when
	// the file is reloaded, so a run calls it once.
	LooseForeignKeys func() []lfk.Definition
}

// Worker is one kind of maintenance work, as a value. Its package defines what it does. start.go
// starts its runs, execute.go has the loop around it.
type Worker struct {
	Name   string
	Config WorkerConfig
	// Databases that a run may work on, in the order of the rotation, each with a lease. nil means
	// main, with one lease.
	Databases []*repo.Database
	// Due reports whether a database has due work. A fire of such a worker works all databases that
	// have. nil means a fire works one.
	Due func(ctx context.Context, database *repo.Database) bool
	// UnscheduledRemark names the databases that no fire works, and what to do. "" means none.
	UnscheduledRemark string
	// Fences are the other databases that it writes to. A run takes its fence rows there, in this
	// order, at its start.
	Fences []*repo.Database
	// Missing returns what keeps it from running. "" means nothing.
	Missing func(ctx context.Context) (string, error)
	// Uses returns what its runs do with the application's tables of a database, for caretaker doctor.
	// nil means nothing.
	Uses func(database string) []catalog.Use
	// MaxRuntime returns how long a run on a database may take, by the current flags, and whether
	// turbo mode is on. A worker without a time limit leaves it out.
	MaxRuntime func(database string, flags map[string]bool) (limit time.Duration, turbo bool)
	// NoTimeLimit workers have no limit of their own. Their lease lasts [DefaultRunTime] plus
	// [LeaseMargin], and is renewed.
	NoTimeLimit bool
	// Work does a run, or counts its effects if x.DryRun. Its error ends the run as in [conclude].
	Work func(ctx context.Context, x *Execution) error
	// Backlog counts the pending work in a database, and may add a remark for condition_detail.
	Backlog func(ctx context.Context, database *repo.Database) (control.Backlog, string, error)
	// Waiting lists the first dead or deferred items of a database's backlog. nil means no list.
	Waiting func(ctx context.Context, database *repo.Database, dead bool) ([]jobqueue.Waiting, error)
	// Abandoned reports whether its last run died and left work that must not wait for the schedule.
	// nil means never.
	Abandoned func(ctx context.Context) (bool, error)
	// Actions maps the keys of counts to the labels of maintenance_rows_total.
	Actions map[string]string
	// FailureCounts are the counts of failures in a run that succeeds: its reason has the cause.
	FailureCounts []string
	// StatusReason returns the part of such a reason that the status repeats. nil means all.
	StatusReason func(reason string) string
	// Flags are the feature flags that its runs read.
	Flags []string
	// JobReason is the reason of its jobs of a kind that several workers queue: they wait with its
	// pause. "": it queues none.
	JobReason string
	// Candidates: its dry runs record what a run would process, by [Execution.Candidate].
	Candidates bool
	// Plan adds to a plan what a run would do with its target. nil means nothing.
	Plan Planner
	// Optional: it is not shown among all workers before it is enabled on a server, or has run.
	Optional bool
	// Sli: its runs count as service levels.
	Sli bool
}

// LeaseName returns the worker's name, with the database if each database has a lease.
func (w *Worker) LeaseName(database *repo.Database) string {
	if w.Databases == nil {
		return w.Name
	}
	return w.Name + "/" + database.Name
}

// ParseSchedule reads a cron expression of five fields: minute, hour, day of the month, month and
// day of the week. Times are UTC. The error text continues after the expression.
func ParseSchedule(expression string) (cron.Schedule, error) {
	schedule, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("CRON_TZ=UTC " + expression)
	if err != nil {
		return nil, fmt.Errorf("is not a cron expression with five fields, such as %q: %w", "0 2 * * "+
			"*", err)
	}
	if schedule.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("does not fire within five years: use a different schedule")
	}
	return schedule, nil
}

// DefaultRunTime determines the lease of a worker without a time limit, and limits its dry runs.
const DefaultRunTime = 60 * time.Second

// noTimeLimit is MaxRuntime of workers without a time limit.
func noTimeLimit(string, map[string]bool) (time.Duration, bool) { return DefaultRunTime, false }

// LeaseMargin is how much longer a lease lasts than the longest run.
const LeaseMargin = 10 * time.Second

// renewals is the number of renewals during the time to live of a lease.
const renewals = 3

// Database returns a run's database: the requested one, or the one whose turn it is this minute.
func (r *Runner) Database(w *Worker, asked string, minute time.Time) (*repo.Database, error) {
	if w.Databases == nil {
		if asked != "" {
			return nil, &fault.InvalidArgumentError{Field: "database", Description: fmt.Sprintf("%s cannot be "+
				"limited to one database: omit the database name", w.Name)}
		}
		return r.Main, nil
	}
	if asked == "" {
		return w.Databases[Rotation(minute, len(w.Databases))], nil
	}
	for _, d := range w.Databases {
		if d.Name == asked {
			return d, nil
		}
	}
	return nil, UnknownDatabase(asked, w.Databases)
}

// warnOfShortRuns warns of time limits below 1 s: such a run does little more than start and end.
func warnOfShortRuns(logger *slog.Logger, w *Worker) {
	if limit, _ := w.MaxRuntime(MainDatabase, nil); limit < time.Second {
		logger.Warn("max_runtime is less than a second", "worker", w.Name, "max_runtime", limit)
	}
}

// orNoSchema reports a missing application schema as Missing.
func orNoSchema(missing func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		what, err := missing(ctx)
		if none, ok := errors.AsType[*dberr.NoSchemaError](err); ok {
			return none.Error(), nil
		}
		return what, err
	}
}

// validate checks the configuration that every worker has.
func (w *Worker) validate() error {
	if _, err := ParseSchedule(w.Config.Schedule); err != nil {
		return fmt.Errorf("workers.%s.schedule: %q %w", w.Name, w.Config.Schedule, err)
	}
	return nil
}

// ReadLimits bound the reads of the queue and the catalogue.
func ReadLimits() fencing.Limits {
	return fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
}

// BacklogLimits bound the reads of a backlog, and of its dead and deferred items.
func BacklogLimits() fencing.Limits {
	return fencing.Limits{Statement: BacklogTimeout, Lock: time.Second}
}

// Rotation returns whose turn it is in a minute, out of n databases.
func Rotation(at time.Time, n int) int {
	turn := int(at.Unix() / 60 % int64(n))
	return (turn + n) % n // before 1970 the remainder is negative
}

// DueTimeout is the timeout for a database to report whether it has due records.
const DueTimeout = 3 * time.Second

// DatabaseNames returns the names of databases, formatted by [format.List].
func DatabaseNames(databases []*repo.Database) string {
	names := make([]string, len(databases))
	for i, d := range databases {
		names[i] = d.Name
	}
	return format.List(names)
}

// GitLabs returns the databases of GitLab: main, ci and sec, in that order. Workers of its tables
// use no others: for a table that is not in ci or sec they use main.
func GitLabs(databases []*repo.Database) []*repo.Database {
	return slices.DeleteFunc(slices.Clone(databases), func(d *repo.Database) bool {
		return d.Name != MainDatabase && d.Name != "ci" && d.Name != "sec"
	})
}

// InMain returns uses of tables in main alone, as [Worker.Uses].
func InMain(uses []catalog.Use) func(database string) []catalog.Use {
	return func(database string) []catalog.Use {
		if database != MainDatabase {
			return nil
		}
		return uses
	}
}

// DatabaseLabel returns Run.database: empty for workers without a turn by database.
func DatabaseLabel(w *Worker, d *repo.Database) string {
	if w.Databases == nil {
		return ""
	}
	return d.Name
}

// Next returns the next fire of the worker's schedule.
func (w *Worker) Next(after time.Time) time.Time {
	schedule, err := ParseSchedule(w.Config.Schedule)
	if err != nil {
		return time.Time{}
	}
	return schedule.Next(after.UTC())
}

// LeaseDatabases returns the databases in which the worker has leases and backlogs.
func (w *Worker) LeaseDatabases(r *Runner) []*repo.Database {
	if w.Databases == nil {
		return []*repo.Database{r.Main}
	}
	return w.Databases
}

const (
	// parallelDatabases is the number of databases that a call reads at the same time.
	parallelDatabases = 32
	// databaseTimeout limits the reading of one of them.
	databaseTimeout = 3 * time.Second
)

// EachDatabase calls read with the position of each database, several at the same time. Each has a
// timeout of its own, so that one that does not answer delays no other.
func EachDatabase(
	ctx context.Context, all []*repo.Database, read func(ctx context.Context, i int, d *repo.Database),
) {
	var parallel errgroup.Group
	parallel.SetLimit(parallelDatabases)
	for i, d := range all {
		parallel.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, databaseTimeout, dberr.ErrUnreachable)
			defer cancel()
			read(ctx, i, d)
			return nil
		})
	}
	_ = parallel.Wait()
}

// CatchesUp reports whether one run makes up for missed fires: workers.<worker>.catch_up.
func (w *Worker) CatchesUp() bool { return w.Config.CatchUp != nil && *w.Config.CatchUp }

// UnknownDatabase returns the error for a name that none of these databases has.
func UnknownDatabase(name string, all []*repo.Database) error {
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	return fault.Unknown(fault.ErrUnknownDatabase, "database", name, fmt.Sprintf("unknown database %q: the configured "+
		"databases are %s%s", name, DatabaseNames(all), format.DidYouMean(name, names)))
}
