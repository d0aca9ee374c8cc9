package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

const (
	// listed is the length of a page of a list. examined is that for a filter that has no index.
	listed, examined = 50, 500
	// maxCursors is how many pages back a list has a link to the newer page.
	maxCursors = 30
)

// choice is a filter value, with a link to the list that it selects.
type choice struct {
	Text, URL string
	Chosen    bool
}

// filter is a filter of a list. Without Values it is a text. Without a Default, "" selects all.
type filter struct {
	Name, Label, Hint, Default string
	Values                     []string
	// Of are the links to the list with each value. Value is the current one.
	Of    []choice
	Value string
}

// timeHint is the hint of a filter by time.
const timeHint = "24h, 7d, or 2026-11-01 15:04 in UTC"

// timeFilters are the filters by time.
func timeFilters() []filter {
	return []filter{{Name: "since", Label: "Since", Hint: timeHint}, {Name: "until", Label: "Until", Hint: timeHint}}
}

// IsTime reports whether the filter is by time.
func (f filter) IsTime() bool { return f.Hint == timeHint }

// listing describes a list, the newest entries first.
type listing[T any] struct {
	// name is that of the template, title the heading.
	name, title string
	filters     []filter
	// read returns up to limit entries after a cursor, by the filters of a query.
	read func(ctx context.Context, query url.Values, limit int, after string) pageOf[T]
	// matches selects from at most examined entries of a page by what has no index. nil selects all.
	matches func(T) bool
	// more is further data of the page.
	more any
}

// pageOf is a page of a list, with the cursor of the next page, and the databases not read.
type pageOf[T any] struct {
	part[[]T]
	next   string
	unread []string
}

// upTo returns a page of at most limit entries. found has one more if there is a next page.
func upTo[T any](limit int, found part[[]T], id func(T) string) pageOf[T] {
	page := pageOf[T]{part: found}
	if len(found.Value) > limit {
		page.Value, page.next = found.Value[:limit], id(found.Value[limit-1])
	}
	return page
}

// list is the data of a list.
type list[T any] struct {
	Path    string
	Filters []filter
	Items   part[[]T]
	// Newer and Older are the addresses of the neighboring pages, "" for none.
	Newer, Older string
	// Examined is how many entries a filter without an index has examined, 0 for other filters.
	Examined int64
	// Unread are databases that could not be read.
	Unread []string
	More   any
}

// address returns a list's address with another value of a parameter. It drops any other before.
func address(path string, query url.Values, name, value string) string {
	changed := url.Values{}
	for other, values := range query {
		if other != "before" && other != name && values[0] != "" {
			changed[other] = values
		}
	}
	if value != "" {
		changed.Set(name, value)
	}
	return (&url.URL{Path: path, RawQuery: changed.Encode()}).String()
}

