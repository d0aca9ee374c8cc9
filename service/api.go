package service

import (
	"context"

	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// What callers need of the engine, under the name of the package that they know.
type (
	// Run is one run of a worker.
	Run = run.Run
	// Lease makes sure that two runs never do the same work.
	Lease = run.Lease
	// RunRequest asks for one run.
	RunRequest = run.Request
	// RunFilter selects runs.
	RunFilter = run.Filter
	// WorkerConfig is what every worker's configuration has.
	WorkerConfig = run.WorkerConfig
	// LoadConfig says from which load of a database on runs and jobs slow down.
	LoadConfig = run.LoadConfig
	// Backoff is how long to wait after failures in a row.
	Backoff = run.Backoff
	// Fire is a moment at which a worker's schedule wants a run, and what became of it.
	Fire = schedule.Fire
	// FireFilter selects fires.
	FireFilter = schedule.Filter
	// SpanIDs gives spans the ids that they were derived for.
	SpanIDs = run.SpanIDs

	// InvalidArgumentError names the field of a request that is wrong, and what is allowed.
	InvalidArgumentError = run.InvalidArgumentError
	// LeaseHeldError says who is doing this work already.
	LeaseHeldError = run.LeaseHeldError
	// WorkerPausedError says that a worker takes no new runs until it is resumed.
	WorkerPausedError = run.WorkerPausedError
	// NotConfiguredError says what a worker lacks, and what to do about it.
	NotConfiguredError = run.NotConfiguredError
	// PlanChangedError says that a run's candidates are not those that the request expected.
	PlanChangedError = run.PlanChangedError
	// UnknownError says which name or id there is nothing of.
	UnknownError = run.UnknownError
	// RequestReusedError says that a request id has started a run of something else.
	RequestReusedError = run.RequestReusedError
)

// AllWorkers is the name under which all workers are paused and resumed at once: the kill switch.
const AllWorkers = run.AllWorkers

// Errors of the methods of [Service].
var (
	ErrUnknownWorker   = run.ErrUnknownWorker
	ErrUnknownDatabase = run.ErrUnknownDatabase
	ErrUnknownRun      = run.ErrUnknownRun
	ErrUnknownJob      = run.ErrUnknownJob
	ErrUnknownFlag     = run.ErrUnknownFlag
	ErrStopping        = run.ErrStopping
	ErrUnreachable     = run.ErrUnreachable
)

// RunBatch runs a worker once. It waits for the run's end unless Async; a caller that goes away does not
// stop the run. Its errors are those of [run.Runner.RunBatch].
func (s *Service) RunBatch(ctx context.Context, r RunRequest) (Run, error) {
	return s.engine.RunBatch(ctx, r)
}

// Run returns a run by its id, or [ErrUnknownRun].
func (s *Service) Run(ctx context.Context, id string) (Run, error) { return s.engine.Run(ctx, id) }

// Runs lists runs, the newest first.
func (s *Service) Runs(ctx context.Context, f RunFilter) ([]Run, error) { return s.engine.Runs(ctx, f) }

// WatchRun calls send with the run as it is, then whenever it has changed, the last time at its end.
func (s *Service) WatchRun(ctx context.Context, id string, send func(Run) error) error {
	return s.engine.WatchRun(ctx, id, send)
}

// CancelRun asks a run to stop after the statement in flight, wherever it runs, and returns it as it is
// now. Who asks becomes the run's error; the first who asks counts.
func (s *Service) CancelRun(ctx context.Context, id, by string) (Run, error) {
	return s.engine.CancelRun(ctx, id, by)
}

// RunDue starts the runs of the fires that are due, and records those that were missed. It does not
// wait for the runs.
func (s *Service) RunDue(ctx context.Context) error { return s.schedule.RunDue(ctx) }

// ResumeRuns starts the runs that go on with what others have left, and do not wait for the schedule.
func (s *Service) ResumeRuns(ctx context.Context) error { return s.schedule.ResumeRuns(ctx) }

// Fires lists the fires of the schedules, the newest first.
func (s *Service) Fires(ctx context.Context, f FireFilter) ([]Fire, error) {
	return s.schedule.Fires(ctx, f)
}
