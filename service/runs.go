package service

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// admit lets a run in unless the service is stopping.
func (r *Runner) admit(x *execution) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return ErrStopping
	}
	r.active[x] = struct{}{}
	return nil
}

func (r *Runner) dismiss(x *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, x)
	if len(r.active) == 0 && r.stopped {
		r.idle.Broadcast()
	}
}

func (r *Runner) isStopping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// local is the run with this id if it is at work in this process.
func (r *Runner) local(id string) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.active {
		if x.snapshot().ID == id {
			return x
		}
	}
	return nil
}

// atWork is a run of the worker in this process, nil if there is none.
func (r *Runner) atWork(w *worker) *Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.active {
		select {
		case <-x.begun:
		default:
			continue
		}
		if run := x.snapshot(); x.worker == w && run.State == repo.RunRunning {
			return &run
		}
	}
	return nil
}

// errForgotten means that the run of a request id could not start and has left no record.
var errForgotten = errors.New("run forgotten")

// errSeen ends the watching of a run that has begun.
var errSeen = errors.New("seen")

// join waits for a run of any replica: for its end, or if async, for its beginning.
func (r *Runner) join(ctx context.Context, run Run, async bool) (Run, error) {
	if x := r.local(run.ID); x != nil {
		return x.join(ctx, async)
	}
	err := r.watch(ctx, run.ID, true, func(r Run) error {
		run = r
		if async && (r.DryRun || r.LeaseEpoch > 0) {
			return errSeen
		}
		return nil
	})
	switch {
	case errors.Is(err, errSeen):
		return run, nil
	case errors.Is(err, ErrUnknownRun):
		return Run{}, errForgotten
	}
	return run, err
}

// join returns the run as it is once it has begun if async, else as it is at its end.
func (x *execution) join(ctx context.Context, async bool) (Run, error) {
	begun := x.begun
	if !async {
		begun = nil
	}
	select {
	case <-begun:
		return x.snapshot(), nil
	case <-x.done:
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	}
	x.mu.Lock()
	refused := x.refused
	x.mu.Unlock()
	var known *knownRequestError
	switch {
	case errors.As(refused, &known):
		return Run{}, errForgotten
	case refused != nil:
		return Run{}, refused
	}
	return x.snapshot(), nil
}

// Run returns a run by its id, or [ErrUnknownRun].
func (r *Runner) Run(ctx context.Context, id string) (Run, error) {
	if err := validRunID(id); err != nil {
		return Run{}, err
	}
	if x := r.local(id); x != nil {
		return x.snapshot(), nil
	}
	run, err := r.main.Run(ctx, id)
	if err == nil && run.State == repo.RunRunning && !run.SilentSince.IsZero() {
		// Its process may have died. One that gives signs of life has not: whoever watches it asks twice a second.
		if err = r.closeAbandoned(ctx); err == nil {
			run, err = r.main.Run(ctx, id)
		}
	}
	return told(run), unknownRun(id, err)
}

// told is a run as it is shown: one at work that gives no sign of life says so.
func told(run Run) Run {
	if !run.SilentSince.IsZero() {
		run.Reason = fmt.Sprintf("no sign of life since %s, its process has died, stands still or cannot reach main; without one it ends as failed at %s",
			run.SilentSince.UTC().Format(time.RFC3339), run.DeadAt.UTC().Format(time.RFC3339))
	}
	return run
}

