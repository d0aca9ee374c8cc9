package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// heartbeat is how often a run says that it is alive, and hears of a cancel or a pause.
const heartbeat = time.Second

// keepAlive renews the run's leases and its record until ctx ends. The channel closes when both have stopped.
func (s *Service) keepAlive(ctx context.Context, x *execution) <-chan struct{} {
	// A beat a second would bury what the run's trace is for.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(ctx))
	var wait sync.WaitGroup
	if x.leases != nil {
		wait.Go(func() { x.leases.keep(ctx) })
	}
	wait.Go(func() {
		for {
			s.beat(ctx, x)
			select {
			case <-ctx.Done():
				return
			case <-time.After(heartbeat):
			}
		}
	})
	ended := make(chan struct{})
	go func() {
		wait.Wait()
		close(ended)
	}()
	return ended
}

// beat saves the progress. While main does not answer the run goes on: its lease decides, not its record.
func (s *Service) beat(ctx context.Context, x *execution) {
	cancelled, paused, err := s.main.SaveProgress(ctx, x.snapshot())
	switch {
	case errors.Is(err, repo.ErrNotFound):
		x.cancel(repo.ErrLeaseLost)
	case err != nil && ctx.Err() == nil:
		x.Log.WarnContext(ctx, "progress not saved", "error", err)
	case cancelled:
		x.halt(errCancelled)
	case paused != "":
		x.halt(errPaused)
	}
}

// recordPatience is how long the end of a run is kept for a main that does not answer.
const recordPatience = 10 * time.Minute

// record writes the end of the run, and only then shows it to those who wait. If main does not answer, that is tried
// again in the background: the run's lease is free by then, and its caller gets the record as we know it.
func (s *Service) record(ctx context.Context, x *execution, run Run) Run {
	stored, err := s.main.FinishRun(ctx, run)
	if err == nil {
		return s.remember(x, stored)
	}
	run.FinishedAt = run.StartedAt.Add(x.Elapsed())
	if !errors.Is(err, repo.ErrNotFound) {
		x.Log.WarnContext(ctx, "end of the run not recorded, will be tried again", "error", err)
		s.background.Go(func() { s.recordLater(ctx, run) })
	}
	return s.remember(x, run)
}

func (s *Service) recordLater(ctx context.Context, run Run) {
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		case <-time.After(wait):
		}
		if _, err := s.main.FinishRun(ctx, run); err == nil || errors.Is(err, repo.ErrNotFound) {
			return
		}
	}
}

// remember keeps the final record for those who wait for it.
func (s *Service) remember(x *execution, run Run) Run {
	x.Report(func(r *Run) { *r = run })
	return run
}
