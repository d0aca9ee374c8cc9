package run

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ResumesAfterLoad reports whether ResumeRuns continues what the load has ended.
func (r *Runner) ResumesAfterLoad(w *Worker) bool {
	return !w.Config.Disabled() && w.Databases == nil && !r.Loads.Off() && time.Until(w.Next(time.Now())) >= minResumeGap
}

// endedByLoad says that the load has ended the worker's last run and is over by now, and that the next
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
	return reasons.ReadReason(reason).Code == fault.ReasonThrottled && r.Loads.Overloaded(ctx, r.Main, catalog.Table{}) == nil &&
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
	if ended, err := endedByLoad(ctx, r, w); err != nil || !ended {
		return "", err
	}
	return reasonAfterLoad, nil
}

// minResumeGap is how near the next fire is when nothing needs to be resumed before it.
const minResumeGap = 5 * time.Minute

// SlowedBy is what slows a run at work in this process down, "" if nothing does; false: it is not at
// work here.
func (r *Runner) SlowedBy(id string) (why string, here bool) {
	x := r.Active.local(id)
	if x == nil {
		return "", false
	}
	return x.throttle.Reason(), true
}

// The reasons of runs that continue what another has left, besides the schedule. One after the load
// does whatever the schedule's would: the other may not even have begun.
const (
	ReasonContinuation = "continuation"
	reasonAfterLoad    = "after the load"
)
