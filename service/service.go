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
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/plan"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/status"
)

// Config configures a Service. Databases is required, with main first. Fields with keys are read
// from the configuration, or get their defaults, in package config.
type Config struct {
	// Databases in the order of the rotation: main, ci, sec, then the others by name.
	Databases []*repo.Database
	// Replica names this process in leases and runs. Empty means a [run.ReplicaName].
	Replica string
	// SchedulerOff means that no run starts by itself here. Only GetStatus uses it.
	SchedulerOff bool
	// Queue takes deferred jobs. nil means workers that queue jobs are not configured. With loose
	// foreign keys only, no queue exists.
	Queue jobqueue.Queue
	// Use is `gitlab` to enable all workers, or `loose_foreign_keys` to enable only the loose foreign
	// key workers and create fewer tables ([guide](../getting-started/first-cleanup.md)). If not set,
	// `main` must contain GitLab's tables.
	Use string `key:"use" example:"gitlab" of:"gitlab loose_foreign_keys"`
	// HistoryKeep is how long run records, schedule ticks and audit entries are kept.
	HistoryKeep time.Duration `key:"history.keep" default:"720h" min:"1h" max:"87600h"`
	// Receipts defines what is kept of the rows that were changed.
	Receipts ReceiptsConfig `key:"receipts"`
	// Load has the limits of a database's load above which runs and jobs slow down.
	Load load.Config `key:"load"`
	// Logger gets one line per run. nil means slog.Default.
	Logger *slog.Logger

	// workers hold the settings of the workers: see [Settings].
	workers []worker
}

// Service is the API for the edges: the engine of runs, the pool of jobs, the dispatcher of
// schedules, and the methods here. Any goroutine may call them.
type Service struct {
	*run.Runner
	*job.Pool
	*schedule.Dispatcher
	*plan.Planner
	*status.Reporter
	// LooseForeignKeysOnly: see [Config.LooseForeignKeysOnly].
	LooseForeignKeysOnly bool
	// queue inserts jobs. gauges is unregistered at shutdown.
	queue  jobqueue.Queue
	gauges metric.Registration
	// definitions are the loose foreign keys in use, read from definitionsFile.
	definitions atomic.Pointer[[]lfk.Definition]
	// definitionsRefused is why the last reload of definitionsFile failed. nil means it succeeded.
	definitionsRefused atomic.Pointer[string]
	definitionsFile    string
	// migrated is set once main has been seen migrated.
	migrated atomic.Bool
}

// New makes a Service without connecting. An error names the wrong configuration key.
func New(c Config) (*Service, error) {
	if len(c.Databases) == 0 || c.Databases[0].Name != "main" {
		return nil, errors.New("databases.main.url is required")
	}
	for _, d := range c.Databases {
		// A second Service on databases in use must not change them.
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
	s := &Service{Runner: runner, Pool: job.New(runner), Dispatcher: schedule.New(runner)}
	s.Planner = plan.New(s.Runner, s.Pool)
	s.LooseForeignKeysOnly = c.LooseForeignKeysOnly()
	if c.Queue != nil && !s.LooseForeignKeysOnly {
		s.queue = c.Queue
	}
	s.Reporter = status.New(s.Runner, s.Dispatcher, s.Pool, status.Config{
		Queue: s.queue, SchedulerOff: c.SchedulerOff, Remark: s.refused,
	})
	if err := s.addWorkers(c); err != nil {
		return nil, err
	}
	s.beginJobs()
	err = s.observe()
	return s, err
}

// Healthy reports whether main answers, accepts writes, and has once been seen migrated.
func (s *Service) Healthy(ctx context.Context) error {
	if err := s.Main.StillWritable(ctx); err != nil || s.migrated.Load() {
		return err
	}
	err := s.Main.CheckMigrated(ctx)
	s.migrated.Store(err == nil)
	return err
}

// Shutdown starts no new runs, and stops running ones after their current statement. It waits until
// their leases are released and their ends recorded, or ctx ends.
func (s *Service) Shutdown(ctx context.Context) error {
	if err := s.Active.Shutdown(ctx); err != nil {
		return err
	}
	return s.gauges.Unregister()
}
