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
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// runsShown, jobsShown and firesShown are the lengths of lists.
	runsShown, jobsShown, firesShown = 20, 8, 8
	// historyEvery is how often the curves are read. They get a new point every minute.
	historyEvery = 30 * time.Second
	// listShown is how many leases, or databases of a worker, a page lists.
	listShown = 12
	// workerRuns is how many runs and scheduled runs a worker's page lists.
	workerRuns = 40
)

// board is the data of the overview.
type board struct {
	Workers part[[]status.Worker]
	Runs    part[[]run.Run]
	Counts  part[[]job.Count]
	// Failing jobs will be retried. Dead jobs will not.
	Working, Failing, Dead part[[]job.Job]
	Missed                 part[[]schedule.Fire]
	History                part[map[string][]status.BacklogSample]
	Verdict                verdict
}

// Current returns the running runs.
func (b *board) Current() (runs []run.Run) {
	for _, w := range b.Workers.Value {
		if w.CurrentRun != nil {
			runs = append(runs, *w.CurrentRun)
		}
	}
	for _, r := range b.Runs.Value {
		known := slices.ContainsFunc(runs, func(other run.Run) bool { return other.ID == r.ID })
		if r.State == running && !known && !b.Runs.Stale() {
			runs = append(runs, r)
		}
	}
	return runs
}

// running is the state of an unfinished run.
const running = "running"

// Ended returns the finished runs.
func (b *board) Ended() []run.Run {
	return slices.DeleteFunc(slices.Clone(b.Runs.Value), func(r run.Run) bool { return r.State == running })
}

// some is the part of a list that fits on a page. Others describes the omitted part, "" for none.
type some[T any] struct {
	Shown  []T
	Others string
}

// leases returns the leases of some workers: all held leases, and free ones up to the limit.
func leases(workers ...status.Worker) (l some[run.Lease]) {
	held := 0
	for _, w := range workers {
		for _, one := range w.Leases {
			if !one.Expired {
				held++
			}
			l.Shown = append(l.Shown, one)
		}
	}
	slices.SortStableFunc(l.Shown, func(a, b run.Lease) int {
		if a.Expired != b.Expired {
			return map[bool]int{true: 1, false: -1}[a.Expired]
		}
		return strings.Compare(a.Name, b.Name)
	})
	if more := len(l.Shown) - max(held, listShown); more > 0 {
		l.Shown = l.Shown[:len(l.Shown)-more]
		l.Others = fmt.Sprintf("%d more, free; caretaker leases lists them all.", more)
	}
	return l
}

// Leases returns the leases of all workers.
func (b *board) Leases() some[run.Lease] { return leases(b.Workers.Value...) }

// Curve returns a worker's backlog of the last hours. It ends with the current backlog.
func (b *board) Curve(w status.Worker) *curve {
	return curveOf(b.History.Value[w.Worker], w, b.Workers.At, overviewSpan)
}

// Used returns the workers that are enabled and configured.
func (b *board) Used() []status.Worker { return used(b.Workers.Value, true) }

// Unused returns the workers that are disabled or not configured.
func (b *board) Unused() []status.Worker { return used(b.Workers.Value, false) }

// used returns the workers that are used, or with are false the others.
func used(all []status.Worker, are bool) []status.Worker {
	return slices.DeleteFunc(slices.Clone(all),
		func(w status.Worker) bool { return (w.NotUsed == "") != are })
}

// InBanner reports whether the banner explains the worker's failure: its database also keeps other
// workers from running.
func (b *board) InBanner(w status.Worker) bool {
	return slices.ContainsFunc(outages(b.Used()), func(o outage) bool {
		return slices.Contains(o.Workers, w.Worker)
	})
}

// NotRead returns one message for all outdated lists, "" while main answers.
func (b *board) NotRead() string {
	if !b.Down() {
		return ""
	}
	if b.Runs.At.IsZero() {
		return "Out of date: the lists cannot be read."
	}
	return "Out of date: the lists were last read at " + clock(b.Runs.At) + " UTC."
}

// Down reports whether main does not answer.
func (b *board) Down() bool { return b.Runs.Err != nil }

// find is read for the entries that a filter selects.
func find[F, T any](
	ctx context.Context, p *pages, filter F, load func(context.Context, F) (T, error),
) part[T] {
	return read(ctx, p.recent, fmt.Sprintf("%T %+v", filter, filter), readEvery,
		func(ctx context.Context) (T, error) { return load(ctx, filter) })
}

// statuses returns the status of all workers, cached for all pages.
func (p *pages) statuses(ctx context.Context) part[[]status.Worker] {
	return find(ctx, p, "", p.config.Service.Status)
}

// history returns the samples of the backlogs, by worker. They are read at most once per
// historyEvery.
func (p *pages) history(ctx context.Context) part[map[string][]status.BacklogSample] {
	return read(ctx, p.recent, "history", historyEvery, p.config.Service.BacklogSamples)
}

// jobs returns up to jobsShown jobs in a state.
func (p *pages) jobs(ctx context.Context, state string) part[[]job.Job] {
	return find(ctx, p, job.Filter{State: state, Limit: jobsShown}, p.config.Service.Jobs)
}

// runs returns the runs that a filter selects.
func (p *pages) runs(ctx context.Context, f run.Filter) part[[]run.Run] {
	return find(ctx, p, f, p.config.Service.Runs)
}

