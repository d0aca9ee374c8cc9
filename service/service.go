package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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

// Config is what a Service needs. Databases is required, with main first; everything else has a working zero value.
type Config struct {
	// Databases in the order of the rotation: main, ci, sec.
	Databases []*repo.Database
	// Replica names this process in leases and runs; empty: a [ReplicaName].
	Replica string
	// SchedulerOff says that nothing starts by itself here; only GetStatus cares.
	SchedulerOff bool
	// Queue takes deferred jobs; nil: workers that queue jobs are not configured.
	Queue repo.JobQueue
	// HistoryKeep is how long runs and fires are kept; 0: 30 days.
	HistoryKeep time.Duration
	// Load says when runs and jobs spare the databases.
	Load LoadConfig
	// Logger gets one line a run; nil: slog.Default.
	Logger *slog.Logger
	// LooseForeignKeysCleanup configures that worker.
	LooseForeignKeysCleanup LooseForeignKeysCleanupConfig
	// GhostUserMigration configures that worker.
	GhostUserMigration GhostUserMigrationConfig
	// PlaceholderUserCleanup configures that worker.
	PlaceholderUserCleanup PlaceholderUserCleanupConfig
	// InactiveTokenDeletion configures that worker.
	InactiveTokenDeletion InactiveTokenDeletionConfig
	// AdjournedGroupDeletion configures that worker.
	AdjournedGroupDeletion AdjournedGroupDeletionConfig
}

// WorkerConfig is what every worker's configuration has. The zero value is the worker's default schedule, enabled.
type WorkerConfig struct {
	// Schedule is a cron expression of five fields, UTC; empty: the worker's default.
	Schedule string
	// Disabled keeps the schedule from starting runs; requests still do.
	Disabled bool
	// CatchUp says whether one run makes up for fires that were missed; nil: the worker's default.
	CatchUp *bool
}

// RunRequest asks for one run.
type RunRequest struct {
	// Worker is required.
	Worker string
	// Database is for loose_foreign_keys_cleanup only; empty: the one whose turn it is this minute.
	Database string
	DryRun   bool
	// Async returns as soon as the run has started.
	Async bool
	// RequestID makes the request idempotent: used again it returns the first run. At most 128 characters.
	RequestID string
	// RequestedBy is recorded with the run.
	RequestedBy string
}

// Condition is why a worker is, or is not, running now (contract.md section 2).
type Condition string

// The conditions, in the order in which they win.
const (
	ConditionRunning            Condition = "RUNNING"
	ConditionPaused             Condition = "PAUSED"
	ConditionNotConfigured      Condition = "NOT_CONFIGURED"
	ConditionFailing            Condition = "FAILING"
	ConditionLeaseHeldElsewhere Condition = "LEASE_HELD_ELSEWHERE"
	ConditionThrottled          Condition = "THROTTLED"
	ConditionSchedulerOff       Condition = "SCHEDULER_OFF"
	ConditionIdle               Condition = "IDLE"
)

// Backlog is what is left for a worker to do, as the message of that name says.
type Backlog = repo.Backlog

// WorkerStatus is where a worker stands. Nil and zero times mean that there is none.
type WorkerStatus struct {
	Worker, Schedule    string
	NextRunAt           time.Time
	Paused              *Pause
	Leases              []Lease
	CurrentRun, LastRun *Run
	LastSuccessAt       time.Time
	Backlog             Backlog
	// NotUsed is why nothing of the worker is of interest: it is not configured, or not enabled on this server or any that
	// has a ledger for it; "" if it is used.
	NotUsed string
	// BacklogUnknown: this server has not been able to read any of it since it was started.
	BacklogUnknown  bool
	Condition       Condition
	ConditionDetail string
	// Failing is set with ConditionFailing.
	Failing *Failing
}

