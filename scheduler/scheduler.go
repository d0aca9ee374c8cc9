// Package scheduler starts scheduled runs, and works deferred jobs: see [Queue]. gocron ticks.
// PostgreSQL decides which runs are due, and which replica runs them.
//
// It guarantees:
//
//   - A replica checks for due runs every few seconds, and at the time of the next scheduled run.
//     Its own clock decides nothing, and may be wrong by any amount, drift or jump.
//   - Ticks never overlap: if main is slow, a slow tick delays the next. Ticks do not wait for runs.
//   - An error, a panic or a database that is down costs one tick. Runs that became due meanwhile
//     are in the table of fires.
//   - Runs whose process died are resumed, for workers that request it, before their schedule.
//   - Stop leaves no goroutine. It does not stop runs: they belong to package service.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// runner is [service.Service], except in tests, whose runners fail.
type runner interface {
	// RunDue starts the scheduled runs that are due.
	RunDue(ctx context.Context) error
	// ResumeRuns starts runs that resume abandoned ones.
	ResumeRuns(ctx context.Context) error
}

// Scheduler calls the service at intervals.
type Scheduler struct {
	runner  runner
	logger  *slog.Logger
	gocron  gocron.Scheduler
	running context.Context //nolint:containedctx // ends with the scheduler
	cancel  context.CancelCauseFunc
	// fires and resumes log errors once per outage.
	fires, resumes run.Backoff
}

// New prepares a scheduler. Start starts it.
func New(s *service.Service, logger *slog.Logger) (*Scheduler, error) {
	return newScheduler(s, logger, clockwork.NewRealClock())
}

const (
	// tickInterval is the time from the end of one tick to the next. RunDue waits for a scheduled
	// run that is due within it.
	tickInterval = 5 * time.Second
	// resumeInterval is how often the scheduler checks for abandoned runs, which must resume within
	// 60 s after their leases expire.
	resumeInterval = 30 * time.Second
	// stopTimeout is how long Stop waits for ticks, which return once their context has ended.
	stopTimeout = 10 * time.Second
)

// newScheduler prepares the two jobs of gocron. Their intervals count from the end of one call to
// the start of the next. Calls therefore never overlap, and a jump of the clock has no effect.
func newScheduler(r runner, logger *slog.Logger, clock clockwork.Clock) (*Scheduler, error) {
	ticker, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithClock(clock),
		gocron.WithStopTimeout(stopTimeout))
	if err != nil {
		return nil, fmt.Errorf("cannot prepare the scheduler: %w", err)
	}
	s := &Scheduler{runner: r, logger: logger, gocron: ticker}
	s.running, s.cancel = context.WithCancelCause(context.Background())
	_, err1 := ticker.NewJob(gocron.DurationJob(tickInterval), gocron.NewTask(s.tick),
		gocron.WithName("fires"), gocron.WithIntervalFromCompletion(),
		gocron.WithStartAt(gocron.WithStartImmediately()))
	_, err2 := ticker.NewJob(gocron.DurationJob(resumeInterval), gocron.NewTask(s.resume),
		gocron.WithName("abandoned runs"), gocron.WithIntervalFromCompletion())
	if err := errors.Join(err1, err2); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot prepare the scheduler: %w", err), s.Stop())
	}
	return s, nil
}

// errStopped ends waiting ticks.
var errStopped = errors.New("the scheduler has stopped")

// Start starts the scheduler with an immediate tick.
func (s *Scheduler) Start() { s.gocron.Start() }

// Stop ends the ticks. Started runs continue.
func (s *Scheduler) Stop() error {
	s.cancel(errStopped)
	if err := s.gocron.Shutdown(); err != nil {
		return fmt.Errorf("cannot stop the scheduler: %w", err)
	}
	return nil
}

// tick starts due runs. It logs an error once per outage.
func (s *Scheduler) tick() {
	defer s.recover()
	err := s.runner.RunDue(s.running)
	if s.running.Err() != nil {
		return
	}
	_, changed := s.fires.After(err)
	switch {
	case !changed:
	case err != nil:
		s.logger.ErrorContext(s.running, "check for due runs failed, retrying", "error", err.Error())
	default:
		s.logger.InfoContext(s.running, "check for due runs recovered")
	}
}

// recover logs a panic, which ends only one tick.
func (s *Scheduler) recover() {
	if p := recover(); p != nil {
		s.logger.ErrorContext(s.running, "scheduler panicked", "error", fault.NewPanicError(p))
	}
}

// resume starts runs that resume abandoned ones.
func (s *Scheduler) resume() {
	defer s.recover()
	err := s.runner.ResumeRuns(s.running)
	if s.running.Err() != nil {
		return
	}
	if _, changed := s.resumes.After(err); changed && err != nil {
		s.logger.WarnContext(s.running, "resuming abandoned runs failed, retrying", "error", err.Error())
	}
}
