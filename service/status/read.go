package status

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
)

// overview holds what main knows of all workers together.
type overview struct {
	pauses []run.Pause
	failed []jobqueue.FailedJobs
	err    error
}

// overview reads main once per status call.
func (r *Reporter) overview(ctx context.Context) (o overview) {
	main := r.runner.Main
	if o.err = r.runner.CloseAbandoned(ctx); o.err == nil {
		o.pauses, o.err = main.Flags.Pauses(ctx)
	}
	if o.err == nil && r.config.Queue != nil {
		// Optional: without failed jobs everything else is still shown.
		o.failed, _ = main.Jobs.FailedJobs(ctx)
	}
	return o
}

// reading holds what is read for the status of one worker.
type reading struct {
	databases []Database
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
func (r *Reporter) read(
	ctx context.Context, w *run.Worker, shared func() overview,
) (st Worker, got reading) {
	st = Worker{Worker: w.Name, Schedule: w.Config.Schedule, BacklogUnknown: true}
	var missingErr error
	// 1. Read the databases and what is missing, in goroutines of their own.
	var wait sync.WaitGroup
	wait.Go(func() { got.databases = r.ReadDatabases(ctx, w) })
	wait.Go(func() { got.missing, missingErr = w.Missing(ctx) })
	// 2. Read runs, pauses and failures from main meanwhile.
	all := shared()
	var runs control.RunSummary
	err := all.err
	if err == nil {
		runs, err = r.runner.Main.Runs.RunSummary(ctx, w.Name)
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
		var labels []string
		for _, d := range w.LeaseDatabases(r.runner) {
			labels = append(labels, run.DatabaseLabel(w, d))
		}
		got.failures, err = r.runner.Main.Runs.Failures(ctx, w.Name, labels)
	} else {
		st.CurrentRun = r.runner.Active.Current(w)
	}
	// 3. Add up the databases.
	wait.Wait()
	got.off, got.errs = r.off(w), []error{err, missingErr}
	for _, p := range got.databases {
		st.Backlog = addBacklogs(st.Backlog, p.Backlog)
		st.BacklogUnknown = st.BacklogUnknown && !p.Known
		st.Leases = append(st.Leases, p.Leases...)
		if p.Remark != "" {
			got.remarks = append(got.remarks, p.Remark)
		}
		got.errs = append(got.errs, p.Err)
	}
	got.remarks = summarize(got.remarks, "databases with remarks")
	if err != nil && st.LastRun == nil {
		got.remarks = slices.Insert(got.remarks, 0,
			"last run and last success are unknown while main does not answer")
	}
	return st, got
}

// Database is the status of a worker on one of its databases.
type Database struct {
	Name string
	run.KnownBacklog
	// Leases has the worker's lease in this database, held or expired.
	Leases []run.Lease
	// Err is set if the database does not answer now.
	Err error
	// Problem is what keeps the worker from running there. "" means nothing.
	Problem string
}

// unknown reports whether the backlog there is not known or out of date.
func (d Database) unknown() bool { return !d.Known || d.Err != nil }

// ReadDatabases reads leases and backlogs of the worker's databases in parallel: those that do not
// answer must not delay the others.
func (r *Reporter) ReadDatabases(ctx context.Context, w *run.Worker) []Database {
	homes := w.LeaseDatabases(r.runner)
	all := make([]Database, len(homes))
	run.EachDatabase(ctx, homes, func(ctx context.Context, i int, d *repo.Database) {
		leases, err := writableLeases(ctx, d, w.LeaseName(d))
		known := r.runner.Backlogs.Get(ctx, w, d, err)
		all[i] = Database{Name: d.Name, KnownBacklog: known, Leases: leases, Err: err}
	})
	return all
}

// writableLeases lists the leases of a name in a database that accepts writes.
func writableLeases(ctx context.Context, d *repo.Database, name string) ([]run.Lease, error) {
	if err := d.Writable(ctx); err != nil {
		return nil, err
	}
	return d.Leases.ListLeases(ctx, []string{name})
}

// Leases lists the leases of a worker, or of all (""), by name. It fails if a database does not
// answer.
func (r *Reporter) Leases(ctx context.Context, name string) (out []run.Lease, err error) {
	workers, err := r.named(name)
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		homes := w.LeaseDatabases(r.runner)
		found, errs := make([][]run.Lease, len(homes)), make([]error, len(homes))
		run.EachDatabase(ctx, homes, func(ctx context.Context, i int, d *repo.Database) {
			found[i], errs[i] = d.Leases.ListLeases(ctx, []string{w.LeaseName(d)})
		})
		if err := cmp.Or(errs...); err != nil {
			return nil, err
		}
		out = slices.Concat(out, slices.Concat(found...))
	}
	slices.SortFunc(out, func(a, b run.Lease) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
