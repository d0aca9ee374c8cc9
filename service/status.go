package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// Status returns the status of a worker, or of all workers (""). It answers even while databases do
// not: the condition is FAILING then. All workers does not include optional ones that were never
// enabled on any server and have never run.
func (s *Service) Status(ctx context.Context, name string) ([]WorkerStatus, error) {
	workers, err := s.named(name)
	if err != nil {
		return nil, err
	}
	out := make([]WorkerStatus, len(workers))
	shared := sync.OnceValue(func() overview { return s.overview(ctx) })
	var turns errgroup.Group
	turns.SetLimit(maxParallel)
	for i, w := range workers {
		turns.Go(func() error {
			out[i] = s.status(ctx, w, shared)
			return nil
		})
	}
	_ = turns.Wait()
	return slices.DeleteFunc(out, func(st WorkerStatus) bool {
		w, _ := s.Worker(st.Worker)
		return name == "" && w.Optional && w.Config.Disabled() && st.NotUsed != "" && st.LastRun == nil
	}), nil
}

// maxParallel is the number of workers read at the same time. Each takes up to three connections of
// main, which work needs too.
const maxParallel = 3

// problem is a possible condition of a worker. Its text is "" if the condition does not apply.
type problem struct {
	condition Condition
	text      string
}

// status returns the status of a worker: its first problem is the condition, then come the remarks.
func (s *Service) status(
	ctx context.Context, w *run.Worker, shared func() overview,
) WorkerStatus {
	st, r := s.read(ctx, w, shared)
	fires := s.Health(ctx, w)
	if r.off == "" && r.missing == "" {
		st.NextRunAt = w.Next(fires.Now)
	}
	failing, answering := s.failing(ctx, w, r)
	st.Databases = databasesOf(w, r.places, failing)
	early, undone := lastRun(w, st)
	throttled := ""
	if len(failing) == 0 {
		throttled = s.throttled(ctx, w, st, early)
	}
	if st.CurrentRun == nil {
		// Without a cron, no other server has a ledger of its fires either.
		disabled := w.Config.Disabled() && fires.Cron == ""
		st.NotUsed = cmp.Or(r.missing, when(disabled, schedule.NotEnabled(w.Name)))
	}
	// The backlog of a worker that is not configured is shown only if it has entries.
	none := st.Backlog.Pending == 0 && st.Backlog.Dead == 0
	st.BacklogUnknown = st.BacklogUnknown || r.missing != "" && none
	st.conclude(slices.Concat(r.remarks, answering, []string{
		schedule.Remark(fires),
		s.refused(w),
		when(st.Backlog.AtLeast, "the backlog is at least as large as the figures say"),
		when(!st.NextRunAt.IsZero(), w.UnscheduledRemark),
		when(throttled == "", early),
		undone,
	}, s.FailedJobs(w, shared().failed)), []problem{
		{ConditionRunning, running(st.CurrentRun, throttled)},
		{ConditionPaused, paused(w.Name, st.Paused)},
		{ConditionNotConfigured, r.missing},
		{ConditionFailing, failingText(failing)},
		{ConditionLeaseHeldElsewhere, s.elsewhere(st.Leases)},
		{ConditionThrottled, throttled},
		{ConditionSchedulerOff, r.off},
		{ConditionIdle, idle(st)},
	})
	if st.Condition == ConditionFailing {
		st.Failing = &failing[0]
	}
	return st
}

// conclude sets the condition to the first problem with a text, and appends the remarks.
func (st *WorkerStatus) conclude(remarks []string, ranked []problem) {
	for _, p := range ranked {
		switch {
		case p.text == "":
		case st.Condition == "":
			st.Condition, st.ConditionDetail = p.condition, p.text
		case p.condition == ConditionNotConfigured:
			remarks = append(remarks, "not configured: "+p.text)
		}
	}
	for _, remark := range remarks {
		if !strings.Contains(st.ConditionDetail, remark) {
			st.ConditionDetail += "; " + remark
		}
	}
}

func when(holds bool, text string) string {
	if holds {
		return text
	}
	return ""
}

func running(r *run.Run, throttled string) string {
	if r == nil {
		return ""
	}
	return "run " + r.ID + " is at work" + when(r.Database != "", " on "+r.Database) +
		when(r.DryRun, " (dry run)") + when(!r.SilentSince.IsZero(), ": "+r.Reason) +
		when(throttled != "", "; slowed down: "+throttled)
}

func paused(worker string, p *run.Pause) string {
	if p == nil {
		return ""
	}
	return (&fault.WorkerPausedError{Worker: worker, Pause: *p}).Error()
}

func (s *Service) elsewhere(leases []run.Lease) (holding string) {
	for _, l := range leases {
		if !l.Expired && l.Holder != s.Replica {
			holding = l.Holding()
		}
	}
	return holding
}

func idle(st WorkerStatus) string {
	detail := "waiting for " + st.NextRunAt.UTC().Format(time.RFC3339)
	if r := st.LastRun; r != nil && r.State == control.RunSkipped {
		detail += "; the last run was skipped: " + format.Join(r.Reason, r.Error)
	}
	return detail
}

// refused returns why the file of loose foreign keys was not reloaded, for their worker.
func (s *Service) refused(w *run.Worker) string {
	if why := s.definitionsRefused.Load(); why != nil && w.Name == lfk.Name {
		return *why
	}
	return ""
}

// throttled returns what slows the worker down, or "". That is the load that its current run waits
// for, the load of its databases now, or what ended its last run early. The last counts only if
// this server starts another run before the schedule.
func (s *Service) throttled(
	ctx context.Context, w *run.Worker, st WorkerStatus, early string,
) string {
	if st.CurrentRun != nil {
		if slow, here := s.SlowedBy(st.CurrentRun.ID); here {
			return slow
		}
		// The run's server reports this with each heartbeat.
		if slow := reasons.Read(st.CurrentRun.Reason); slow.Code == fault.ReasonThrottled {
			return slow.Detail
		}
	}
	for _, d := range w.LeaseDatabases(s.Runner) {
		e := s.Loads.Overloaded(ctx, d, catalog.Table{})
		if e == nil && early != "" {
			e = s.Loads.StillExceeded(ctx, d, st.LastRun.Reason)
		}
		if e != nil {
			return e.String()
		}
	}
	resumed := early != "" && (reasons.Read(st.LastRun.Reason).Code == fault.ReasonQueueFull ||
		!s.schedulerOff && s.ResumesAfterLoad(w))
	return when(resumed, early)
}

// lastRun returns why the last run ended early, or what it could not do although it succeeded. Both
// are "" if neither applies, and during a run.
func lastRun(w *run.Worker, st WorkerStatus) (early, undone string) {
	r := st.LastRun
	if st.CurrentRun != nil || r == nil {
		return "", ""
	}
	if fault.EndedEarly(r.Reason) {
		return "the last run ended early, the next one goes on: " + r.Reason, ""
	}
	reason := r.Reason
	if w.StatusReason != nil {
		reason = w.StatusReason(reason)
	}
	fails := func(count string) bool { return r.Counts[count] > 0 }
	if reason == "" || r.State != control.RunSucceeded || !slices.ContainsFunc(w.FailureCounts, fails) {
		return "", ""
	}
	return "", fmt.Sprintf("of the last run, %s: %s", r.ID, reason)
}
