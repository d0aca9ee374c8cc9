// Package scheduler starts work when it is due. gocron wakes us; PostgreSQL decides who runs.
//
// What it guarantees:
//
//   - A fire is claimed under its nominal time, to the minute by the worker's cron expression in UTC, so that replicas
//     whose clocks differ by seconds mean the same fire, and one of them has it.
//   - Missed fires are missed: after a sleep or a jump of the clock there is no burst, and no oversleeping either, as
//     every worker is looked at once a minute whatever its expression.
//   - A failed or long run, a panic or a database that is down cost that fire alone. Runs of one worker may overlap;
//     whether they may work is up to their leases.
//   - What a run has begun whose process died is gone on with, for workers that ask for it, without waiting for a fire.
//   - Stop leaves no goroutine. It does not stop runs: they belong to package service.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"github.com/robfig/cron/v3"

	"github.com/caretaker-go/caretaker/service"
)

// runner starts a run for a fire: [service.Service], and in tests what fails.
type runner interface {
	Schedules() []service.Schedule
	RunScheduled(ctx context.Context, worker string, fire time.Time) (service.Run, bool, error)
	// ResumeRuns starts the runs that go on with what dead ones have left.
	ResumeRuns(ctx context.Context) error
}

// Scheduler wakes the enabled workers by their schedules.
type Scheduler struct {
	runner  runner
	logger  *slog.Logger
	clock   clockwork.Clock
	gocron  gocron.Scheduler
	running context.Context //nolint:containedctx // ends with the scheduler
	cancel  context.CancelCauseFunc
}

// New prepares the schedules; Start makes them run. The error names the worker whose schedule cannot be used.
func New(s *service.Service, logger *slog.Logger) (*Scheduler, error) {
	return newScheduler(s, logger, clockwork.NewRealClock())
}

// stopPatience is how long Stop waits for ticks: they return as soon as their context has ended.
const stopPatience = 10 * time.Second

func newScheduler(r runner, logger *slog.Logger, clock clockwork.Clock) (*Scheduler, error) {
	wake, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithClock(clock), gocron.WithStopTimeout(stopPatience))
	if err != nil {
		return nil, fmt.Errorf("prepare the scheduler: %w", err)
	}
	s := &Scheduler{runner: r, logger: logger, clock: clock, gocron: wake}
	s.running, s.cancel = context.WithCancelCause(context.Background())
	for _, schedule := range r.Schedules() {
		if err := s.add(schedule); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
	}
	_, err = wake.NewJob(gocron.DurationJob(resumeInterval), gocron.NewTask(s.resume), gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("schedule resumption: %w", err), s.Stop())
	}
	return s, nil
}

// errStopped ends the ticks that wait for their runs.
var errStopped = errors.New("the scheduler has stopped")

// add registers a worker. Its job wakes every minute; expressions of five fields fire at full minutes only.
func (s *Scheduler) add(schedule service.Schedule) error {
	fires, err := service.ParseSchedule(schedule.Cron)
	if err != nil {
		return fmt.Errorf("workers.%s.schedule: %q is not a cron expression of five fields: %w", schedule.Worker, schedule.Cron, err)
	}
	_, err = s.gocron.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(func() { s.tick(schedule.Worker, fires) }),
		gocron.WithName(schedule.Worker))
	if err != nil {
		return fmt.Errorf("schedule %s: %w", schedule.Worker, err)
	}
	return nil
}

// Start begins to wake the workers, with the next full minute.
func (s *Scheduler) Start() { s.gocron.Start() }

// Stop starts nothing any more. Runs that have been started go on.
func (s *Scheduler) Stop() error {
	s.cancel(errStopped)
	if err := s.gocron.Shutdown(); err != nil {
		return fmt.Errorf("stop the scheduler: %w", err)
	}
	return nil
}

// tick runs the worker if it is due at the minute that has just begun, and waits for the run's end.
func (s *Scheduler) tick(worker string, fires cron.Schedule) {
	fire, due := nominal(fires, s.clock.Now())
	if !due || s.running.Err() != nil {
		return
	}
	log := s.logger.With("worker", worker, "fire", fire)
	defer s.survive(log)
	run, ours, err := s.runner.RunScheduled(s.running, worker, fire)
	switch {
	case s.running.Err() != nil:
	case err != nil:
		log.ErrorContext(s.running, "scheduled run did not start, the next fire tries again", "error", err.Error())
	case !ours:
		log.DebugContext(s.running, "another replica has this fire")
	default:
		log.DebugContext(s.running, "scheduled run ended", "run_id", run.ID, "outcome", run.State)
	}
}

// survive logs a panic of what was woken.
func (s *Scheduler) survive(log *slog.Logger) {
	if p := recover(); p != nil {
		log.ErrorContext(s.running, "scheduled run panicked", "error", fmt.Sprintf("%v\n%s", p, debug.Stack()))
	}
}

// resumeInterval is how often runs that died are looked for: they must be gone on with 60 s after their leases expired
// (inactive_token_deletion.md section 5).
const resumeInterval = 30 * time.Second

// resume goes on with what runs that died have left.
func (s *Scheduler) resume() {
	defer s.survive(s.logger)
	if err := s.runner.ResumeRuns(s.running); err != nil && s.running.Err() == nil {
		s.logger.WarnContext(s.running, "what dead runs have left is not gone on with at present, will be tried again", "error", err.Error())
	}
}

// early is how much before the full minute a timer may wake us, when the clock is being set.
const early = time.Second

// nominal is the fire that a wake-up at this time stands for: the minute it is in, if the schedule fires then.
func nominal(fires cron.Schedule, now time.Time) (fire time.Time, due bool) {
	minute := now.UTC().Add(early).Truncate(time.Minute)
	return minute, fires.Next(minute.Add(-time.Second)).Equal(minute)
}
