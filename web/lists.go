package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/status"
)

// listed is the length of a page of a list.
const listed = 50

// choice is a filter value, with a link to the list that it selects.
type choice struct {
	Text, URL string
	Chosen    bool
}

// with returns the address of a list's first page with another filter value.
func with(r *http.Request, name, value string) string {
	query := r.URL.Query()
	query.Del("before")
	if query.Set(name, value); value == "" {
		query.Del(name)
	}
	return (&url.URL{Path: r.URL.Path, RawQuery: query.Encode()}).String()
}

// choices returns links to the list with each value of one filter, "" for all. The other filters
// stay.
func choices(r *http.Request, name string, values []string) (out []choice) {
	for _, value := range append([]string{""}, values...) {
		chosen := r.URL.Query().Get(name) == value
		out = append(out, choice{cmp.Or(plain(value), "all"), with(r, name, value), chosen})
	}
	return out
}

// list is the data of a page of runs or jobs.
type list[T any] struct {
	// OfName is Worker or Kind. Of has its values.
	OfName     string
	Of, States []choice
	Items      part[[]T]
	// Older is the address of the next page, "" on the last page.
	Older string
}

// listing describes how to read a list.
type listing[T any] struct {
	name, of string
	states   []string
	items    func(context.Context) part[[]T]
	choose   func(context.Context) []string
	id       func(T) string
}

// serve answers with the list. It refuses unknown filters and impossible states, which would
// otherwise show an empty list or all entries.
func (l listing[T]) serve(p *pages, w http.ResponseWriter, r *http.Request) {
	of, query := strings.ToLower(l.of), r.URL.Query()
	known := []string{of, "state", "before"}
	for name := range query {
		if !slices.Contains(known, name) && name != "refresh" {
			p.renderError(w, r, http.StatusBadRequest, "The filters of this list are "+
				strings.Join(known, ", ")+".")
			return
		}
	}
	if state := query.Get("state"); state != "" && !slices.Contains(l.states, state) {
		p.renderError(w, r, http.StatusBadRequest, "state: is not one of "+strings.Join(l.states, ", ")+".")
		return
	}
	body := &list[T]{OfName: l.of, Items: l.items(r.Context())}
	if p.refused(w, r, body.Items.Err) {
		return
	}
	body.Of, body.States = choices(r, of, l.choose(r.Context())), choices(r, "state", l.states)
	if items := body.Items.Value; len(items) > listed {
		body.Items.Value = items[:listed]
		body.Older = with(r, "before", l.id(items[listed-1]))
	}
	p.show(w, r, strings.ToLower(l.name), l.name+" · caretaker", body)
}

// runList serves the list of runs, filtered by worker and state. It reads one run more than it
// shows, to know whether a next page exists. before is the last run of the previous page.
func (p *pages) runList(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	f := run.Filter{
		Worker: query.Get("worker"), State: query.Get("state"), After: query.Get("before"),
		Limit: listed + 1,
	}
	listing[run.Run]{
		name: "Runs", of: "Worker",
		states: []string{running, "succeeded", "failed", "cancelled", "skipped"},
		items:  func(ctx context.Context) part[[]run.Run] { return p.runs(ctx, f) },
		choose: func(ctx context.Context) (workers []string) {
			for _, s := range p.statuses(ctx).Value {
				workers = append(workers, s.Worker)
			}
			return workers
		},
		id: func(run run.Run) string { return run.ID },
	}.serve(p, w, r)
}

// jobList serves the list of jobs, filtered by kind and state. It answers 400 if the
// parameter before is set and no positive number.
func (p *pages) jobList(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	f := job.Filter{
		Kind: query.Get("kind"), State: query.Get("state"), Limit: listed + 1,
	}
	if before := query.Get("before"); before != "" {
		var err error
		if f.After, err = strconv.ParseInt(before, 10, 64); err != nil || f.After < 1 {
			p.renderError(w, r, http.StatusBadRequest, "before is the number of a job.")
			return
		}
	}
	listing[job.Job]{
		name: "Jobs", of: "Kind", states: job.States(),
		items: func(ctx context.Context) part[[]job.Job] {
			return find(ctx, p, f, p.config.Service.Jobs)
		},
		choose: func(context.Context) []string { return p.config.Service.JobKinds() },
		id:     func(job job.Job) string { return strconv.FormatInt(job.ID, 10) },
	}.serve(p, w, r)
}

// waitingPage is the data of the list of items that a worker skips for now.
type waitingPage struct {
	Worker string
	Dead   bool
	List   part[status.WaitingList]
}

// waiting lists the items that a worker's backlog counts as dead or deferred.
func (p *pages) waiting(w http.ResponseWriter, r *http.Request) {
	name, what := r.PathValue("name"), r.PathValue("what")
	if what != "dead" && what != "deferred" {
		p.renderError(w, r, http.StatusNotFound, "Page not found.")
		return
	}
	body := &waitingPage{Worker: name, Dead: what == "dead"}
	body.List = read(r.Context(), p.recent, "waiting "+name+" "+what, readEvery,
		func(ctx context.Context) (status.WaitingList, error) {
			return p.config.Service.Waiting(ctx, name, body.Dead)
		})
	if p.refused(w, r, body.List.Err) {
		return
	}
	p.show(w, r, "waiting", name+", "+what+" · caretaker", body)
}
