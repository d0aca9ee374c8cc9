// Package scheduler starts work when it is due. gocron wakes us; PostgreSQL decides what is due and who runs it.
//
// What it guarantees:
//
//   - A replica looks at the ledger of fires every few seconds, and again as soon as a fire begins. Its clock decides
//     nothing: it may be wrong by any amount, drift or jump.
//   - A look that takes long, because main does, is waited for: looks never pile up. Runs are not waited for.
//   - A failed look, a panic or a database that is down cost that look alone; what was due meanwhile is in the ledger.
//   - What a run has begun whose process died is gone on with, for workers that ask for it, without waiting for a fire.
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
)

// runner does what is due: [service.Service], and in tests what fails.
type runner interface {
	// RunDue starts the runs that are due by the ledger of fires.
	RunDue(ctx context.Context) error
	// ResumeRuns starts the runs that go on with what dead ones have left.
	ResumeRuns(ctx context.Context) error
}

// Scheduler wakes the service.
type Scheduler struct {
	runner  runner
	logger  *slog.Logger
	gocron  gocron.Scheduler
	running context.Context //nolint:containedctx // ends with the scheduler
	cancel  context.CancelCauseFunc
	// fires and dead know whether the looks at fires and for dead runs fail, so that it is said once.
	fires, dead service.Backoff
}

// New prepares a scheduler; Start makes it look.
func New(s *service.Service, logger *slog.Logger) (*Scheduler, error) {
	return newScheduler(s, logger, clockwork.NewRealClock())
}

const (
	// wakeInterval is the time from one look at the fires to the next. RunDue waits for a fire that begins within it.
	wakeInterval = 5 * time.Second
	// resumeInterval is how often runs that died are looked for: they must be gone on with 60 s after their leases
	// expired.
	resumeInterval = 30 * time.Second
	// stopPatience is how long Stop waits for looks: they return as soon as their context has ended.
	stopPatience = 10 * time.Second
)

// newScheduler prepares the two jobs. Their intervals count from the end of one to the start of the next: so they never
// overlap, and gocron never computes with a time from before a jump of the clock.
func newScheduler(r runner, logger *slog.Logger, clock clockwork.Clock) (*Scheduler, error) {
	wake, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithClock(clock), gocron.WithStopTimeout(stopPatience))
	if err != nil {
		return nil, fmt.Errorf("prepare the scheduler: %w", err)
	}
	s := &Scheduler{runner: r, logger: logger, gocron: wake}
	s.running, s.cancel = context.WithCancelCause(context.Background())
	_, err1 := wake.NewJob(gocron.DurationJob(wakeInterval), gocron.NewTask(s.look), gocron.WithName("fires"),
		gocron.WithIntervalFromCompletion(), gocron.WithStartAt(gocron.WithStartImmediately()))
	_, err2 := wake.NewJob(gocron.DurationJob(resumeInterval), gocron.NewTask(s.resume), gocron.WithName("dead runs"),
		gocron.WithIntervalFromCompletion())
	if err := errors.Join(err1, err2); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the scheduler: %w", err), s.Stop())
	}
	return s, nil
}

// errStopped ends the looks that wait.
var errStopped = errors.New("the scheduler has stopped")

// Start begins to look, at once.
func (s *Scheduler) Start() { s.gocron.Start() }

// Stop starts nothing any more. Runs that have been started go on.
func (s *Scheduler) Stop() error {
	s.cancel(errStopped)
	if err := s.gocron.Shutdown(); err != nil {
		return fmt.Errorf("stop the scheduler: %w", err)
	}
	return nil
}

// look starts what is due. An error is said once, not every five seconds.
func (s *Scheduler) look() {
	defer s.survive()
	err := s.runner.RunDue(s.running)
	if s.running.Err() != nil {
		return
	}
	_, news := s.fires.After(err)
	switch {
	case !news:
	case err != nil:
		s.logger.ErrorContext(s.running, "fires could not be looked at, will be tried again until it works", "error", err.Error())
	default:
		s.logger.InfoContext(s.running, "fires are looked at again")
	}
}

// survive logs a panic of what was woken.
func (s *Scheduler) survive() {
	if p := recover(); p != nil {
		s.logger.ErrorContext(s.running, "scheduler panicked", "error", run.Panicked(p))
	}
}

// resume goes on with what runs that died have left.
func (s *Scheduler) resume() {
	defer s.survive()
	err := s.runner.ResumeRuns(s.running)
	if s.running.Err() != nil {
		return
	}
	if _, news := s.dead.After(err); news && err != nil {
		s.logger.WarnContext(s.running, "what dead runs have left is not gone on with at present, will be tried again", "error", err.Error())
	}
}
