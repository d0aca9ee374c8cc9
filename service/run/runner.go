package run

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// Types of package repo that callers use.
type (
	// Run is one run of a worker.
	Run = control.Run
	// TableCount has the rows of a table that a run has changed.
	TableCount = jobqueue.TableCount
	// Lease ensures that two runs never do the same work.
	Lease = fencing.Lease
	// Pause keeps a worker from running.
	Pause = control.Pause
)

// Config configures a Runner. Databases is required, with main first.
type Config struct {
	// Databases in the order of the rotation: main, ci, sec, then the others by name.
	Databases []*repo.Database
	// Replica names this process in leases and runs. Empty means a [ReplicaName].
	Replica string
	// HistoryKeep is how long runs and fires are kept.
	HistoryKeep time.Duration
	// ReceiptsKeep is how long receipts are kept. 0 means permanently.
	ReceiptsKeep time.Duration
	// Load has the load limits of a database at which runs and jobs slow down.
	Load load.Config
	// Logger gets one line per run. nil means slog.Default.
	Logger *slog.Logger
	// LeftOut are workers that are not used here. A request for one gets the reason.
	LeftOut []string
}

// Runner runs the workers. Its methods may be called from any goroutine.
type Runner struct {
	Main       *repo.Database
	Databases  []*repo.Database
	Replica    string
	Logger     *slog.Logger
	Tracer     trace.Tracer
	Metrics    *Metrics
	Workers    []*Worker
	LeftOut    []string
	Pauses     *recentPauses
	Loads      *load.Loads
	Backlogs   *backlogs
	unreleased unreleased

	// Active has the runs of this process, History deletes the old runs of all processes.
	Active  *active
	History *history
}

// New makes a Runner without connecting. An error names the wrong configuration key.
func New(c Config) (*Runner, error) {
	metrics, err := newMetrics()
	if err != nil {
		return nil, err
	}
	r := &Runner{
		Main: c.Databases[0], Databases: c.Databases, Replica: c.Replica, Logger: c.Logger, Metrics: metrics,
		Tracer: otel.Tracer("github.com/caretaker-go/caretaker/service"),
		Pauses: &recentPauses{main: c.Databases[0]}, Backlogs: newBacklogs(),
		Active: newActive(), LeftOut: c.LeftOut,
	}
	if r.Replica == "" {
		r.Replica = ReplicaName()
	}
	if r.Logger == nil {
		r.Logger = slog.Default()
	}
	r.Loads = load.New(c.Load, r.Logger)
	r.History = &history{
		databases: c.Databases, active: r.Active, logger: r.Logger,
		Keep: c.HistoryKeep, receiptsKeep: c.ReceiptsKeep,
	}
	return r, nil
}

// Add adds a worker to the list. An error names the wrong configuration key.
func (r *Runner) Add(w *Worker) error {
	if err := w.validate(); err != nil {
		return err
	}
	if w.NoTimeLimit {
		w.MaxRuntime = noTimeLimit
	}
	warnOfShortRuns(r.Logger, w)
	w.Missing = orNoSchema(w.Missing)
	r.Workers = append(r.Workers, w)
	return nil
}

// Worker returns the worker with a name.
func (r *Runner) Worker(name string) (*Worker, error) {
	if name == "" {
		return nil, &fault.InvalidArgumentError{Field: "worker", Description: "is required"}
	}
	for _, w := range r.Workers {
		if w.Name == name {
			return w, nil
		}
	}
	return nil, unknownWorker(r, name)
}

// ReplicaName returns a name for this process: host, process id and a random part. So a restarted
// process is another holder of leases.
func ReplicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// unknownWorker returns an error that lists the known names.
func unknownWorker(r *Runner, name string) error {
	names := make([]string, 0, len(r.Workers))
	for _, w := range r.Workers {
		names = append(names, w.Name)
	}
	advice := "known workers are " + strings.Join(names, ", ")
	if slices.Contains(r.LeftOut, name) {
		advice = "set `use: gitlab` in the configuration and run `caretaker migrate`, or use one of " +
			strings.Join(names, ", ")
	}
	return fault.Unknown(fault.ErrUnknownWorker, "worker", name,
		fmt.Sprintf("unknown worker %q: %s%s", name, advice, format.DidYouMean(name, names)))
}