// readFilters returns the filters with their values, and makes relative times in query absolute. It
// refuses unknown filters and impossible values.
func readFilters(filters []filter, path string, query url.Values) ([]filter, error) {
	var names []string
	for i := range filters {
		f := &filters[i]
		f.Value = cmp.Or(query.Get(f.Name), f.Default)
		names = append(names, f.Name)
		if f.IsTime() && f.Value != "" {
			t, err := format.ParseTime(f.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			if _, err := time.Parse(time.RFC3339, f.Value); err != nil {
				t = t.Truncate(time.Minute) // the same address for a minute, which the cache has
			}
			f.Value = rfc(t)
			query.Set(f.Name, f.Value)
		}
		if f.Values == nil {
			continue
		}
		if f.Value != "" && !slices.Contains(f.Values, f.Value) {
			return nil, fmt.Errorf("%s: must be one of %s", f.Name, strings.Join(f.Values, ", "))
		}
		values := f.Values
		if f.Default == "" {
			values = append([]string{""}, values...)
		}
		for _, value := range values {
			f.Of = append(f.Of, choice{
				cmp.Or(plain(value), "all"), address(path, query, f.Name, value), value == f.Value,
			})
		}
	}
	for name := range query {
		if !slices.Contains(append(names, "before", "refresh"), name) {
			return nil, fmt.Errorf("unknown filter %q: use %s or before", name, strings.Join(names, ", "))
		}
	}
	return filters, nil
}

// serve answers with a page of the list. The parameter before has the cursors of the pages up to it.
func (l listing[T]) serve(p *pages, w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filters, err := readFilters(l.filters, r.URL.Path, query)
	if err != nil {
		p.renderError(w, r, http.StatusBadRequest, sentence(err.Error()))
		return
	}
	limit, cursors := listed, strings.Split(query.Get("before"), ",")
	if l.matches != nil {
		limit = examined
	}
	found := l.read(r.Context(), query, limit, cursors[len(cursors)-1])
	if p.refused(w, r, found.Err) {
		return
	}
	body := &list[T]{Path: r.URL.Path, Filters: filters, Items: found.part, Unread: found.unread, More: l.more}
	if l.matches != nil {
		body.Examined = int64(len(found.Value))
		body.Items.Value = slices.DeleteFunc(slices.Clone(found.Value), func(t T) bool { return !l.matches(t) })
	}
	if cursors[0] != "" {
		newer := strings.Join(cursors[:len(cursors)-1], ",")
		body.Newer = address(r.URL.Path, query, "before", newer)
	}
	if found.next != "" {
		cursors = append(cursors[max(0, len(cursors)-maxCursors):], found.next)
		body.Older = address(r.URL.Path, query, "before", strings.Trim(strings.Join(cursors, ","), ","))
	}
	p.write(w, r, http.StatusOK, l.name, frame{Title: l.title + " · caretaker", Form: true, Body: body})
}

// contains reports whether one of some texts contains a text, in any case.
func contains(text string, in ...string) bool {
	return strings.Contains(strings.ToLower(strings.Join(in, "\n")), strings.ToLower(text))
}

// lists serves the lists with filters.
type lists struct{ *pages }

// workerFilter selects a worker, databaseFilter a database.
func (p lists) workerFilter(r *http.Request) filter {
	f := filter{Name: "worker", Label: "Worker"}
	for _, s := range p.statuses(r.Context()).Value {
		f.Values = append(f.Values, s.Worker)
	}
	return f
}

func (p lists) databaseFilter() filter {
	return filter{Name: "database", Label: "Database", Values: p.databaseNames()}
}

// runList serves the list of runs. The reason and the database have no index.
func (p lists) runList(w http.ResponseWriter, r *http.Request) {
	l := listing[run.Run]{name: "runs", title: "Runs", filters: append([]filter{
		p.workerFilter(r),
		{Name: "state", Label: "State", Values: []string{running, "succeeded", "failed", "cancelled", "skipped"}},
		p.databaseFilter(),
		{Name: "reason", Label: "Reason", Hint: "part of the reason or error"},
	}, timeFilters()...)}
	l.read = func(ctx context.Context, q url.Values, limit int, after string) pageOf[run.Run] {
		f := run.Filter{Worker: q.Get("worker"), State: q.Get("state"), After: after, Limit: limit + 1}
		f.Since, _ = format.ParseTime(q.Get("since"))
		f.Until, _ = format.ParseTime(q.Get("until"))
		return upTo(limit, find(ctx, p.pages, f, p.config.Service.Runs), func(r run.Run) string { return r.ID })
	}
	if reason, database := r.FormValue("reason"), r.FormValue("database"); reason+database != "" {
		l.matches = func(r run.Run) bool {
			return contains(reason, r.Reason, r.Error) && (database == "" || r.Database == database)
		}
	}
	l.serve(p.pages, w, r)
}

// jobList serves the list of jobs. The reason has no index.
func (p lists) jobList(w http.ResponseWriter, r *http.Request) {
	l := listing[job.Job]{name: "jobs", title: "Jobs", filters: append([]filter{
		{Name: "kind", Label: "Kind", Values: p.config.Service.JobKinds()},
		{Name: "state", Label: "State", Values: job.States()},
		{Name: "reason", Label: "Reason", Hint: "part of the outcome, reason or error"},
	}, timeFilters()...)}
	l.read = func(ctx context.Context, q url.Values, limit int, after string) pageOf[job.Job] {
		id, err := strconv.ParseInt(cmp.Or(after, "0"), 10, 64)
		if err != nil {
			return badCursor[job.Job]("the number of a job")
		}
		f := job.Filter{Kind: q.Get("kind"), State: q.Get("state"), After: id, Limit: limit + 1}
		f.Since, _ = format.ParseTime(q.Get("since"))
		f.Until, _ = format.ParseTime(q.Get("until"))
		return upTo(limit, find(ctx, p.pages, f, p.config.Service.Jobs),
			func(job job.Job) string { return strconv.FormatInt(job.ID, 10) })
	}
	if reason := r.FormValue("reason"); reason != "" {
		l.matches = func(j job.Job) bool { return contains(reason, j.Reason, why(j)) }
	}
	l.serve(p.pages, w, r)
}

// badCursor returns the page of a cursor that is not what it should be.
func badCursor[T any](what string) pageOf[T] {
	return pageOf[T]{part: part[[]T]{Err: &fault.InvalidArgumentError{Field: "before", Description: "must be " + what}}}
}

// fireList serves the list of the scheduled runs, with the next ones.
func (p lists) fireList(w http.ResponseWriter, r *http.Request) {
	listing[schedule.Fire]{
		name: "schedule", title: "Schedule", more: used(p.statuses(r.Context()).Value, true),
		filters: []filter{
			p.workerFilter(r),
			{Name: "outcome", Label: "Outcome", Values: []string{"ran", "skipped", "missed"}},
		},
		read: func(ctx context.Context, q url.Values, limit int, after string) pageOf[schedule.Fire] {
			text, worker, _ := strings.Cut(after, " ")
			at, err := time.Parse(time.RFC3339Nano, text)
			if err != nil && after != "" {
				return badCursor[schedule.Fire]("a time and a worker")
			}
			return upTo(limit, find(ctx, p.pages, schedule.Filter{
				Worker: q.Get("worker"), Outcome: q.Get("outcome"),
				After: at, AfterWorker: worker, Limit: limit + 1,
			}, p.config.Service.Fires), func(f schedule.Fire) string { return f.Time.UTC().Format(time.RFC3339Nano) + " " + f.Worker })
		},
	}.serve(p.pages, w, r)
}
