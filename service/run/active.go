package run

import (
	"context"
	"fmt"
	"sync"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// active holds the runs of this process, until it stops.
type active struct {
	// mu guards runs and stopped. idle is signaled when the last run ends during shutdown.
	mu      sync.Mutex
	idle    *sync.Cond
	runs    map[*Execution]struct{}
	stopped bool
	// Stopping closes at shutdown. background is what Shutdown waits for besides the runs.
	Stopping   chan struct{}
	background sync.WaitGroup
}

// newActive returns the set without any run.
func newActive() *active {
	a := &active{runs: map[*Execution]struct{}{}, Stopping: make(chan struct{})}
	a.idle = sync.NewCond(&a.mu)
	return a
}

// register adds a run unless the service is stopping.
func (a *active) register(x *Execution) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return fault.ErrStopping
	}
	a.runs[x] = struct{}{}
	return nil
}

// unregister removes a run that has ended. The last one wakes the shutdown that waits for it.
func (a *active) unregister(x *Execution) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.runs, x)
	if len(a.runs) == 0 && a.stopped {
		a.idle.Broadcast()
	}
}

// IsStopping reports whether the process is stopping and starts no more runs.
func (a *active) IsStopping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopped
}

// Go calls do in a goroutine that Shutdown waits for, or returns false if the process stops.
func (a *active) Go(do func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopped {
		a.background.Go(do)
	}
	return !a.stopped
}

// local returns the run with this id if it is running in this process.
func (a *active) local(id string) *Execution {
	a.mu.Lock()
	defer a.mu.Unlock()
	for x := range a.runs {
		if x.Snapshot().ID == id {
			return x
		}
	}
	return nil
}

// Current returns the worker's current run in this process, or nil.
func (a *active) Current(w *Worker) *Run {
	a.mu.Lock()
	defer a.mu.Unlock()
	for x := range a.runs {
		select {
		case <-x.leased:
		default:
			continue
		}
		if run := x.Snapshot(); x.Worker == w && run.State == control.RunRunning {
			return &run
		}
	}
	return nil
}

// Shutdown starts no new runs, and stops running ones after their current statement. It waits until
// their leases are released and their ends recorded, or ctx ends.
func (a *active) Shutdown(ctx context.Context) error {
	a.mu.Lock()
	if !a.stopped {
		a.stopped = true
		close(a.Stopping)
	}
	for x := range a.runs {
		x.RequestStop(fault.ErrShutdown)
	}
	a.mu.Unlock()
	done := make(chan struct{})
	go func() {
		a.mu.Lock()
		for len(a.runs) > 0 {
			a.idle.Wait()
		}
		a.mu.Unlock()
		a.background.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("runs still active: %w", context.Cause(ctx))
	}
}
