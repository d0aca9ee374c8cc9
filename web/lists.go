package web

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caretaker-go/caretaker/service"
)

// listed is the length of a page of a list.
const listed = 50

// choice is a value of a filter, as a link to the list with it.
type choice struct {
	Text, URL string
	Chosen    bool
}

// filter is a part of a list's address, with the values that it may have; "" is all.
type filter struct{ Name, Value string }

// choices links to the list at a path with each value of one filter, the others kept.
func choices(path string, all []filter, name string, values []string) []choice {
	out := make([]choice, 0, len(values)+1)
	for _, value := range append([]string{""}, values...) {
		chosen := false
		with := make([]filter, len(all))
		for i, f := range all {
			if with[i] = f; f.Name == name {
				chosen = f.Value == value
				with[i].Value = value
			}
		}
		out = append(out, choice{cmp.Or(plain(value), "all"), address(path, with...), chosen})
	}
	return out
}

// address is a path with the filters that are set.
func address(path string, filters ...filter) string {
	query := url.Values{}
	for _, f := range filters {
		if f.Value != "" {
			query.Set(f.Name, f.Value)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// list is the data of a page of runs or jobs.
type list[T any] struct {
	// Of are the workers or kinds to choose from.
	OfName     string
	Of, States []choice
	Items      part[[]T]
	// Older is the address of the next page; "": this is the last one.
	Older string
}

// page cuts off what was read to see whether there is more, and links to it.
func (l *list[T]) page(more func(last T) string) {
	if items := l.Items.Value; len(items) > listed {
		l.Items.Value = items[:listed]
		l.Older = more(items[listed-1])
	}
}

// runStates are those that runs are chosen by.
func runStates() []string { return []string{running, "succeeded", "failed", "cancelled", "skipped"} }

// mistaken answers a request whose address has a filter that the list does not know, or with a
// value that nothing can have, which would otherwise be an empty list, or all.
func (p *pages) mistaken(
	w http.ResponseWriter, r *http.Request, known, states []string,
) bool {
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			p.sorry(w, r, http.StatusBadRequest, "The filters of this list are "+
				strings.Join(known, ", ")+".")
			return true
		}
	}
	if state := query.Get("state"); state != "" && !slices.Contains(states, state) {
		p.sorry(w, r, http.StatusBadRequest, "state: is not one of "+strings.Join(states, ", ")+".")
		return true
	}
	return false
}

func (p *pages) runList(w http.ResponseWriter, r *http.Request) {
	const path = "/runs"
	if p.mistaken(w, r, []string{"worker", "state", "before"}, runStates()) {
		return
	}
	ctx, query := r.Context(), r.URL.Query()
	f := service.RunFilter{
		Worker: query.Get("worker"), State: query.Get("state"), After: query.Get("before"),
		Limit: listed + 1,
	}
	filters := []filter{{"worker", f.Worker}, {"state", f.State}}
	body := &list[service.Run]{OfName: "Worker"}
	var statuses part[[]service.WorkerStatus]
	var wait sync.WaitGroup
	wait.Go(func() { statuses = p.statuses(ctx) })
	wait.Go(func() { body.Items = p.runs(ctx, f) })
	wait.Wait()
	if p.refused(w, r, body.Items.Err) {
		return
	}
	var workers []string
	for _, s := range statuses.Value {
		workers = append(workers, s.Worker)
	}
	body.Of = choices(path, filters, "worker", workers)
	body.States = choices(path, filters, "state", runStates())
	body.page(func(last service.Run) string {
		return address(path, append(filters, filter{"before", last.ID})...)
	})
	p.show(w, r, "runs", "Runs · caretaker", body)
}

func (p *pages) jobList(w http.ResponseWriter, r *http.Request) {
	const path = "/jobs"
	if p.mistaken(w, r, []string{"kind", "state", "before"}, p.config.Service.JobStates()) {
		return
	}
	query := r.URL.Query()
	f := service.JobFilter{
		Kind: query.Get("kind"), State: query.Get("state"), Limit: listed + 1,
	}
	if before := query.Get("before"); before != "" {
		var err error
		if f.After, err = strconv.ParseInt(before, 10, 64); err != nil || f.After < 1 {
			p.sorry(w, r, http.StatusBadRequest, "before is the number of a job.")
			return
		}
	}
	filters := []filter{{"kind", f.Kind}, {"state", f.State}}
	body := &list[service.Job]{OfName: "Kind"}
	body.Items = find(r.Context(), p, f, p.config.Service.Jobs)
	if p.refused(w, r, body.Items.Err) {
		return
	}
	body.Of = choices(path, filters, "kind", p.config.Service.JobKinds())
	body.States = choices(path, filters, "state", p.config.Service.JobStates())
	body.page(func(last service.Job) string {
		before := filter{"before", strconv.FormatInt(last.ID, 10)}
		return address(path, append(filters, before)...)
	})
	p.show(w, r, "jobs", "Jobs · caretaker", body)
}

// waitingPage is the data of the list of what a worker will not work on now.
type waitingPage struct {
	Worker string
	Dead   bool
	List   part[service.WaitingList]
}

// waiting lists what the backlog of a worker counts as dead or deferred.
func (p *pages) waiting(w http.ResponseWriter, r *http.Request) {
	name, what := r.PathValue("name"), r.PathValue("what")
	if what != "dead" && what != "deferred" {
		p.sorry(w, r, http.StatusNotFound, "There is no such page.")
		return
	}
	body := &waitingPage{Worker: name, Dead: what == "dead"}
	body.List = read(r.Context(), p.recent, "waiting "+name+" "+what, readEvery,
		func(ctx context.Context) (service.WaitingList, error) {
			return p.config.Service.Waiting(ctx, name, body.Dead)
		})
	if p.refused(w, r, body.List.Err) {
		return
	}
	p.show(w, r, "waiting", name+", "+what+" · caretaker", body)
}
