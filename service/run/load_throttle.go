package run

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// A run that writes checks the load before each statement. Over a limit it rests between them, the
// longer the further over; while it is far over, it writes nothing. If that lasts it ends:
// SUCCEEDED, over_limit, and the reason says which limit. A limit is counted from the start of the
// run, so that each run has its chance.

const (
	// minRest and maxRest bound the rest before a statement.
	minRest, maxRest = 100 * time.Millisecond, 2 * time.Second
	// restStep is how long a run rests before it checks again.
	restStep = 500 * time.Millisecond
)

// throttle is how far the load slows a run down.
type throttle struct {
	// stopRequested closes when the run is to stop.
	stopRequested <-chan struct{}

	mu sync.Mutex
	// rested is all the time in which the run, or a part of it, rests, up to the time until.
	// released is when a statement was last allowed.
	rested          time.Duration
	until, released time.Time
	// excess is why the run rests, or has rested before its last statement; nil: it does not.
	excess *Excess
}

// waitForLoad rests as the load of a database, and of the table that is to be changed, wants it.
// Its error is why the run stops.
func (x *Execution) waitForLoad(ctx context.Context, d *repo.Database, table repo.Table) error {
	worked, rested := x.throttle.worked(), time.Duration(0)
	for {
		if err := x.Stopped(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := x.loads.Overloaded(ctx, d, table)
		switch {
		case e == nil:
			x.throttle.release(nil)
			return nil
		case x.patienceOver(e):
			return x.stopThrottled(ctx, e)
		}
		rest := restStep
		if !e.Far() {
			rest = min(restOf(worked, e.ratio)-rested, restStep)
		}
		if !x.Worker.Untimed {
			rest = min(rest, x.Left())
		}
		if rest <= 0 {
			if e.Far() {
				// Its time is over, and this is no moment for a last statement.
				return x.stopThrottled(ctx, e)
			}
			x.throttle.release(e)
			return nil
		}
		rest, ofRun, first := x.throttle.rest(ctx, e, rest)
		rested += rest
		x.recordRest(ctx, e.String(), rest, first)
		x.metrics.AddRest(ctx, x.Worker.Name, x.Database.Name, ofRun)
	}
}

func (x *Execution) stopThrottled(ctx context.Context, e *Excess) error {
	x.Log.InfoContext(ctx, "run ends early because of the database's load", "load", e.String())
	x.RequestStop(StopError{Reason: repo.Reason{Code: ReasonThrottled, Detail: e.String()}, Early: true})
	return x.Stopped()
}

// restOf is how long to rest after some work: that long times the ratio.
func restOf(worked time.Duration, ratio float64) time.Duration {
	return min(max(time.Duration(float64(worked)*ratio), minRest), maxRest)
}

// patienceOver reports whether an excess lasts too long for this run.
func (x *Execution) patienceOver(e *Excess) bool {
	return time.Since(Later(e.began, x.started)) >= x.loads.config.Patience
}

// worked is the time since a statement was last allowed.
func (t *throttle) worked() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released.IsZero() {
		return 0
	}
	return time.Since(t.released)
}

// release notes that a statement is allowed.
func (t *throttle) release(e *Excess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released, t.excess = time.Now(), e
}

// rest rests until the time is over or the run is to stop, and returns for how long, and how much
// that adds to the rest of the run, whose batches may rest side by side. first: it had not rested
// before.
func (t *throttle) rest(ctx context.Context, e *Excess, wanted time.Duration) (rested, ofRun time.Duration, first bool) {
	began := time.Now()
	t.mu.Lock()
	t.excess, first = e, t.rested == 0
	ofRun = max(0, began.Add(wanted).Sub(Later(began, t.until)))
	t.rested, t.until = t.rested+ofRun, Later(began.Add(wanted), t.until)
	t.mu.Unlock()
	timer := time.NewTimer(wanted)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.stopRequested:
	case <-ctx.Done():
	}
	return time.Since(began), ofRun, first
}

// words say what slows the run down now, "" if nothing does.
func (t *throttle) words() string {
	e, rested := t.state()
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%s; it has rested for %s", e, rested.Round(time.Second))
}

// state is what slows the run down now, nil if nothing does, and for how long it has rested
// in all.
func (t *throttle) state() (*Excess, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.excess, t.rested
}

// ResumesAfterLoad reports whether ResumeRuns continues what the load has ended.
func (r *Runner) ResumesAfterLoad(w *Worker) bool {
	return !w.Config.Disabled() && w.Databases == nil && !r.Loads.config.off() && time.Until(w.Next(time.Now())) >= soon
}

// endedByLoad says that the load has ended the worker's last run and is over by now, and that the next
// fire is far away.
func (r *Runner) endedByLoad(ctx context.Context, w *Worker) (bool, error) {
	if !r.ResumesAfterLoad(w) {
		return false, nil
	}
	runs, err := r.Main.RunSummary(ctx, w.Name)
	if err != nil || runs.Current != nil || runs.Last == nil || runs.Last.State != repo.RunSucceeded {
		return false, err
	}
	reason := runs.Last.Reason
	return repo.ReadReason(reason).Code == ReasonThrottled && r.Loads.Overloaded(ctx, r.Main, repo.Table{}) == nil &&
		r.Loads.Lasting(ctx, r.Main, reason) == nil, nil
}

// Unfinished is the reason of a run that must not wait for the worker's schedule, "" if there is none
// to be: it continues the work of one which died, or which the load has ended.
func (r *Runner) Unfinished(ctx context.Context, w *Worker) (reason string, err error) {
	if w.Abandoned != nil {
		abandoned, err := w.Abandoned(ctx)
		if err != nil {
			return "", err
		}
		if abandoned {
			return ReasonContinuation, nil
		}
	}
	if ended, err := r.endedByLoad(ctx, w); err != nil || !ended {
		return "", err
	}
	return reasonAfterLoad, nil
}

// soon is how near the next fire is when nothing needs to be resumed before it.
const soon = 5 * time.Minute

// Later is the later one of two times.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// SlowedBy is what slows a run at work in this process down, "" if nothing does; false: it is not at
// work here.
func (r *Runner) SlowedBy(id string) (why string, here bool) {
	x := r.local(id)
	if x == nil {
		return "", false
	}
	return x.throttle.words(), true
}
