package run

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ResumesAfterLoad reports whether ResumeRuns continues a run that the load ended.
func (r *Runner) ResumesAfterLoad(w *Worker) bool {
	return !w.Config.Disabled() && w.Databases == nil && !r.Loads.Off() && time.Until(w.Next(time.Now())) >= minResumeGap
}

// endedByLoad reports whether the load ended the worker's last run, that load is over, and the next
// fire is far away.
func endedByLoad(ctx context.Context, r *Runner, w *Worker) (bool, error) {
	if !r.ResumesAfterLoad(w) {
		return false, nil
	}
	runs, err := r.Main.Runs.RunSummary(ctx, w.Name)
	if err != nil || runs.Current != nil || runs.Last == nil || runs.Last.State != control.RunSucceeded {
		return false, err
	}
	reason := runs.Last.Reason
	return reasons.Read(reason).Code == fault.ReasonThrottled && r.Loads.Overloaded(ctx, r.Main, catalog.Table{}) == nil &&
		r.Loads.StillExceeded(ctx, r.Main, reason) == nil, nil
}

// Unfinished returns the reason for a run that must not wait for the worker's schedule, or "". Such
// a run continues the work of a run that died, or that the load ended.
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
	if ended, err := endedByLoad(ctx, r, w); err != nil || !ended {
		return "", err
	}
	return reasonAfterLoad, nil
}

// minResumeGap is the time before the next fire in which nothing is resumed.
const minResumeGap = 5 * time.Minute

// SlowedBy returns what slows a run in this process down, or "". here is false if the run is not
// running here.
func (r *Runner) SlowedBy(id string) (why string, here bool) {
	x := r.Active.local(id)
	if x == nil {
		return "", false
	}
	return x.throttle.Reason(), true
}

// The reasons of runs that continue another run, besides the schedule. A run after the load does
// all that a scheduled run would, as the other perhaps has not even started.
const (
	ReasonContinuation = "continuation"
	reasonAfterLoad    = "after the load"
)
