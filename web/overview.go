package web

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service"
)

const (
	// runsShown, jobsShown and firesShown are lengths of lists.
	runsShown, jobsShown, firesShown = 20, 8, 8
	// historyEvery is how often the curves are read: they get a new point a minute.
	historyEvery = 30 * time.Second
	// listShown is how many leases, or databases of a worker, a page lists.
	listShown = 12
	// workerRuns is how many runs and fires the page of a worker has.
	workerRuns = 40
)

// board is the data of the overview.
type board struct {
	Workers part[[]service.WorkerStatus]
	Runs    part[[]service.Run]
	Counts  part[[]service.JobCount]
	// Failing jobs will be retried; Dead ones will not.
	Working, Failing, Dead part[[]service.Job]
	Missed                 part[[]service.Fire]
	History                part[map[string][]service.BacklogSample]
	Verdict                verdict
}

// Current are the runs at work.
func (b *board) Current() (runs []service.Run) {
	for _, w := range b.Workers.Value {
		if w.CurrentRun != nil {
			runs = append(runs, *w.CurrentRun)
		}
	}
	for _, r := range b.Runs.Value {
		known := slices.ContainsFunc(runs, func(other service.Run) bool { return other.ID == r.ID })
		if r.State == running && !known && !b.Runs.Stale() {
			runs = append(runs, r)
		}
	}
	return runs
}

// running is the state of a run that has not ended.
const running = "running"

// Ended are the runs that have ended.
func (b *board) Ended() []service.Run {
	return slices.DeleteFunc(slices.Clone(b.Runs.Value), func(r service.Run) bool { return r.State == running })
}

// Leases are those of all workers that a page has room for, held ones first.
func (b *board) Leases() []service.Lease {
	shown, _ := leasesOf(b.Workers.Value)
	return shown
}

// OtherLeases says how many others there are; "" for none.
func (b *board) OtherLeases() string {
	_, others := leasesOf(b.Workers.Value)
	return others
}

// leasesOf are the leases of some workers, held ones first: all of those, and free ones as long as
// there is room; others says how many more are free.
func leasesOf(workers []service.WorkerStatus) (shown []service.Lease, others string) {
	held := 0
	for _, w := range workers {
		shown = append(shown, w.Leases...)
	}
	slices.SortStableFunc(shown, func(a, b service.Lease) int {
		switch {
		case a.Expired == b.Expired:
			return strings.Compare(a.Name, b.Name)
		case b.Expired:
			return -1
		}
		return 1
	})
	for _, l := range shown {
		if !l.Expired {
			held++
		}
	}
	if more := len(shown) - max(held, listShown); more > 0 {
		return shown[:len(shown)-more], fmt.Sprintf("%d more, free; caretaker leases lists them all.", more)
	}
	return shown, ""
}

// Curve of a worker's backlog over the last hours, ending with the present one.
func (b *board) Curve(w service.WorkerStatus) *curve {
	return curveOf(b.History.Value[w.Worker], w, b.Workers.At, overviewSpan)
}

// Used are the workers that are enabled and configured.
func (b *board) Used() []service.WorkerStatus { return used(b.Workers.Value, true) }

// Unused are the others.
func (b *board) Unused() []service.WorkerStatus { return used(b.Workers.Value, false) }

func used(all []service.WorkerStatus, are bool) []service.WorkerStatus {
	return slices.DeleteFunc(slices.Clone(all),
		func(w service.WorkerStatus) bool { return (w.NotUsed == "") != are })
}

// InBanner reports whether the banner has said why a worker is failing: its database keeps others
// from running, too.
func (b *board) InBanner(w service.WorkerStatus) bool {
	return slices.ContainsFunc(outages(b.Used()), func(o outage) bool {
		return slices.Contains(o.Workers, w.Worker)
	})
}

// NotRead says once for all lists that they are older; "" while main answers.
func (b *board) NotRead() string {
	if !b.Down() {
		return ""
	}
	if b.Runs.At.IsZero() {
		return "Not read just now: lists are empty."
	}
	return "Not read just now: lists are of " + clock(b.Runs.At) + " UTC."
}

// Down reports whether main does not answer.
func (b *board) Down() bool { return b.Runs.Err != nil }

func (p *pages) statuses(ctx context.Context) part[[]service.WorkerStatus] {
	return read(ctx, p.recent, "status", readEvery,
		func(ctx context.Context) ([]service.WorkerStatus, error) {
			return p.config.Service.Status(ctx, "")
		})
}

func (p *pages) history(ctx context.Context) part[map[string][]service.BacklogSample] {
	return read(ctx, p.recent, "history", historyEvery, p.config.Service.BacklogSamples)
}

func (p *pages) jobs(ctx context.Context, state string) part[[]service.Job] {
	filter := service.JobFilter{State: state, Limit: jobsShown}
	return read(ctx, p.recent, "jobs "+state, readEvery,
		func(ctx context.Context) ([]service.Job, error) { return p.config.Service.Jobs(ctx, filter) })
}

func (p *pages) runs(ctx context.Context, worker string, limit int) part[[]service.Run] {
	filter := service.RunFilter{Worker: worker, Limit: limit}
	return read(ctx, p.recent, "runs "+worker, readEvery,
		func(ctx context.Context) ([]service.Run, error) { return p.config.Service.Runs(ctx, filter) })
}

func (p *pages) fires(ctx context.Context, f service.FireFilter) part[[]service.Fire] {
	return read(ctx, p.recent, "fires "+f.Worker+" "+f.Outcome, readEvery,
		func(ctx context.Context) ([]service.Fire, error) { return p.config.Service.Fires(ctx, f) })
}

