package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// throttled says what slows the worker down: the load that its run at work rests for, that of its databases now, or what
// has ended its last run early if another goes on here before the schedule; "" if nothing does.
func (s *Service) throttled(ctx context.Context, w *run.Worker, st WorkerStatus) string {
	if st.CurrentRun != nil {
		if slow, here := s.SlowedBy(st.CurrentRun.ID); here {
			return slow
		}
		// Its server says so with each heartbeat.
		if slow := repo.ReadReason(st.CurrentRun.Reason); slow.Code == run.ReasonThrottled {
			return slow.Detail
		}
	}
	for _, d := range w.LeaseDatabases(s.Runner) {
		if e := s.Loads.Overloaded(ctx, d, repo.Table{}); e != nil {
			return e.String()
		}
		if ended := earlyEnd(st); ended != "" {
			if e := s.Loads.Lasting(ctx, d, st.LastRun.Reason); e != nil {
				return e.String()
			}
		}
	}
	if ended := earlyEnd(st); ended != "" && (repo.ReadReason(st.LastRun.Reason).Code == run.ReasonQueueFull || !s.schedulerOff && s.ResumesAfterLoad(w)) {
		return ended
	}
	return ""
}

// earlyEnd says what has ended the last run early, "" if nothing has, or one is at work.
func earlyEnd(st WorkerStatus) string {
	if st.CurrentRun != nil || st.LastRun == nil || !run.EndedEarly(st.LastRun.Reason) {
		return ""
	}
	return "the last run ended early, the next one goes on: " + st.LastRun.Reason
}

// failedItems says what the last run could not do although it has succeeded, which the condition does
// not show. "" if nothing, or while a run is at work.
func failedItems(w *run.Worker, st WorkerStatus) string {
	if st.CurrentRun != nil || st.LastRun == nil || st.LastRun.State != repo.RunSucceeded {
		return ""
	}
	reason := st.LastRun.Reason
	if w.StatusReason != nil {
		reason = w.StatusReason(reason)
	}
	undone := func(count string) bool { return st.LastRun.Counts[count] > 0 }
	if reason == "" || !slices.ContainsFunc(w.FailureCounts, undone) {
		return ""
	}
	return fmt.Sprintf("of the last run, %s: %s", st.LastRun.ID, reason)
}

func runningDetail(r *run.Run, throttled string) string {
	detail := fmt.Sprintf("run %s is at work", r.ID)
	if r.Database != "" {
		detail += " on " + r.Database
	}
	if r.DryRun {
		detail += " (dry run)"
	}
	if !r.SilentSince.IsZero() {
		detail += ": " + r.Reason
	}
	if throttled != "" {
		detail += "; slowed down: " + throttled
	}
	return detail
}