func validRunID(id string) error {
	if id == "" {
		return &InvalidArgumentError{Field: "id", Description: "is required: RunBatch and ListRuns return it"}
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
func (r *Runner) Runs(ctx context.Context, f RunFilter) ([]Run, error) {
	if f.After != "" && uuid.Validate(f.After) != nil {
		return nil, &InvalidArgumentError{Field: "page_token", Description: "is not one that ListRuns returned"}
	}
	if f.Worker != "" {
		if _, err := r.worker(f.Worker); err != nil {
			return nil, err
		}
	}
	if err := r.closeAbandoned(ctx); err != nil {
		return nil, err
	}
	runs, err := r.main.ListRuns(ctx, f.Worker, f.State, f.After, f.Limit)
	for i := range runs {
		runs[i] = told(runs[i])
	}
	return runs, err
}

const (
	// watchInterval is how often a run is looked at for those who watch it, watchPatience for how long main may not answer
	// meanwhile.
	watchInterval, watchPatience = 500 * time.Millisecond, 10 * time.Second
)

// WatchRun calls send with the run as it is, then whenever it has changed, the last time at its end. Once the run has been
// seen, a main that does not answer for less than 10 s does not end it.
func (r *Runner) WatchRun(ctx context.Context, id string, send func(Run) error) error {
	return r.watch(ctx, id, false, send)
}

// watch is WatchRun of a run that may be known to be there.
func (r *Runner) watch(ctx context.Context, id string, known bool, send func(Run) error) error {
	var last Run
	seen := time.Now()
	for {
		run, err := r.Run(ctx, id)
		switch {
		case err == nil:
			known, seen = true, time.Now()
		case !known || !errors.Is(err, ErrUnreachable) || time.Since(seen) > watchPatience:
			return err
		}
		if err == nil && !reflect.DeepEqual(run, last) {
			if err := send(run); err != nil {
				return err
			}
			last = run
		}
		if err == nil && run.State != repo.RunRunning {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}

// CancelRun asks a run to stop after the statement in flight, wherever it runs, and returns it as it is now. Who asks, ""
// if nobody knows, becomes the run's error; the first who asks counts.
func (r *Runner) CancelRun(ctx context.Context, id, by string) (Run, error) {
	if err := validRunID(id); err != nil {
		return Run{}, err
	}
	setTexts(trace.SpanFromContext(ctx), "maintenance.run_id", id)
	words := cancelWords(by)
	if x := r.local(id); x != nil {
		x.halt(cancelled(words))
	}
	if err := r.main.RequestCancel(ctx, id, words); err != nil {
		return Run{}, err
	}
	return r.Run(ctx, id)
}

// cancelWords are a cancelled run's error, "" if nobody knows who asked.
func cancelWords(by string) string {
	by = onRecord(strings.TrimSpace(by))
	if by == "" {
		return ""
	}
	return fmt.Sprintf("cancelled by %s, %s", by, time.Now().UTC().Format(time.RFC3339))
}

// insertRun records a run: that of a fire only while the fire is ours.
func (r *Runner) insertRun(ctx context.Context, run Run, ttl time.Duration) (stored Run, created bool, err error) {
	if run.Fire.IsZero() {
		return r.main.InsertRun(ctx, run, ttl)
	}
	stored, err = r.main.StartFire(ctx, run, ttl)
	return stored, err == nil, err
}

// forgetRun leaves nothing of a run whose lease cannot be had; one of the schedule is put on record as skipped.
func (r *Runner) forgetRun(ctx context.Context, run Run) error {
	if run.Fire.IsZero() {
		return r.main.DeleteRun(ctx, run.ID)
	}
	return nil
}

// maxBy is how many characters of who asks are put on record.
const maxBy = 200

// onRecord is who asks, as long as may be put on record.
func onRecord(by string) string {
	if long := []rune(by); len(long) > maxBy {
		return string(long[:maxBy])
	}
	return by
}

// resume starts a run that goes on with what another one has left. It does not wait for its end.
func (r *Runner) resume(ctx context.Context, w *worker, reason string) (Run, error) {
	if err := r.ready(ctx, w); err != nil {
		return Run{}, err
	}
	now, err := r.main.Now(ctx)
	if err != nil {
		return Run{}, err
	}
	x, err := r.start(ctx, w, Run{ID: newID(now), Worker: w.name, Trigger: repo.TriggerSchedule, Reason: reason, RequestedBy: r.replica}, r.main)
	if err != nil {
		return Run{}, err
	}
	return x.snapshot(), nil
}