// board reads its parts concurrently.
func (p *pages) board(ctx context.Context) *board {
	b, missed := &board{}, service.FireFilter{Outcome: "missed", Limit: firesShown}
	var wait sync.WaitGroup
	wait.Go(func() { b.Workers = p.statuses(ctx) })
	wait.Go(func() { b.Runs = p.runs(ctx, "", runsShown) })
	if p.hasJobs() {
		wait.Go(func() { b.Counts = read(ctx, p.recent, "counts", readEvery, p.config.Service.JobCounts) })
		wait.Go(func() { b.Working = p.jobs(ctx, running) })
		wait.Go(func() { b.Failing = p.jobs(ctx, "retryable") })
		wait.Go(func() { b.Dead = p.jobs(ctx, "discarded") })
	}
	wait.Go(func() { b.Missed = p.fires(ctx, missed) })
	wait.Go(func() { b.History = p.history(ctx) })
	wait.Wait()
	b.Verdict = judge(b.Used(), b.Down()).withDead(b.Used(), b.Counts.Value)
	return b
}

func (p *pages) overview(w http.ResponseWriter, r *http.Request) {
	b := p.board(r.Context())
	p.show(w, r, "overview", b.Verdict.Short+" · caretaker", b)
}

// workerPage is the data of a worker's page.
type workerPage struct {
	Status  service.WorkerStatus
	Runs    part[[]service.Run]
	Fires   part[[]service.Fire]
	Curve   *curve
	Verdict verdict
}

// Databases are those of the worker that a page has room for, those with a problem first.
func (p *workerPage) Databases() []service.DatabaseStatus {
	return p.Status.Databases[:min(len(p.Status.Databases), listShown)]
}

// OtherDatabases says what is due on the others; "" if there are none.
func (p *workerPage) OtherDatabases() string {
	others := p.Status.Databases[len(p.Databases()):]
	if len(others) == 0 {
		return ""
	}
	var due int64
	for _, d := range others {
		due += d.Backlog.Due
	}
	return fmt.Sprintf("%d more, with %d due; caretaker status %s lists them all.",
		len(others), due, p.Status.Worker)
}

// Leases are those of the worker that a page has room for, held ones first.
func (p *workerPage) Leases() []service.Lease {
	shown, _ := leasesOf([]service.WorkerStatus{p.Status})
	return shown
}

// OtherLeases says how many others there are; "" for none.
func (p *workerPage) OtherLeases() string {
	_, others := leasesOf([]service.WorkerStatus{p.Status})
	return others
}

// Down reports whether main does not answer.
func (p *workerPage) Down() bool { return p.Runs.Err != nil }

func (p *pages) worker(w http.ResponseWriter, r *http.Request) {
	ctx, name := r.Context(), r.PathValue("name")
	all := p.statuses(ctx)
	i := slices.IndexFunc(all.Value, func(s service.WorkerStatus) bool { return s.Worker == name })
	if i < 0 {
		p.fail(w, r, fmt.Errorf("%w %q", service.ErrUnknownWorker, name))
		return
	}
	page := &workerPage{Status: all.Value[i]}
	var history part[map[string][]service.BacklogSample]
	var wait sync.WaitGroup
	wait.Go(func() { page.Runs = p.runs(ctx, name, workerRuns) })
	wait.Go(func() {
		page.Fires = p.fires(ctx, service.FireFilter{Worker: name, Limit: workerRuns})
	})
	wait.Go(func() { history = p.history(ctx) })
	wait.Wait()
	page.Curve = curveOf(history.Value[name], page.Status, all.At, workerSpan)
	page.Verdict = judge(all.Value[i:i+1], page.Runs.Err != nil).withDead(all.Value[i:i+1], nil)
	p.show(w, r, "worker", words(page.Status.Condition)+" · "+name, page)
}

// runPage is the data of a run's page.
type runPage struct {
	Run  service.Run
	Jobs part[[]service.Job]
	// Status is that of its worker, the zero value if it is not known.
	Status service.WorkerStatus
}

// Percent is how much of what was due a run at work has done, 0 if that is not known.
func (p *runPage) Percent() int64 {
	done, known := service.Done(p.Run.Worker, p.Run.Counts)
	b := p.Status.Backlog
	if !known || p.Run.State != running || p.Run.DryRun || p.Status.BacklogUnknown || b.AtLeast ||
		b.Due == 0 || len(p.Status.Leases) > 1 {
		return 0
	}
	return done * 100 / (done + b.Due)
}

// runJobs is how many jobs a run's page shows.
const runJobs = 50

func (p *pages) run(w http.ResponseWriter, r *http.Request) {
	id := strings.ToLower(r.PathValue("id"))
	found, err := lookup(r.Context(), p, "run "+id,
		func(ctx context.Context) (service.Run, error) { return p.config.Service.Run(ctx, id) })
	if err != nil {
		p.fail(w, r, err)
		return
	}
	page := &runPage{Run: found}
	if found.State == running {
		all := p.statuses(r.Context()).Value
		i := slices.IndexFunc(all, func(s service.WorkerStatus) bool { return s.Worker == found.Worker })
		if i >= 0 {
			page.Status = all[i]
		}
	}
	page.Jobs = read(r.Context(), p.recent, "jobs of "+id, readEvery,
		func(ctx context.Context) ([]service.Job, error) {
			return p.config.Service.JobsOfRun(ctx, id, runJobs)
		})
	p.show(w, r, "run", found.State+" · "+found.Worker, page)
}

func (p *pages) job(w http.ResponseWriter, r *http.Request) {
	id, err := jobOf(r)
	var found service.Job
	if err == nil {
		found, err = lookup(r.Context(), p, fmt.Sprint("job ", id),
			func(ctx context.Context) (service.Job, error) { return p.config.Service.Job(ctx, id) })
	}
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.show(w, r, "job", fmt.Sprintf("%s · job %d", found.State, id), found)
}
