// Package scheduler starts work when it is due, and works deferred jobs: see [Queue]. gocron ticks;
// PostgreSQL decides what is due and which replica runs it.
//
// What it guarantees:
//
//   - A replica checks what is due every few seconds, and as soon as a fire is due. Its own clock
//     decides nothing: it may be wrong by any amount, drift or jump.
//   - Ticks never overlap: a slow one, because main is slow, delays the next. Runs are not waited
//     for.
//   - An error, a panic or a database that is down costs one tick; what was due meanwhile is in the
//     table of fires.
//   - Runs whose process died are resumed, for workers that ask for it, without waiting for a fire.
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

// runner is [service.Service]; tests have others, which fail.
type runner interface {
	// RunDue starts the runs of the fires that are due.
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
	// fires and resumes log errors once for each outage.
	fires, resumes run.Backoff
}

// New prepares a scheduler; Start starts it.
func New(s *service.Service, logger *slog.Logger) (*Scheduler, error) {
	return newScheduler(s, logger, clockwork.NewRealClock())
}

const (
	// tickInterval is the time from the end of one tick to the next. RunDue waits for a fire that is
	// due within it.
	tickInterval = 5 * time.Second
	// resumeInterval is how often abandoned runs are looked for: they must be resumed within 60 s
	// after their leases have expired.
	resumeInterval = 30 * time.Second
	// stopTimeout is how long Stop waits for ticks, which return once their context has ended.
	stopTimeout = 10 * time.Second
)

// newScheduler prepares the two jobs of gocron. Their intervals count from the end of one call to
// the start of the next: calls never overlap, and no time from before a jump of the clock is used.
func newScheduler(r runner, logger *slog.Logger, clock clockwork.Clock) (*Scheduler, error) {
	ticker, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithClock(clock),
		gocron.WithStopTimeout(stopTimeout))
	if err != nil {
		return nil, fmt.Errorf("prepare the scheduler: %w", err)
	}
	s := &Scheduler{runner: r, logger: logger, gocron: ticker}
	s.running, s.cancel = context.WithCancelCause(context.Background())
	_, err1 := ticker.NewJob(gocron.DurationJob(tickInterval), gocron.NewTask(s.tick),
		gocron.WithName("fires"), gocron.WithIntervalFromCompletion(),
		gocron.WithStartAt(gocron.WithStartImmediately()))
	_, err2 := ticker.NewJob(gocron.DurationJob(resumeInterval), gocron.NewTask(s.resume),
		gocron.WithName("abandoned runs"), gocron.WithIntervalFromCompletion())
	if err := errors.Join(err1, err2); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the scheduler: %w", err), s.Stop())
	}
	return s, nil
}

// errStopped ends ticks that wait.
var errStopped = errors.New("the scheduler has stopped")

// Start begins with a tick at once.
func (s *Scheduler) Start() { s.gocron.Start() }

// Stop ends the ticks. Runs that have been started go on.
func (s *Scheduler) Stop() error {
	s.cancel(errStopped)
	if err := s.gocron.Shutdown(); err != nil {
		return fmt.Errorf("stop the scheduler: %w", err)
	}
	return nil
}

// tick starts what is due. An error is logged once for each outage.
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
		s.logger.ErrorContext(s.running, "checking for due fires failed, retrying", "error", err.Error())
	default:
		s.logger.InfoContext(s.running, "checking for due fires works again")
	}
}

// recover logs a panic, which ends one tick.
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
