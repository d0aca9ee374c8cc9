package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// runsShown, jobsShown and firesShown are the lengths of lists.
	runsShown, jobsShown, firesShown = 12, 8, 8
	// historyEvery is how often samples are read. They change once a minute.
	historyEvery = 30 * time.Second
	// workerRuns is how many runs and scheduled runs a worker's page lists.
	workerRuns = 40
	// running is the state of an unfinished run.
	running = "running"
)

// board is the data of the overview.
type board struct {
	Workers part[[]status.Worker]
	Runs    part[[]run.Run]
	Counts  part[[]job.Count]
	// Failing jobs will be retried. Dead jobs will not.
	Working, Failing, Dead part[[]job.Job]
	Missed                 part[[]schedule.Fire]
	Changed                part[map[string][]status.ChangedRows]
	Samples                part[map[string][]status.DatabaseSample]
	Figures                part[[]status.DatabaseFigures]
	Summary                status.Summary
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

// Live returns the progress of a running run.
func (b *board) Live(r run.Run) liveRun {
	return live(part[run.Run]{Value: r}, b.Workers.Value, false)
}

// Ended returns the finished runs.
func (b *board) Ended() []run.Run {
	return slices.DeleteFunc(slices.Clone(b.Runs.Value), func(r run.Run) bool { return r.State == running })
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

// InBanner reports whether the banner explains the failure: other workers have it too.
func (b *board) InBanner(w status.Worker) bool {
	return slices.ContainsFunc(status.Outages(b.Used()), func(o status.Outage) bool {
		return slices.Contains(o.Workers, w.Worker)
	})
}

// find is read with the filter as the cache key.
func find[F, T any](ctx context.Context, p *pages, filter F, load func(context.Context, F) (T, error)) part[T] {
	return read(ctx, p.recent, fmt.Sprintf("%T %+v", filter, filter), readEvery,
		func(ctx context.Context) (T, error) { return load(ctx, filter) })
}

// statuses returns the status of all workers, cached for all pages.
func (p *pages) statuses(ctx context.Context) part[[]status.Worker] {
	return find(ctx, p, "", p.config.Service.Status)
}

// board reads its parts concurrently.
func (p *pages) board(ctx context.Context) *board {
	b, missed := &board{}, schedule.Filter{Outcome: "missed", Limit: firesShown}
	var wait sync.WaitGroup
	wait.Go(func() { b.Workers = p.statuses(ctx) })
	wait.Go(func() { b.Runs = find(ctx, p, run.Filter{Limit: runsShown}, p.config.Service.Runs) })
	if p.hasJobs() {
		wait.Go(func() { b.Counts = read(ctx, p.recent, "counts", readEvery, p.config.Service.JobCounts) })
		for state, of := range map[string]*part[[]job.Job]{running: &b.Working, "retryable": &b.Failing, "discarded": &b.Dead} {
			f := job.Filter{State: state, Limit: jobsShown}
			wait.Go(func() { *of = find(ctx, p, f, p.config.Service.Jobs) })
		}
	}
	wait.Go(func() { b.Missed = find(ctx, p, missed, p.config.Service.Fires) })
	wait.Go(func() {
		b.Changed = readLater(ctx, p.recent, "changed rows", historyEvery, p.config.Service.ChangedRows)
	})
	wait.Go(func() { b.Samples = p.samples(ctx) })
	wait.Go(func() { b.Figures = p.figures(ctx) })
	wait.Wait()
	b.Summary = status.Summarize(b.Used(), b.Counts.Value, b.Runs.Err)
	return b
}

func (p *pages) overview(w http.ResponseWriter, r *http.Request) {
	b := p.board(r.Context())
	p.show(w, r, "overview", b.Summary.Short+" · caretaker", b)
}

// workers serves the table of all workers.
func (p *pages) workers(w http.ResponseWriter, r *http.Request) {
	p.show(w, r, "workers", "Workers · caretaker", p.board(r.Context()))
}

// workerPage is the data of a worker's page.
type workerPage struct {
	Status  status.Worker
	Runs    part[[]run.Run]
	Fires   part[[]schedule.Fire]
	History part[map[string][]status.BacklogSample]
	Backlog chart
}

// worker serves the page of a worker. It reads runs, fires and the backlog's history in parallel.
func (p *pages) worker(w http.ResponseWriter, r *http.Request) {
	ctx, name := r.Context(), r.PathValue("name")
	all := p.statuses(ctx)
	i := slices.IndexFunc(all.Value, func(s status.Worker) bool { return s.Worker == name })
	if i < 0 {
		p.fail(w, r, fault.Unknown(fault.ErrUnknownWorker, "worker", name, "worker "+name+" not found"))
		return
	}
	page := &workerPage{Status: all.Value[i]}
	var wait sync.WaitGroup
	wait.Go(func() { page.Runs = find(ctx, p, run.Filter{Worker: name, Limit: workerRuns}, p.config.Service.Runs) })
	wait.Go(func() {
		page.Fires = find(ctx, p, schedule.Filter{Worker: name, Limit: workerRuns}, p.config.Service.Fires)
	})
	wait.Go(func() {
		page.History = readLater(ctx, p.recent, "history", historyEvery, p.config.Service.BacklogSamples)
	})
	wait.Wait()
	page.Backlog = backlogChart(page.History.Value[name], page.History.At)
	p.show(w, r, "worker", page.Status.Condition.Text()+" · "+name, page)
}

// databaseNames returns the names of the databases.
func (p *pages) databaseNames() (names []string) {
	for _, d := range p.config.Service.Databases {
		names = append(names, d.Name)
	}
	return names
}

// runPage is the data of a run's page.
type runPage struct {
	Run  run.Run
	Read part[run.Run]
	Jobs part[[]job.Job]
	// Receipts are the databases that have receipts of the run, or could not be read.
	Receipts []string
	// Live is the progress of a running run.
	Live liveRun
}

// runJobs is how many jobs a run's page shows.
const runJobs = 50

// run serves the page of a run. It reads the worker's status only while the run is running.
func (p *pages) run(w http.ResponseWriter, r *http.Request) {
	id := strings.ToLower(r.PathValue("id"))
	found := p.readRun(r.Context(), id, readEvery)
	if found.At.IsZero() {
		p.fail(w, r, found.Err)
		return
	}
	page := &runPage{Run: found.Value, Read: found}
	if page.Run.State == running {
		page.Live = live(found, p.statuses(r.Context()).Value, true)
	}
	if !page.Run.DryRun {
		var of []url.Values
		for _, name := range p.databaseNames() {
			of = append(of, url.Values{"database": {name}, "run_id": {page.Run.ID}})
		}
		for i, first := range (lists{p}).firstReceipts(r.Context(), r, of) {
			if first.Stale() || len(first.Value) > 0 {
				page.Receipts = append(page.Receipts, of[i].Get("database"))
			}
		}
	}
	if p.hasJobs() {
		page.Jobs = read(r.Context(), p.recent, "jobs of "+page.Run.ID, readEvery,
			func(ctx context.Context) ([]job.Job, error) {
				return p.config.Service.JobsOfRun(ctx, page.Run.ID, runJobs)
			})
	}
	title := page.Run.State + " · " + page.Run.Worker
	if found.Stale() {
		title = "last known: " + title
	}
	p.show(w, r, "run", title, page)
}

// jobPage is the data of a job's page.
type jobPage struct {
	job.Job
	// Paths are the pending paths outside the database.
	Paths part[[]*pb.OutsidePath]
}

// readJob returns a job.
func (p *pages) readJob(ctx context.Context, id int64) part[job.Job] {
	return read(ctx, p.recent, fmt.Sprint("job ", id), readEvery,
		func(ctx context.Context) (job.Job, error) { return p.config.Service.Job(ctx, id) })
}

// job serves the page of a job. An invalid or unknown id is an error page.
func (p *pages) job(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		p.renderError(w, r, http.StatusNotFound, "Job "+r.PathValue("id")+" not found.")
		return
	}
	found := p.readJob(r.Context(), id)
	if found.Err != nil {
		p.fail(w, r, found.Err)
		return
	}
	paths := p.pendingPaths(r, found.Value)
	p.write(w, r, http.StatusOK, "job", frame{
		Title: fmt.Sprintf("%s · job %d", found.Value.State, id),
		Form:  len(paths.Value) > 0, Body: jobPage{found.Value, paths},
	})
}
