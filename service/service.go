package service

import (
	"context"
	"log/slog"
	"time"

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
	// Replica names this process in leases and runs; empty: host name, process id and a random part.
	Replica string
	// SchedulerOff says that nothing starts by itself here; only GetStatus cares.
	SchedulerOff bool
	// Logger gets one line a run; nil: slog.Default.
	Logger *slog.Logger
	// LooseForeignKeysCleanup configures that worker.
	LooseForeignKeysCleanup LooseForeignKeysCleanupConfig
}

// WorkerConfig is what every worker's configuration has. The zero value is the worker's default schedule, enabled.
type WorkerConfig struct {
	// Schedule is a cron expression of five fields, UTC; empty: the worker's default.
	Schedule string
	// Disabled keeps the schedule from starting runs; requests still do.
	Disabled bool
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

// Schedule is when a worker runs by itself.
type Schedule struct{ Worker, Cron string }

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
	Condition           Condition
	ConditionDetail     string
}
