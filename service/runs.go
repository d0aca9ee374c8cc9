package service

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/caretaker-go/caretaker/repo"
)

// admit lets a run in unless the service is stopping.
func (s *Service) admit(x *execution) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopping
	}
	s.active[x] = struct{}{}
	return nil
}

func (s *Service) dismiss(x *execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, x)
	if len(s.active) == 0 && s.stopped {
		s.idle.Broadcast()
	}
}

// local is the run with this id if it is at work in this process.
func (s *Service) local(id string) *execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.active {
		if x.snapshot().ID == id {
			return x
		}
	}
	return nil
}

// join is the same for a run of any replica.
func (s *Service) join(ctx context.Context, run Run, async bool, err error) (Run, error) {
	if err != nil || async || run.State != repo.RunRunning {
		return run, err
	}
	if x := s.local(run.ID); x != nil {
		return x.join(ctx, false)
	}
	err = s.WatchRun(ctx, run.ID, func(r Run) error {
		run = r
		return nil
	})
	return run, err
}

// join returns the run as it is if async, else as it is at its end.
func (x *execution) join(ctx context.Context, async bool) (Run, error) {
	if async {
		return x.snapshot(), nil
	}
	select {
	case <-x.done:
		return x.snapshot(), nil
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	}
}

// Run returns a run by its id, or [ErrUnknownRun].
func (s *Service) Run(ctx context.Context, id string) (Run, error) {
	if err := validRunID(id); err != nil {
		return Run{}, err
	}
	if x := s.local(id); x != nil {
		return x.snapshot(), nil
	}
	run, err := s.main.Run(ctx, id)
	return run, unknownRun(id, err)
}

func validRunID(id string) error {
	if id == "" {
		return &InvalidArgumentError{"id", "is required: RunBatch and ListRuns return it"}
	}
	if uuid.Validate(id) != nil || len(id) != len(uuid.Nil.String()) {
		return fmt.Errorf("%w %q: ListRuns lists the runs there are", ErrUnknownRun, id)
	}
	return nil
}

func unknownRun(id string, err error) error {
	if errors.Is(err, repo.ErrNotFound) {
		return fmt.Errorf("%w %q: ListRuns lists the runs there are", ErrUnknownRun, id)
	}
	return err
}

// RunFilter selects runs: of one worker, in one state, behind the run named by After; each "" for all.
type RunFilter struct {
	Worker, State, After string
	// Limit is how many at most.
	Limit int
}

// Runs lists runs, the newest first.
func (s *Service) Runs(ctx context.Context, f RunFilter) ([]Run, error) {
	if f.Worker != "" {
		if _, err := s.worker(f.Worker); err != nil {
			return nil, err
		}
	}
	if err := s.main.CloseAbandonedRuns(ctx); err != nil {
		return nil, err
	}
	return s.main.ListRuns(ctx, f.Worker, f.State, f.After, f.Limit)
}

// watchInterval is how often a run is looked at for those who watch it.
const watchInterval = 500 * time.Millisecond

// WatchRun calls send with the run as it is, then whenever it has changed, the last time at its end.
func (s *Service) WatchRun(ctx context.Context, id string, send func(Run) error) error {
	var last Run
	for {
		run, err := s.Run(ctx, id)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(run, last) {
			if err := send(run); err != nil {
				return err
			}
			last = run
		}
		if run.State != repo.RunRunning {
			return nil
		}
		if err := s.main.CloseAbandonedRuns(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}

// CancelRun asks a run to stop after the statement in flight, wherever it runs, and returns it as it is now.
func (s *Service) CancelRun(ctx context.Context, id string) (Run, error) {
	if err := validRunID(id); err != nil {
		return Run{}, err
	}
	if x := s.local(id); x != nil {
		x.halt(errCancelled)
	}
	run, err := s.main.RequestCancel(ctx, id)
	return run, unknownRun(id, err)
}
