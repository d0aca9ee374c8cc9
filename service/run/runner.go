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

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// Types of package repo that callers see.
type (
	// Run is one run of a worker.
	Run = control.Run
	// Lease makes sure that two runs never do the same work.
	Lease = fencing.Lease
	// Pause keeps a worker from running.
	Pause = control.Pause
)

// Config is what a Runner needs. Databases is required, with main first.
type Config struct {
	// Databases in the order of the rotation: main, ci, sec, then the others by name.
	Databases []*repo.Database
	// Replica names this process in leases and runs; empty: a [ReplicaName].
	Replica string
	// HistoryKeep is how long runs and fires are kept.
	HistoryKeep time.Duration
	// ReceiptsKeep is how long receipts are kept; 0: for good.
	ReceiptsKeep time.Duration
	// Load says from which load of a database on runs and jobs slow down.
	Load load.Config
	// Logger gets one line a run; nil: slog.Default.
	Logger *slog.Logger
	// LeftOut are workers that are not used here: whoever asks for one is told why.
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

	// Active are the runs of this process, History deletes the old ones of all.
	Active  *active
	History *history
}

// New does not connect; an error names the configuration key that is wrong.
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

// Add puts a worker on the list; an error names the configuration key that is wrong.
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

// Worker finds a worker by its name.
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

// ReplicaName is a name for this process: host, process id and a random part, so that a process that comes back is another
// holder of leases.
func ReplicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// unknownWorker lists the names there are.
func unknownWorker(r *Runner, name string) error {
	names := make([]string, 0, len(r.Workers))
	for _, w := range r.Workers {
		names = append(names, w.Name)
	}
	advice := "there are " + strings.Join(names, ", ")
	if slices.Contains(r.LeftOut, name) {
		advice = "it is for GitLab's tables, which use: loose_foreign_keys leaves out: set use: gitlab in " +
			"the configuration and run caretaker migrate, or take one of: " + strings.Join(names, ", ")
	}
	return fault.Unknown(fault.ErrUnknownWorker, "worker", name, fmt.Sprintf("unknown worker %q: %s", name, advice))
}
