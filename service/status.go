package service

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// Status says where a worker stands, or all of them (""). It answers even while databases do not: the condition is
// FAILING then.
func (s *Service) Status(ctx context.Context, name string) ([]WorkerStatus, error) {
	workers := s.Workers
	if name != "" {
		w, err := s.Worker(name)
		if err != nil {
			return nil, err
		}
		workers = []*run.Worker{w}
	}
	out := make([]WorkerStatus, len(workers))
	shared := sync.OnceValue(func() overview { return s.overview(ctx) })
	turns := make(chan struct{}, statusTurns)
	var wait sync.WaitGroup
	for i, w := range workers {
		wait.Go(func() {
			turns <- struct{}{}
			out[i] = s.status(ctx, w, shared)
			<-turns
		})
	}
	wait.Wait()
	if name == "" {
		out = slices.DeleteFunc(out, s.unseen)
	}
	return out, nil
}

// unseen says that an optional worker was never enabled here or elsewhere, and has never run: among
// all workers it is of no interest.
func (s *Service) unseen(st WorkerStatus) bool {
	w, err := s.Worker(st.Worker)
	return err == nil && w.Optional && w.Config.Disabled() && st.NotUsed != "" && st.LastRun == nil
}

// statusTurns is how many workers are read side by side: the connections of main are there for work,
// and a worker takes up to three.
const statusTurns = 3

// overview is what main knows of all workers at once.
type overview struct {
	pauses []run.Pause
	failed []repo.FailedJobs
	err    error
}

// overview is read once for each status call.
func (s *Service) overview(ctx context.Context) (o overview) {
	if o.err = s.CloseAbandoned(ctx); o.err == nil {
		o.pauses, o.err = s.Main.Pauses(ctx)
	}
	if o.err == nil && s.queue != nil {
		// It is an extra: without it everything else is shown.
		o.failed, _ = s.Main.FailedJobs(ctx)
	}
	return o
}

func (s *Service) status(ctx context.Context, w *run.Worker, shared func() overview) WorkerStatus {
	st := WorkerStatus{Worker: w.Name, Schedule: w.Config.Schedule}
	var places []place
	var missing string
	var missingErr error
	var wait sync.WaitGroup
	wait.Go(func() { places = s.readBacklogs(ctx, w) })
	wait.Go(func() { missing, missingErr = w.Missing(ctx) })
	failures, err := s.readMain(ctx, w, shared(), &st)
	wait.Wait()
	var found problems
	found.add(s.failing(ctx, err))
	found.add(s.failing(ctx, missingErr))
	var remarks []string
	if err != nil && st.LastRun == nil {
		remarks = append(remarks, "last run and last success are not known while main does not answer")
	}
	for _, p := range places {
		found.add(s.failing(ctx, p.err))
	}
	remarks = append(remarks, st.add(places)...)
	found.add(s.queueProblem(ctx, w))
	if !s.schedulerOff && !w.Config.Disabled() {
		found.add(s.schedulerProblem(ctx, s.Heartbeat()))
	}
	away := slices.ContainsFunc(places, func(p place) bool { return p.err != nil })
	lasting, over := s.runProblems(ctx, w, failures, away)
	for _, f := range lasting {
		found.add(f)
	}
	remarks = append(remarks, over...)
	st.Databases = databasesOf(w, places, found)
	fires := s.Health(ctx, w)
	remarks = append(remarks, schedule.Remark(fires))
	if refused := s.definitionsRefused.Load(); refused != nil && w.Name == loosefk.Name {
		remarks = append(remarks, *refused)
	}
	if st.Backlog.AtLeast {
		remarks = append(remarks, "the backlog is at least as large as the figures say")
	}
	if !s.schedulerOff && !w.Config.Disabled() && missing == "" {
		st.NextRunAt = w.Next(fires.Now)
		remarks = append(remarks, w.UnscheduledRemark)
	}
	throttled := ""
	if len(found) == 0 {
		throttled = s.throttled(ctx, w, st)
	}
	if ended := earlyEnd(st); throttled == "" && ended != "" {
		remarks = append(remarks, ended)
	} else if failed := failedItems(w, st); ended == "" && failed != "" {
		remarks = append(remarks, failed)
	}
	st.Condition, st.ConditionDetail = s.condition(w, st, missing, throttled, found)
	if missing != "" {
		remarks = append(remarks, notConfigured(&st, missing))
	}
	if st.CurrentRun == nil {
		st.NotUsed = cmp.Or(missing, disabled(w, fires))
	}
	if st.Condition == ConditionFailing {
		st.Failing = &found[0]
	}
	remarks = append(remarks, s.FailedJobs(w, shared().failed)...)
	for _, remark := range remarks {
		if !strings.Contains(st.ConditionDetail, remark) {
			st.ConditionDetail += "; " + remark
		}
	}
	return st
}

// runProblems are those of the runs that failed, with remarks on runs that could not reach databases
// which answer again; while one is away, none is taken to. A full disk answers: the next run shows
// whether it is still full.
func (s *Service) runProblems(
	ctx context.Context, w *run.Worker, failures []repo.Failure, away bool,
) (lasting []Failing, remarks []string) {
	for _, record := range failures {
		f := failed(record)
		if f.Class != FailureUnreachable || away || repo.DiskFull(f.Message) || !s.answerAgain(ctx, w, record) {
			lasting = append(lasting, f)
		} else {
			remarks = append(remarks, f.Message+"; the databases answer again")
		}
	}
	return lasting, firstTold(remarks, "runs that failed so")
}