// fires returns the fires that a filter selects.
func (p *pages) fires(ctx context.Context, f schedule.Filter) part[[]schedule.Fire] {
	return find(ctx, p, f, p.config.Service.Fires)
}

// board reads its parts concurrently.
func (p *pages) board(ctx context.Context) *board {
	b, missed := &board{}, schedule.Filter{Outcome: "missed", Limit: firesShown}
	var wait sync.WaitGroup
	wait.Go(func() { b.Workers = p.statuses(ctx) })
	wait.Go(func() { b.Runs = p.runs(ctx, run.Filter{Limit: runsShown}) })
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
	Status  status.Worker
	Runs    part[[]run.Run]
	Fires   part[[]schedule.Fire]
	Curve   *curve
	Verdict verdict
}

// Databases returns the worker's databases, those with a problem first.
func (p *workerPage) Databases() (d some[status.Database]) {
	all := p.Status.Databases
	d.Shown = all[:min(len(all), listShown)]
	if others := all[len(d.Shown):]; len(others) > 0 {
		var due int64
		for _, other := range others {
			due += other.Backlog.Due
		}
		d.Others = fmt.Sprintf("%d more, with %d due; caretaker status %s lists them all.",
			len(others), due, p.Status.Worker)
	}
	return d
}

// Leases returns the leases of the worker.
func (p *workerPage) Leases() some[run.Lease] { return leases(p.Status) }

// Down reports whether main does not answer.
func (p *workerPage) Down() bool { return p.Runs.Err != nil }

// worker serves the page of a worker. It reads runs, fires and the backlog's history in parallel.
// An unknown name is an error page.
func (p *pages) worker(w http.ResponseWriter, r *http.Request) {
	ctx, name := r.Context(), r.PathValue("name")
	all := p.statuses(ctx)
	i := slices.IndexFunc(all.Value, func(s status.Worker) bool { return s.Worker == name })
	if i < 0 {
		p.fail(w, r, fault.Unknown(fault.ErrUnknownWorker, "worker", name, "worker "+name+" not found"))
		return
	}
	page := &workerPage{Status: all.Value[i]}
	var history part[map[string][]status.BacklogSample]
	var wait sync.WaitGroup
	wait.Go(func() { page.Runs = p.runs(ctx, run.Filter{Worker: name, Limit: workerRuns}) })
	wait.Go(func() {
		page.Fires = p.fires(ctx, schedule.Filter{Worker: name, Limit: workerRuns})
	})
	wait.Go(func() { history = p.history(ctx) })
	wait.Wait()
	page.Curve = curveOf(history.Value[name], page.Status, all.At, workerSpan)
	page.Verdict = judge(all.Value[i:i+1], page.Runs.Err != nil).withDead(all.Value[i:i+1], nil)
	p.show(w, r, "worker", conditionText(page.Status.Condition)+" · "+name, page)
}

// runPage is the data of a run's page.
type runPage struct {
	Run  run.Run
	Jobs part[[]job.Job]
	// Status is the status of its worker, the zero value if unknown.
	Status status.Worker
}

// Percent returns the processed percentage of a running run, 0 if unknown.
func (p *runPage) Percent() int64 {
	done, known := service.Processed(p.Run.Worker, p.Run.Counts)
	b := p.Status.Backlog
	if !known || p.Run.State != running || p.Run.DryRun || p.Status.BacklogUnknown || b.AtLeast ||
		b.Due == 0 || len(p.Status.Leases) > 1 {
		return 0
	}
	return done * 100 / (done + b.Due)
}

// runJobs is how many jobs a run's page shows.
const runJobs = 50

// run serves the page of a run. It reads the worker's status only while the run is running, and
// jobs only if the configuration has them.
func (p *pages) run(w http.ResponseWriter, r *http.Request) {
	id := strings.ToLower(r.PathValue("id"))
	found := read(r.Context(), p.recent, "run "+id, readEvery,
		func(ctx context.Context) (run.Run, error) { return p.config.Service.Run(ctx, id) })
	if found.Err != nil {
		p.fail(w, r, found.Err)
		return
	}
	page := &runPage{Run: found.Value}
	if page.Run.State == running {
		for _, s := range p.statuses(r.Context()).Value {
			if s.Worker == page.Run.Worker {
				page.Status = s
			}
		}
	}
	if p.hasJobs() {
		page.Jobs = read(r.Context(), p.recent, "jobs of "+id, readEvery,
			func(ctx context.Context) ([]job.Job, error) {
				return p.config.Service.JobsOfRun(ctx, id, runJobs)
			})
	}
	p.show(w, r, "run", page.Run.State+" · "+page.Run.Worker, page)
}

// job serves the page of a job. An invalid or unknown id is an error page.
func (p *pages) job(w http.ResponseWriter, r *http.Request) {
	id, err := jobOf(r)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	found := read(r.Context(), p.recent, fmt.Sprint("job ", id), readEvery,
		func(ctx context.Context) (job.Job, error) { return p.config.Service.Job(ctx, id) })
	if found.Err != nil {
		p.fail(w, r, found.Err)
		return
	}
	p.show(w, r, "job", fmt.Sprintf("%s · job %d", found.Value.State, id), found.Value)
}
