package service

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// overview holds what main knows of all workers together.
type overview struct {
	pauses []run.Pause
	failed []jobqueue.FailedJobs
	err    error
}

// overview reads main once per status call.
func (s *Service) overview(ctx context.Context) (o overview) {
	if o.err = s.CloseAbandoned(ctx); o.err == nil {
		o.pauses, o.err = s.Main.Flags.Pauses(ctx)
	}
	if o.err == nil && s.queue != nil {
		// Optional: without failed jobs everything else is still shown.
		o.failed, _ = s.Main.Jobs.FailedJobs(ctx)
	}
	return o
}

// reading holds what is read for the status of one worker.
type reading struct {
	places []databaseStatus
	// failures are the newest runs on its databases, if they failed.
	failures []control.Failure
	// missing is what the worker requires and does not have. "" means nothing.
	missing string
	// off is why fires do not start the worker here, "" if they do.
	off     string
	remarks []string
	errs    []error
}

// read reads the parts of a worker's status in parallel. While main does not answer, at least the
// run in this process is known.
func (s *Service) read(
	ctx context.Context, w *run.Worker, shared func() overview,
) (st WorkerStatus, r reading) {
	st = WorkerStatus{Worker: w.Name, Schedule: w.Config.Schedule, BacklogUnknown: true}
	var missingErr error
	var wait sync.WaitGroup
	wait.Go(func() { r.places = s.readBacklogs(ctx, w) })
	wait.Go(func() { r.missing, missingErr = w.Missing(ctx) })
	all := shared()
	var runs control.RunSummary
	err := all.err
	if err == nil {
		runs, err = s.Main.Runs.RunSummary(ctx, w.Name)
	}
	if err == nil {
		st.CurrentRun, st.LastRun = runs.Current, runs.Last
		st.Paused = run.PauseFor(w.Name, all.pauses)
		if st.CurrentRun != nil {
			*st.CurrentRun = run.WithSilence(*st.CurrentRun)
		}
		if runs.LastSuccess != nil {
			st.LastSuccessAt = runs.LastSuccess.FinishedAt
		}
		var databases []string
		for _, d := range w.LeaseDatabases(s.Runner) {
			databases = append(databases, run.DatabaseLabel(w, d))
		}
		r.failures, err = s.Main.Runs.Failures(ctx, w.Name, databases)
	} else {
		st.CurrentRun = s.Active.AtWork(w)
	}
	wait.Wait()
	r.off, r.errs = s.off(w), []error{err, missingErr}
	for _, p := range r.places {
		st.Backlog = addBacklogs(st.Backlog, p.Backlog)
		st.BacklogUnknown = st.BacklogUnknown && !p.Known
		st.Leases = append(st.Leases, p.leases...)
		if p.Remark != "" {
			r.remarks = append(r.remarks, p.Remark)
		}
		r.errs = append(r.errs, p.err)
	}
	r.remarks = summarize(r.remarks, "databases with remarks")
	if err != nil && st.LastRun == nil {
		r.remarks = slices.Insert(r.remarks, 0,
			"last run and last success are not known while main does not answer")
	}
	return st, r
}

func (s *Service) off(w *run.Worker) string {
	switch {
	case s.schedulerOff:
		return "the scheduler of this server is off (scheduler.enabled): " +
			"here only requests start runs, other servers have schedules of their own"
	case w.Config.Disabled():
		return schedule.NotEnabled(w.Name) + "; here only requests start runs"
	}
	return ""
}

// databaseStatus is the part of a worker's status from one database.
type databaseStatus struct {
	run.KnownBacklog
	leases []run.Lease
	// err is set if the database does not answer now.
	err error
}

// leasesTimeout is how long reading the leases of a database may take.
const leasesTimeout = 2 * time.Second

// readBacklogs reads leases and backlogs of the worker's databases in parallel: those that do not
// answer must not delay the others.
func (s *Service) readBacklogs(ctx context.Context, w *run.Worker) []databaseStatus {
	homes := w.LeaseDatabases(s.Runner)
	places := make([]databaseStatus, len(homes))
	var wait sync.WaitGroup
	for i, d := range homes {
		wait.Go(func() {
			p := &places[i]
			p.leases, p.err = writableLeases(ctx, d, w.LeaseName(d))
			p.KnownBacklog = s.Backlogs.Get(ctx, w, d, p.err)
		})
	}
	wait.Wait()
	return places
}

// writableLeases lists the leases of a name in a database that accepts writes.
func writableLeases(ctx context.Context, d *repo.Database, name string) ([]run.Lease, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, leasesTimeout, dberr.ErrUnreachable)
	defer cancel()
	if err := d.Writable(ctx); err != nil {
		return nil, err
	}
	return d.Leases.ListLeases(ctx, []string{name})
}

func addBacklogs(a, b control.Backlog) control.Backlog {
	sum := control.Backlog{
		Pending: a.Pending + b.Pending, Due: a.Due + b.Due, Deferred: a.Deferred + b.Deferred,
		Dead: a.Dead + b.Dead, AtLeast: a.AtLeast || b.AtLeast, OldestAt: a.OldestAt,
		Untracked: a.Untracked + b.Untracked,
	}
	if sum.OldestAt.IsZero() || (!b.OldestAt.IsZero() && b.OldestAt.Before(sum.OldestAt)) {
		sum.OldestAt = b.OldestAt
	}
	return sum
}

// Leases lists the leases of a worker, or of all (""), by name. It fails if a database does not
// answer.
func (s *Service) Leases(ctx context.Context, name string) (out []run.Lease, err error) {
	workers, err := s.named(name)
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		for _, d := range w.LeaseDatabases(s.Runner) {
			leases, err := d.Leases.ListLeases(ctx, []string{w.LeaseName(d)})
			if err != nil {
				return nil, err
			}
			out = append(out, leases...)
		}
	}
	slices.SortFunc(out, func(a, b run.Lease) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// named returns the worker with a name, or all workers for "".
func (s *Service) named(name string) ([]*run.Worker, error) {
	if name == "" {
		return s.Workers, nil
	}
	w, err := s.Worker(name)
	return []*run.Worker{w}, err
}
