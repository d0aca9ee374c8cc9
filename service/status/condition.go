package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// The functions here return the text of a condition, or "" if it does not apply.

// running describes the current run, or returns "" without one. throttled is the load that slows
// it down.
func running(r *run.Run, throttled string) string {
	if r == nil {
		return ""
	}
	return "run " + r.ID + " is running" + when(r.Database != "", " on "+r.Database) +
		when(r.DryRun, " (dry run)") + when(!r.SilentSince.IsZero(), ": "+r.Reason) +
		when(throttled != "", "; slowed down: "+throttled)
}

// paused describes the pause in force, or returns "".
func paused(worker string, p *run.Pause) string {
	if p == nil {
		return ""
	}
	return (&fault.WorkerPausedError{Worker: worker, Pause: *p}).Error()
}

// failing joins the messages of the problems, each with its start time if that is known.
func failing(found []Problem) string {
	texts := make([]string, len(found))
	for i, p := range found {
		texts[i] = p.Message
		if !p.Since.IsZero() {
			texts[i] += fmt.Sprintf(" (since %s)", p.Since.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(summarize(texts, "problems"), "; ")
}

// elsewhere describes a lease that another server holds, or returns "".
func (r *Reporter) elsewhere(leases []run.Lease) (holding string) {
	for _, l := range leases {
		if !l.Expired && l.Holder != r.runner.Replica {
			holding = l.Holding()
		}
	}
	return holding
}

// off explains why this server starts no scheduled runs of a worker. It returns "" if it does.
func (r *Reporter) off(w *run.Worker) string {
	switch {
	case r.config.SchedulerOff:
		return "the scheduler of this server is disabled (scheduler.enabled), so runs start on this server only " +
			"on request"
	case w.Config.Disabled():
		return schedule.NotEnabled(w.Name) + ", so runs start on this server only on request"
	}
	return ""
}

// idle describes the wait for the next scheduled run, and why the last run was skipped.
func idle(st Worker) string {
	detail := "waiting for " + st.NextRunAt.UTC().Format(time.RFC3339)
	if r := st.LastRun; r != nil && r.State == control.RunSkipped {
		detail += "; the last run was skipped: " + format.Join(r.Reason, r.Error)
	}
	return detail
}

// throttled returns what slows the worker down. That is the load that its current run waits for,
// the load of its databases now, or what ended its last run early. The last counts only if this
// server starts another run before the schedule.
func (r *Reporter) throttled(
	ctx context.Context, w *run.Worker, st Worker, early string,
) string {
	if st.CurrentRun != nil {
		if slow, here := r.runner.SlowedBy(st.CurrentRun.ID); here {
			return slow
		}
		// The run's server reports this with each heartbeat.
		if slow := reasons.Read(st.CurrentRun.Reason); slow.Code == fault.ReasonThrottled {
			return slow.Detail
		}
	}
	for _, d := range w.LeaseDatabases(r.runner) {
		e := r.runner.Loads.Overloaded(ctx, d, catalog.Table{})
		if e == nil && early != "" {
			e = r.runner.Loads.StillExceeded(ctx, d, st.LastRun.Reason)
		}
		if e != nil {
			return e.String()
		}
	}
	resumed := early != "" && (reasons.Read(st.LastRun.Reason).Code == fault.ReasonQueueFull ||
		!r.config.SchedulerOff && r.runner.ResumesAfterLoad(w))
	return when(resumed, early)
}

// lastRun returns why the last run ended early, or what it could not do although it succeeded. Both
// are "" if neither applies, and during a run.
func lastRun(w *run.Worker, st Worker) (early, undone string) {
	r := st.LastRun
	if st.CurrentRun != nil || r == nil {
		return "", ""
	}
	if fault.EndedEarly(r.Reason) {
		return "the last run ended early (" + r.Reason + "), and the next run resumes", ""
	}
	reason := r.Reason
	if w.StatusReason != nil {
		reason = w.StatusReason(reason)
	}
	fails := func(count string) bool { return r.Counts[count] > 0 }
	if reason == "" || r.State != control.RunSucceeded ||
		!slices.ContainsFunc(w.FailureCounts, fails) {
		return "", ""
	}
	return "", fmt.Sprintf("last run (%s): %s", r.ID, reason)
}
