package run

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// A run that writes checks the load before each statement. Over a limit it pauses between them, the
// longer the further over; while it is far over, it writes nothing. If that lasts it ends:
// SUCCEEDED, over_limit, and the reason says which limit. A limit is counted from the start of the
// run, so that each run has its chance.

const (
	// minPause and maxPause bound the pause before a statement.
	minPause, maxPause = 100 * time.Millisecond, 2 * time.Second
	// pauseStep is how long a run pauses before it checks again.
	pauseStep = 500 * time.Millisecond
)

// throttle is how far the load slows a run down.
type throttle struct {
	// stopRequested closes when the run is to stop.
	stopRequested <-chan struct{}

	mu sync.Mutex
	// paused is all the time in which the run, or a part of it, pauses, up to the time until.
	// released is when a statement was last allowed.
	paused          time.Duration
	until, released time.Time
	// excess is why the run pauses, or has paused before its last statement; nil: it does not.
	excess *Excess
}

// waitForLoad pauses as the load of a database, and of the table that is to be changed, wants it.
// Its error is why the run stops.
func (x *Execution) waitForLoad(ctx context.Context, d *repo.Database, table repo.Table) error {
	worked, paused := x.throttle.worked(), time.Duration(0)
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
		case x.timedOut(e):
			return x.stopThrottled(ctx, e)
		}
		pause := pauseStep
		if !e.Severe() {
			pause = min(pauseFor(worked, e.ratio)-paused, pauseStep)
		}
		if !x.Worker.NoTimeLimit {
			pause = min(pause, x.Left())
		}
		if pause <= 0 {
			if e.Severe() {
				// Its time is over, and this is no moment for a last statement.
				return x.stopThrottled(ctx, e)
			}
			x.throttle.release(e)
			return nil
		}
		pause, ofRun, first := x.throttle.pause(ctx, e, pause)
		paused += pause
		x.recordPause(ctx, e.String(), pause, first)
		x.metrics.AddPause(ctx, x.Worker.Name, x.Database.Name, ofRun)
	}
}

func (x *Execution) stopThrottled(ctx context.Context, e *Excess) error {
	x.Log.InfoContext(ctx, "run ends early because of the database's load", "load", e.String())
	x.RequestStop(StopError{Reason: repo.Reason{Code: ReasonThrottled, Detail: e.String()}, Early: true})
	return x.Stopped()
}

// pauseFor is how long to pause after some work: that long times the ratio.
func pauseFor(worked time.Duration, ratio float64) time.Duration {
	return min(max(time.Duration(float64(worked)*ratio), minPause), maxPause)
}

// timedOut reports whether an excess lasts too long for this run.
func (x *Execution) timedOut(e *Excess) bool {
	return time.Since(Latest(e.began, x.started)) >= x.loads.config.Patience
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

// pause pauses until the time is over or the run is to stop, and returns for how long, and how much
// that adds to the pause of the run, whose batches may pause side by side. first: it had not paused
// before.
func (t *throttle) pause(ctx context.Context, e *Excess, wanted time.Duration) (paused, ofRun time.Duration, first bool) {
	began := time.Now()
	t.mu.Lock()
	t.excess, first = e, t.paused == 0
	ofRun = max(0, began.Add(wanted).Sub(Latest(began, t.until)))
	t.paused, t.until = t.paused+ofRun, Latest(began.Add(wanted), t.until)
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
	e, paused := t.state()
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%s; it has rested for %s", e, paused.Round(time.Second))
}

// state is what slows the run down now, nil if nothing does, and for how long it has paused
// in all.
func (t *throttle) state() (*Excess, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.excess, t.paused
}

// ResumesAfterLoad reports whether ResumeRuns continues what the load has ended.
func (r *Runner) ResumesAfterLoad(w *Worker) bool {
	return !w.Config.Disabled() && w.Databases == nil && !r.Loads.config.off() && time.Until(w.Next(time.Now())) >= minResumeGap
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
		r.Loads.StillExceeded(ctx, r.Main, reason) == nil, nil
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

// minResumeGap is how near the next fire is when nothing needs to be resumed before it.
const minResumeGap = 5 * time.Minute

// Latest is the later one of two times.
func Latest(a, b time.Time) time.Time {
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
