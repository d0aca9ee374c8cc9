package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/robfig/cron/v3"

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
	// Schedule is a cron expression of five fields, in UTC.
	Schedule string `key:"schedule"`
	// Enabled lets the schedule start runs. Requests start them even if it is false.
	Enabled *bool `key:"enabled" default:"true"`
	// CatchUp makes up by one run for fires that were missed.
	CatchUp *bool `key:"catch_up" default:"false"`
}

// Check refuses a schedule that is none. An empty one stands for the default.
func (WorkerConfig) Check(key, text string) error {
	if key != "schedule" || text == "" {
		return nil
	}
	if _, err := ParseSchedule(text); err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	return nil
}

// DoneCounts are the counts that together say how many of the things that are due a run has dealt
// with, in whatever way: clients show its progress by them. None here: a worker's own settings say.
func (WorkerConfig) DoneCounts() []string { return nil }

// Disabled reports whether the worker is switched off.
func (c WorkerConfig) Disabled() bool { return c.Enabled != nil && !*c.Enabled }

// Deps are what workers and their jobs are made with.
type Deps struct {
	Main *repo.Database
	// Databases in the order of the rotation, main first.
	Databases []*repo.Database
	// Queue takes deferred jobs; nil: there is none.
	Queue  jobqueue.JobQueue
	Logger *slog.Logger
	// RunBatch is [Runner.RunBatch].
	RunBatch func(context.Context, Request) (Run, error)
	// LooseForeignKeys returns the definitions in use; nil: none are configured. They change when the
	// file is read again, so a run calls it once.
	LooseForeignKeys func() []lfk.LooseForeignKey
}

// Worker is one kind of maintenance work, as a value. What it does is in its package; how a run of it
// starts is in start.go, the loop around it in execute.go.
type Worker struct {
	Name   string
	Config WorkerConfig
	// Databases a run may work on, in the order of the rotation, with a lease each; nil: main, with one lease.
	Databases []*repo.Database
	// Due reports whether there is something to do in a database, for a worker each of whose fires works all databases in which
	// there is; nil: a fire works one.
	Due func(ctx context.Context, database *repo.Database) bool
	// UnscheduledRemark says which databases no fire works, and what to do; "": none.
	UnscheduledRemark string
	// Fences are the other databases that it writes to: a run takes its fence rows there, in this order, at its start.
	Fences []*repo.Database
	// Missing says what keeps it from running; "" when nothing does.
	Missing func(ctx context.Context) (string, error)
	// Uses are what its runs do with the application's tables of a database, for caretaker doctor; nil: nothing.
	Uses func(database string) []catalog.Use
	// MaxRuntime is how long a run on a database may take, by the flags of this moment, and whether this is turbo mode.
	// A worker without a time limit leaves it out.
	MaxRuntime func(database string, flags map[string]bool) (limit time.Duration, turbo bool)
	// NoTimeLimit workers have no limit of their own: their lease lasts [DefaultRunTime] and the margin, and is renewed.
	NoTimeLimit bool
	// Work does one run, or counts what it would do if x.DryRun. Its error ends the run as [conclude] says.
	Work func(ctx context.Context, x *Execution) error
	// Backlog counts what waits in a database, and may add a remark for condition_detail.
	Backlog func(ctx context.Context, database *repo.Database) (control.Backlog, string, error)
	// Waiting lists the first of what the backlog of a database counts as dead, or as deferred; nil: it
	// has no list.
	Waiting func(ctx context.Context, database *repo.Database, dead bool) ([]jobqueue.Waiting, error)
	// Abandoned says that its last run died and left work that must not wait for the schedule; nil: none does.
	Abandoned func(ctx context.Context) (bool, error)
	// Actions are the labels of maintenance_rows_total by the keys of counts.
	Actions map[string]string
	// FailureCounts are the counts of what a run that succeeds could not do: its reason says why.
	FailureCounts []string
	// StatusReason is what of such a reason the status repeats; nil: all.
	StatusReason func(reason string) string
	// Flags are the feature flags that its runs read.
	Flags []string
	// JobReason is that of the jobs it queues of a kind that several workers queue: they wait with its
	// pause. "": it queues none.
	JobReason string
	// Candidates says that its dry runs note what a run would work on, by [Execution.Candidate].
	Candidates bool
	// Plan adds to a plan what a run would do with its target; nil: nothing.
	Plan Planner
	// Optional says that it is not shown among all workers before it is enabled somewhere, or has run.
	Optional bool
	// Sli says that its runs are counted as service levels.
	Sli bool
}