// notConfigured shows no backlog of a worker that is not configured, unless there is one. Its remark says why it is not,
// where the condition is another.
func notConfigured(st *WorkerStatus, missing string) (remark string) {
	st.BacklogUnknown = st.BacklogUnknown || st.Backlog.Pending == 0 && st.Backlog.Dead == 0
	if st.Condition == ConditionNotConfigured {
		return ""
	}
	return "not configured: " + missing
}

// place is what a worker's status has from one of its databases.
type place struct {
	leases  []run.Lease
	backlog repo.Backlog
	remark  string
	// known says that the backlog has been read, now or before; err, that the database does not answer now.
	known bool
	err   error
	// measuredAt is when the backlog was read, by the host's clock.
	measuredAt time.Time
}

// add adds what a worker's databases have to its status, and returns the remarks on it.
func (st *WorkerStatus) add(places []place) (remarks []string) {
	st.BacklogUnknown = true
	for _, p := range places {
		st.Backlog = addBacklogs(st.Backlog, p.backlog)
		st.BacklogUnknown = st.BacklogUnknown && !p.known
		st.Leases = append(st.Leases, p.leases...)
		if p.remark != "" {
			remarks = append(remarks, p.remark)
		}
	}
	return firstTold(remarks, "databases with remarks")
}

// leasesTimeout is how long a database may take to show its leases.
const leasesTimeout = 2 * time.Second

// readBacklogs reads leases and backlogs of the worker's databases side by side: those that do not
// answer must not delay the others.
func (s *Service) readBacklogs(ctx context.Context, w *run.Worker) []place {
	homes := w.LeaseDatabases(s.Runner)
	places := make([]place, len(homes))
	var wait sync.WaitGroup
	for i, d := range homes {
		wait.Go(func() {
			p := &places[i]
			bounded, cancel := context.WithTimeoutCause(ctx, leasesTimeout, repo.ErrUnreachable)
			defer cancel()
			if p.err = d.Writable(bounded); p.err == nil {
				p.leases, p.err = d.ListLeases(bounded, []string{w.LeaseName(d)})
			}
			p.backlog, p.remark, p.known = s.Backlogs.Get(ctx, w, d, p.err)
			p.measuredAt = s.Backlogs.MeasuredAt(w, d)
		})
	}
	wait.Wait()
	return places
}

// readMain fills in what main knows, and returns where the worker's runs fail. While main does not answer, at least the
// run at work in this process is known.
func (s *Service) readMain(ctx context.Context, w *run.Worker, all overview, st *WorkerStatus) ([]repo.Failure, error) {
	err := all.err
	var summary repo.RunSummary
	if err == nil {
		summary, err = s.Main.RunSummary(ctx, w.Name)
	}
	if err != nil {
		st.CurrentRun = s.AtWork(w)
		return nil, err
	}
	st.CurrentRun, st.LastRun = summary.Current, summary.Last
	if st.CurrentRun != nil {
		*st.CurrentRun = run.WithSilence(*st.CurrentRun)
	}
	if summary.LastSuccess != nil {
		st.LastSuccessAt = summary.LastSuccess.FinishedAt
	}
	st.Paused = run.PauseFor(w.Name, all.pauses)
	var databases []string
	for _, d := range w.LeaseDatabases(s.Runner) {
		databases = append(databases, run.DatabaseLabel(w, d))
	}
	return s.Main.Failures(ctx, w.Name, databases)
}

// condition is the first of the contract's conditions that holds.
func (s *Service) condition(w *run.Worker, st WorkerStatus, missing, throttled string, found problems) (Condition, string) {
	elsewhere := ""
	for _, l := range st.Leases {
		if !l.Expired && l.Holder != s.Replica {
			elsewhere = l.Holding()
		}
	}
	switch {
	case st.CurrentRun != nil:
		return ConditionRunning, runningDetail(st.CurrentRun, throttled)
	case st.Paused != nil:
		return ConditionPaused, (&run.WorkerPausedError{Worker: w.Name, Pause: *st.Paused}).Error()
	case missing != "":
		return ConditionNotConfigured, missing
	case len(found) > 0:
		return ConditionFailing, found.words()
	case elsewhere != "":
		return ConditionLeaseHeldElsewhere, elsewhere
	case throttled != "":
		return ConditionThrottled, throttled
	case s.schedulerOff:
		return ConditionSchedulerOff, "the scheduler of this server is off (scheduler.enabled): here only requests start runs, other servers have schedules of their own"
	case w.Config.Disabled():
		return ConditionSchedulerOff, schedule.NotEnabled(w.Name) + "; here only requests start runs"
	}
	detail := "waiting for " + st.NextRunAt.UTC().Format(time.RFC3339)
	if st.LastRun != nil && st.LastRun.State == repo.RunSkipped {
		detail += "; the last run was skipped: " + why(st.LastRun.Reason, st.LastRun.Error)
	}
	return ConditionIdle, detail
}

// Leases lists the leases of a worker, or of all (""), by name. A database that does not answer is an error.
func (s *Service) Leases(ctx context.Context, name string) ([]run.Lease, error) {
	var out []run.Lease
	if name != "" {
		if _, err := s.Worker(name); err != nil {
			return nil, err
		}
	}
	for _, w := range s.Workers {
		if name != "" && w.Name != name {
			continue
		}
		for _, d := range w.LeaseDatabases(s.Runner) {
			leases, err := d.ListLeases(ctx, []string{w.LeaseName(d)})
			if err != nil {
				return nil, err
			}
			out = append(out, leases...)
		}
	}
	sortLeases(out)
	return out, nil
}

// disabled says that the worker is not enabled here, and that no other server has begun a ledger of its fires; else "".
func disabled(w *run.Worker, fires repo.WorkerFigures) string {
	if w.Config.Disabled() && fires.Cron == "" {
		return schedule.NotEnabled(w.Name)
	}
	return ""
}
