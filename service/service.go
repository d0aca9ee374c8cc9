package service

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/plan"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// Config is what a Service needs. Databases is required, with main first. The fields with keys come from package config:
// they are read from the configuration, or get their defaults there.
type Config struct {
	// Databases in the order of the rotation: main, ci, sec, then the others by name.
	Databases []*repo.Database
	// Replica names this process in leases and runs; empty: a [run.ReplicaName].
	Replica string
	// SchedulerOff says that nothing starts by itself here; only GetStatus cares.
	SchedulerOff bool
	// Queue takes deferred jobs; nil: workers that queue jobs are not configured. With loose foreign keys
	// only there is none.
	Queue jobqueue.JobQueue
	// Use is what caretaker is for here: gitlab, every worker, or loose_foreign_keys, these alone, which
	// needs fewer tables of its own and shows nothing else: [guide](guide-any-postgresql.md).
	Use string `key:"use" default:"gitlab" of:"gitlab loose_foreign_keys"`
	// HistoryKeep is how long runs, fires and the audit are kept.
	HistoryKeep time.Duration `key:"history.keep" default:"720h" min:"1h" max:"87600h"`
	// Receipts says what is kept of the rows that were changed.
	Receipts ReceiptsConfig `key:"receipts"`
	// Load says from which load of a database on runs and jobs slow down.
	Load load.Config `key:"load"`
	// Logger gets one line a run; nil: slog.Default.
	Logger *slog.Logger

	// workers have the settings of the workers: see [Settings].
	workers []worker
}

// Condition is why a worker is, or is not, running now.
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
type Backlog = control.Backlog

// WorkerStatus is where a worker stands. Nil and zero times mean that there is none.
type WorkerStatus struct {
	Worker, Schedule    string
	NextRunAt           time.Time
	Paused              *run.Pause
	Leases              []run.Lease
	CurrentRun, LastRun *run.Run
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
	// Databases are those of a worker that has several, those with a problem first.
	Databases []DatabaseStatus
}

// Service is what the edges call: the engine of runs, the pool of jobs, the dispatcher of schedules, and the methods
// here. They may be called from any goroutine.
type Service struct {
	*run.Runner
	*job.Pool
	*schedule.Dispatcher
	*plan.Planner
	schedulerOff bool
	// LooseForeignKeysOnly: see [Config.LooseForeignKeysOnly].
	LooseForeignKeysOnly bool
	queue                jobqueue.JobQueue
	gauges               metric.Registration
	// definitions are the loose foreign keys in use, read from definitionsFile.
	definitions atomic.Pointer[[]lfk.LooseForeignKey]
	// definitionsRefused is why the last reload of definitionsFile failed, nil if it did not.
	definitionsRefused atomic.Pointer[string]
	definitionsFile    string
	// migrated: main has been found so.
	migrated atomic.Bool
}

// New makes a Service. It does not connect; an error names the configuration key that is wrong.
func New(c Config) (*Service, error) {
	if len(c.Databases) == 0 || c.Databases[0].Name != "main" {
		return nil, errors.New("databases.main.url is required")
	}
	for _, d := range c.Databases {
		// Who makes another Service on databases in use changes nothing of them.
		if d.KeepKeys != c.Receipts.KeepKeys || d.LooseForeignKeysOnly != c.LooseForeignKeysOnly() {
			d.KeepKeys, d.LooseForeignKeysOnly = c.Receipts.KeepKeys, c.LooseForeignKeysOnly()
		}
	}
	if main := c.Databases[0]; main.JobCascades == nil {
		main.JobCascades = slices.Concat(bulk.Cascades(), ghost.Cascades())
	}
	runner, err := run.New(run.Config{
		Databases: c.Databases, Replica: c.Replica, HistoryKeep: c.HistoryKeep,
		ReceiptsKeep: c.Receipts.Keep, Load: c.Load, Logger: c.Logger, LeftOut: c.unused(),
	})
	if err != nil {
		return nil, err
	}
	s := &Service{Runner: runner, Pool: job.New(runner), Dispatcher: schedule.New(runner), schedulerOff: c.SchedulerOff}
	s.Planner = plan.New(s.Runner, s.Pool)
	s.LooseForeignKeysOnly = c.LooseForeignKeysOnly()
	if c.Queue != nil && !s.LooseForeignKeysOnly {
		s.queue = c.Queue
	}
	if err := s.addWorkers(c); err != nil {
		return nil, err
	}
	s.beginJobs()
	err = s.observe()
	return s, err
}

// Healthy reports whether main can work: it answers, can be written to, and has once been found migrated.
func (s *Service) Healthy(ctx context.Context) error {
	if err := s.Main.StillWritable(ctx); err != nil || s.migrated.Load() {
		return err
	}
	err := s.Main.CheckMigrated(ctx)
	s.migrated.Store(err == nil)
	return err
}

// Shutdown takes no new runs, stops those at work after the statement in flight, and waits until their leases are free
// and their ends recorded, or ctx ends.
func (s *Service) Shutdown(ctx context.Context) error {
	if err := s.Active.Shutdown(ctx); err != nil {
		return err
	}
	return s.gauges.Unregister()
}
