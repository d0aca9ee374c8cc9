package service

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// Types of package repo that callers see.
type (
	// Run is one run of a worker.
	Run = repo.Run
	// Lease makes sure that two runs never do the same work.
	Lease = repo.Lease
	// Pause keeps a worker from running.
	Pause = repo.Pause
)

// RunnerConfig is what a Runner needs. Databases is required, with main first.
type RunnerConfig struct {
	// Databases in the order of the rotation: main, ci, sec.
	Databases []*repo.Database
	// Replica names this process in leases and runs; empty: a [ReplicaName].
	Replica string
	// HistoryKeep is how long runs and fires are kept.
	HistoryKeep time.Duration
	// Load says when runs and jobs spare the databases.
	Load LoadConfig
	// Logger gets one line a run; nil: slog.Default.
	Logger *slog.Logger
}

// Runner runs the workers. Its methods may be called from any goroutine.
type Runner struct {
	main      *repo.Database
	databases []*repo.Database
	replica   string
	logger    *slog.Logger
	tracer    trace.Tracer
	metrics   *metrics
	workers   []*worker
	pauses    *recentPauses
	loads     *loads
	backlogs  *backlogs
	leftovers leftovers

	mu      sync.Mutex
	idle    *sync.Cond
	active  map[*execution]struct{}
	stopped bool
	// prunedAt is when history older than historyKeep was last pruned.
	prunedAt    time.Time
	historyKeep time.Duration
	// stopping closes with stopped; background is what Shutdown waits for besides the runs.
	stopping   chan struct{}
	background sync.WaitGroup
}

// newRunner does not connect; an error names the configuration key that is wrong.
func newRunner(c RunnerConfig) (*Runner, error) {
	metrics, err := newMetrics()
	if err != nil {
		return nil, err
	}
	r := &Runner{
		main: c.Databases[0], databases: c.Databases, replica: c.Replica, logger: c.Logger, metrics: metrics,
		tracer: otel.Tracer("github.com/caretaker-go/caretaker/service"),
		pauses: &recentPauses{main: c.Databases[0]}, backlogs: newBacklogs(),
		historyKeep: c.HistoryKeep,
		active:      map[*execution]struct{}{}, stopping: make(chan struct{}),
	}
	r.idle = sync.NewCond(&r.mu)
	if r.replica == "" {
		r.replica = ReplicaName()
	}
	if r.logger == nil {
		r.logger = slog.Default()
	}
	r.loads = newLoads(c.Load, r.logger)
	return r, nil
}

// add puts a worker on the list; an error names the configuration key that is wrong.
func (r *Runner) add(w *worker) error {
	if err := w.validate(); err != nil {
		return err
	}
	r.warnOfShortRuns(w)
	w.missing = orNoSchema(w.missing)
	r.workers = append(r.workers, w)
	return nil
}

// worker finds a worker by its name.
func (r *Runner) worker(name string) (*worker, error) {
	if name == "" {
		return nil, &InvalidArgumentError{Field: "worker", Description: "is required"}
	}
	for _, w := range r.workers {
		if w.name == name {
			return w, nil
		}
	}
	return nil, r.unknownWorker(name)
}

// Shutdown takes no new runs, stops those at work after the statement in flight, and waits until their leases are free
// and their ends recorded, or ctx ends.
func (r *Runner) Shutdown(ctx context.Context) error {
	r.mu.Lock()
	if !r.stopped {
		r.stopped = true
		close(r.stopping)
	}
	for x := range r.active {
		x.halt(errShutdown)
	}
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		r.mu.Lock()
		for len(r.active) > 0 {
			r.idle.Wait()
		}
		r.mu.Unlock()
		r.background.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("runs still at work: %w", context.Cause(ctx))
	}
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