// Service runs the workers. Its methods may be called from any goroutine.
type Service struct {
	main         *repo.Database
	databases    []*repo.Database
	replica      string
	schedulerOff bool
	logger       *slog.Logger
	tracer       trace.Tracer
	metrics      *metrics
	workers      []*worker
	// jobs are what the deferred jobs do, by kind.
	jobs map[string]jobWork
	// owners say, by kind, with the pause of which worker a job waits.
	owners   map[string]func(json.RawMessage) string
	pauses   *recentPauses
	loads    *loads
	queue    repo.JobQueue
	backlogs *backlogs
	noticed  noticed
	pulse    pulse
	unused   unused
	// sizes are those of sweeps and bounded removal, whichever worker they are for.
	sizes     *statementSizes
	leftovers leftovers
	// migrated: main has been found so.
	migrated atomic.Bool

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

// New makes a Service. It does not connect; an error names the configuration key that is wrong.
func New(c Config) (*Service, error) {
	if len(c.Databases) == 0 || c.Databases[0].Name != "main" {
		return nil, errors.New("databases.main.url is required")
	}
	s := &Service{
		main: c.Databases[0], databases: c.Databases, replica: c.Replica, schedulerOff: c.SchedulerOff,
		logger: c.Logger, jobs: map[string]jobWork{},
		owners: map[string]func(json.RawMessage) string{}, pauses: &recentPauses{main: c.Databases[0]}, tracer: otel.Tracer("github.com/caretaker-go/caretaker/service"),
		active: map[*execution]struct{}{}, stopping: make(chan struct{}),
	}
	if c.Queue != nil {
		s.queue = countedQueue{c.Queue}
	}
	s.idle = sync.NewCond(&s.mu)
	s.backlogs, s.sizes = newBacklogs(), newStatementSizes()
	s.historyKeep = cmp.Or(c.HistoryKeep, historyKeep)
	s.pulse.beat(Failing{})
	if s.replica == "" {
		s.replica = ReplicaName()
	}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	err := c.Load.validate()
	if err != nil {
		return nil, err
	}
	s.loads = newLoads(c.Load, s.logger)
	if s.metrics, err = newMetrics(); err != nil {
		return nil, err
	}
	if err := s.addWorkers(c); err != nil {
		return nil, err
	}
	s.metrics.beginJobs(s)
	return s, s.metrics.observe(s)
}

// addWorkers is the list of workers.
func (s *Service) addWorkers(c Config) error {
	for _, add := range []func(Config) (*worker, error){
		s.looseForeignKeysCleanup,
		s.ghostUserMigration,
		s.adjournedGroupDeletion,
		s.placeholderUserCleanup,
		s.inactiveTokenDeletion,
	} {
		w, err := add(c)
		if err != nil {
			return err
		}
		if err := w.validate(); err != nil {
			return err
		}
		s.warnOfShortRuns(w)
		w.missing = orNoSchema(w.missing)
		s.workers = append(s.workers, w)
	}
	return nil
}

// warnOfShortRuns: a run of less than a second does little more than begin and end.
func (s *Service) warnOfShortRuns(w *worker) {
	if limit, _ := w.maxRuntime(mainDatabase, nil); limit < time.Second {
		s.logger.Warn("max_runtime is less than a second: runs get next to nothing done, give them some seconds", "worker", w.name, "max_runtime", limit)
	}
}

// orNoSchema counts the lack of an application schema as one of what is missing.
func orNoSchema(missing func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		what, err := missing(ctx)
		if none, is := errors.AsType[*repo.NoSchemaError](err); is {
			return none.Error(), nil
		}
		return what, err
	}
}

// worker finds a worker by its name.
func (s *Service) worker(name string) (*worker, error) {
	if name == "" {
		return nil, &InvalidArgumentError{"worker", "is required"}
	}
	for _, w := range s.workers {
		if w.name == name {
			return w, nil
		}
	}
	return nil, s.unknownWorker(name)
}

// Healthy says whether main can work: it answers, can be written to, and has once been found migrated.
func (s *Service) Healthy(ctx context.Context) error {
	if err := s.main.Writable(ctx); err != nil || s.migrated.Load() {
		return err
	}
	err := s.main.CheckMigrated(ctx)
	s.migrated.Store(err == nil)
	return err
}

// Shutdown takes no new runs, stops those at work after the statement in flight, and waits until their leases are free
// and their ends recorded, or ctx ends.
func (s *Service) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.stopping)
	}
	for x := range s.active {
		x.halt(errShutdown)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.mu.Lock()
		for len(s.active) > 0 {
			s.idle.Wait()
		}
		s.mu.Unlock()
		s.background.Wait()
		close(done)
	}()
	select {
	case <-done:
		return s.metrics.stop()
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