// LeaseName is the worker's name, with the database where there is one lease a database.
func (w *Worker) LeaseName(database *repo.Database) string {
	if w.Databases == nil {
		return w.Name
	}
	return w.Name + "/" + database.Name
}

// ParseSchedule reads a cron expression of five fields: minute, hour, day of the month, month and day
// of the week. Times are UTC. The error text continues after the expression.
func ParseSchedule(expression string) (cron.Schedule, error) {
	schedule, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("CRON_TZ=UTC " + expression)
	if err != nil {
		return nil, fmt.Errorf("is no cron expression of five fields such as %q: %w", "0 2 * * *", err)
	}
	if schedule.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("never fires: there is no such day in the next five years")
	}
	return schedule, nil
}

// DefaultRunTime is what the lease of a worker without a time limit is counted from, and the limit of its dry runs.
const DefaultRunTime = 60 * time.Second

// noTimeLimit is MaxRuntime of workers without a time limit.
func noTimeLimit(string, map[string]bool) (time.Duration, bool) { return DefaultRunTime, false }

// LeaseMargin is how much longer a lease lasts than the longest run.
const LeaseMargin = 10 * time.Second

// renewals is how often a lease is renewed in the time it holds.
const renewals = 3

// Database chooses where a run works: the one asked for, or the one whose turn it is in this minute.
func (r *Runner) Database(w *Worker, asked string, minute time.Time) (*repo.Database, error) {
	if w.Databases == nil {
		if asked != "" {
			return nil, &fault.InvalidArgumentError{Field: "database", Description: fmt.Sprintf("%s cannot be limited to one database: leave it empty", w.Name)}
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

// warnOfShortRuns: a run of less than a second does little more than begin and end.
func warnOfShortRuns(logger *slog.Logger, w *Worker) {
	if limit, _ := w.MaxRuntime(MainDatabase, nil); limit < time.Second {
		logger.Warn("max_runtime is less than a second: too short for useful runs, use several seconds", "worker", w.Name, "max_runtime", limit)
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

// validate checks what every worker's configuration has.
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

// BacklogLimits bound the reads of a backlog, and of what waits in it.
func BacklogLimits() fencing.Limits {
	return fencing.Limits{Statement: BacklogPatience, Lock: time.Second}
}

// Rotation is whose turn it is in a minute, out of n databases.
func Rotation(at time.Time, n int) int {
	turn := int(at.Unix() / 60 % int64(n))
	return (turn + n) % n // before 1970 the remainder is negative
}

// DuePatience is how long a database may take to say whether it has records due.
const DuePatience = 3 * time.Second

// DatabaseNames are the names of databases, as [format.List] lists them.
func DatabaseNames(databases []*repo.Database) string {
	names := make([]string, len(databases))
	for i, d := range databases {
		names[i] = d.Name
	}
	return format.List(names)
}

// GitLabs are those of the databases that GitLab has, main, ci and sec, in the same order. Workers
// of its tables look into no others: without a table in ci or sec they look for it in main.
func GitLabs(databases []*repo.Database) []*repo.Database {
	return slices.DeleteFunc(slices.Clone(databases), func(d *repo.Database) bool {
		return d.Name != MainDatabase && d.Name != "ci" && d.Name != "sec"
	})
}

// InMain are uses of the tables of main alone, as [Worker.Uses].
func InMain(uses []catalog.Use) func(database string) []catalog.Use {
	return func(database string) []catalog.Use {
		if database != MainDatabase {
			return nil
		}
		return uses
	}
}

// DatabaseLabel is Run.database: empty for workers that have no turn by database.
func DatabaseLabel(w *Worker, d *repo.Database) string {
	if w.Databases == nil {
		return ""
	}
	return d.Name
}

// Next is the next fire of the worker's schedule.
func (w *Worker) Next(after time.Time) time.Time {
	schedule, err := ParseSchedule(w.Config.Schedule)
	if err != nil {
		return time.Time{}
	}
	return schedule.Next(after.UTC())
}

// LeaseDatabases are the databases in which the worker has leases and backlogs.
func (w *Worker) LeaseDatabases(r *Runner) []*repo.Database {
	if w.Databases == nil {
		return []*repo.Database{r.Main}
	}
	return w.Databases
}

// CatchesUp reports whether one run makes up for fires that were missed: workers.<worker>.catch_up.
func (w *Worker) CatchesUp() bool { return w.Config.CatchUp != nil && *w.Config.CatchUp }

// UnknownDatabase is the error that a name is none of these databases'.
func UnknownDatabase(name string, all []*repo.Database) error {
	text := fmt.Sprintf("unknown database %q: configured are %s", name, DatabaseNames(all))
	return fault.Unknown(fault.ErrUnknownDatabase, "database", name, text)
}
