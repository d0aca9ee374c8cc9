package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// lintEvery is the maximum age of the check of loose foreign keys, lintTimeout its time limit.
	lintEvery, lintTimeout = 30 * time.Second, 25 * time.Second
	looseForeignKeys       = "loose foreign keys"
	// decided is how many entries a section of the page of decisions lists.
	decided = 100
)

// apiPages returns the reading of an API list by filters, shared by all clients with the same role.
func apiPages[T any, R interface {
	proto.Message
	GetNextPageToken() string
}](
	p *pages, r *http.Request, request proto.Message, entries func(R) []T,
) func(context.Context, url.Values, int, string) pageOf[T] {
	return func(ctx context.Context, query url.Values, _ int, after string) pageOf[T] {
		fields, from := maps.Clone(query), callerOf(r)
		fields.Set("page_token", after)
		name := fmt.Sprintf("%T %v %s %s", request, request, from.Client.Role, fields.Encode())
		answer := read(ctx, p.recent, name, readEvery, func(ctx context.Context) (R, error) {
			response, err := p.config.Call(ctx, from, request, fields)
			listed, _ := response.(R)
			return listed, err
		})
		page := pageOf[T]{part: part[[]T]{entries(answer.Value), answer.At, answer.Err}, next: answer.Value.GetNextPageToken()}
		if of, ok := any(answer.Value).(interface{ GetUnread() []string }); ok {
			page.unread = of.GetUnread()
		}
		return page
	}
}

// receiptList serves the receipts: which rows were changed, by which rule.
func (p lists) receiptList(w http.ResponseWriter, r *http.Request) {
	of := p.databaseFilter()
	of.Default = of.Values[0]
	listing[*pb.Receipt]{
		name: "receipts", title: "Receipts", filters: append([]filter{
			of,
			{Name: "table", Label: "Table"},
			{Name: "key", Label: "Key", Hint: "key of a row in the table"},
			{Name: "run_id", Label: "Run", Hint: "ID, or a unique prefix"},
			{Name: "job_id", Label: "Job"},
			{Name: "worker", Label: "Worker", Hint: "worker, or kind of the job"},
		}, timeFilters()...),
		read: apiPages(p.pages, r, &pb.ListReceiptsRequest{},
			(*pb.ListReceiptsResponse).GetReceipts),
	}.serve(p.pages, w, r)
}

// recordList serves the records of deleted parents whose children could not be cleaned.
func (p lists) recordList(w http.ResponseWriter, r *http.Request) {
	listing[*pb.Record]{
		name: "records", title: "Records", filters: []filter{
			{Name: "state", Label: "State", Values: []string{"dead", "failing", "reused"}, Default: "dead"},
			p.databaseFilter(),
			{Name: "table", Label: "Table"},
		},
		read: apiPages(p.pages, r, &pb.ListRecordsRequest{}, (*pb.ListRecordsResponse).GetRecords),
	}.serve(p.pages, w, r)
}

// auditList serves the audit: who asked for what. about selects from the entries of a page.
func (p lists) auditList(w http.ResponseWriter, r *http.Request) {
	about, request := r.FormValue("about"), &pb.ListAuditRequest{PageSize: listed}
	l := listing[*pb.AuditEntry]{
		name: "audit", title: "Audit", filters: append([]filter{
			{Name: "by", Label: "Client"},
			{Name: "action", Label: "Action", Hint: "such as PauseWorker"},
			{Name: "about", Label: "About", Hint: "part of the client, action, target or reason"},
		}, timeFilters()...),
		read: apiPages(p.pages, r, request, (*pb.ListAuditResponse).GetEntries),
	}
	if about != "" {
		request.PageSize = examined
		l.matches = func(e *pb.AuditEntry) bool {
			return contains(about, e.GetBy(), e.GetAction(), e.GetTarget(), e.GetReason())
		}
	}
	l.serve(p.pages, w, r)
}

// pendingPaths returns the paths outside the database that a job has left and that are not done.
func (p *pages) pendingPaths(r *http.Request, j job.Job) part[[]*pb.OutsidePath] {
	if j.Outside.Pending == 0 {
		return part[[]*pb.OutsidePath]{}
	}
	return apiPages(p, r, &pb.ListOutsideRequest{JobId: j.ID, PendingOnly: true, PageSize: decided}, (*pb.ListOutsideResponse).GetPaths)(r.Context(), url.Values{}, 0, "").part
}

// looseForeignKeys returns the result of the check of the loose foreign keys.
func (p lists) looseForeignKeys(ctx context.Context) part[service.LooseForeignKeys] {
	return readWithin(ctx, p.recent, looseForeignKeys, times{maxAge: lintEvery, most: lintTimeout},
		p.config.Service.CheckLooseForeignKeys)
}

// definitions serves the page of the loose foreign keys, with the findings of their check.
func (p lists) definitions(w http.ResponseWriter, r *http.Request) {
	p.write(w, r, http.StatusOK, "definitions", frame{Title: "Definitions · caretaker", Fixed: true, Body: p.looseForeignKeys(r.Context())})
}

// decisions is the data of the page of decisions.
type decisions struct {
	// Dead are the items of each worker that need a decision, Deferred those that it skips for now.
	Dead, Deferred []waitingPage
	Jobs           part[[]job.Job]
	Protected      part[[]*pb.Protection]
	Keys           part[service.LooseForeignKeys]
}

// decisions serves the page of what needs a decision. It reads its parts in parallel.
func (p lists) decisions(w http.ResponseWriter, r *http.Request) {
	ctx, names := r.Context(), p.workerFilter(r).Values
	d := &decisions{Dead: make([]waitingPage, len(names)), Deferred: make([]waitingPage, len(names))}
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { d.Dead[i] = p.waitingItems(ctx, name, true) })
		wait.Go(func() { d.Deferred[i] = p.waitingItems(ctx, name, false) })
	}
	wait.Go(func() { d.Keys = p.looseForeignKeys(ctx) })
	if p.hasJobs() {
		f := job.Filter{State: "discarded", Limit: decided}
		wait.Go(func() { d.Jobs = find(ctx, p.pages, f, p.config.Service.Jobs) })
		protected := apiPages(p.pages, r, &pb.ListProtectedRequest{PageSize: decided},
			(*pb.ListProtectedResponse).GetProtections)
		wait.Go(func() { d.Protected = protected(ctx, url.Values{}, 0, "").part })
	}
	wait.Wait()
	p.write(w, r, http.StatusOK, "decisions", frame{Title: "Decisions · caretaker", Fixed: true, Body: d})
}

// waitingPage is the data of the list of items that a worker skips for now.
type waitingPage struct {
	Worker string
	Dead   bool
	List   part[status.WaitingList]
}

// waitingItems reads what a worker's backlog counts as dead or deferred.
func (p lists) waitingItems(ctx context.Context, worker string, dead bool) waitingPage {
	return waitingPage{worker, dead, read(ctx, p.recent, "waiting "+worker+strconv.FormatBool(dead), readEvery,
		func(ctx context.Context) (status.WaitingList, error) {
			return p.config.Service.Waiting(ctx, worker, dead)
		})}
}

// waiting lists a worker's dead or deferred items, or both: a run may count either as held.
func (p lists) waiting(w http.ResponseWriter, r *http.Request) {
	name, what := r.PathValue("name"), path.Base(r.URL.Path)
	var body []waitingPage
	for _, dead := range []bool{true, false} {
		if what == "held" || dead == (what == "dead") {
			body = append(body, p.waitingItems(r.Context(), name, dead))
		}
	}
	if p.refused(w, r, body[0].List.Err) {
		return
	}
	p.show(w, r, "waiting", name+", "+what+" · caretaker", body)
}

// search redirects to a run or job by its ID, or to the receipts of a row by its table and key.
func (p lists) search(w http.ResponseWriter, r *http.Request) {
	words := strings.Fields(r.FormValue("q"))
	to, err := "", error(nil)
	problem := "Nothing found for " + strconv.Quote(strings.Join(words, " ")) +
		". Enter the ID of a run or job, a unique prefix of a run ID, or a table and a key."
	if len(words) == 1 {
		to, err = p.findID(r.Context(), words[0])
	} else if len(words) > 1 {
		to, problem, err = p.findRow(r.Context(), r, words[0], strings.Join(words[1:], " "))
	}
	switch {
	case err == nil && to != "":
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // a path of this site
	case err == nil, errors.Is(err, fault.ErrUnknownRun), errors.Is(err, fault.ErrUnknownJob):
		p.renderError(w, r, http.StatusNotFound, problem)
	default:
		p.fail(w, r, err)
	}
}

// findID returns the address of the job or run with an ID. A run ID may be a prefix.
func (p lists) findID(ctx context.Context, text string) (string, error) {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil && p.hasJobs() {
		err = p.readJob(ctx, id).Err
		if !errors.Is(err, fault.ErrUnknownJob) {
			return "/jobs/" + strconv.FormatInt(id, 10), err
		}
	}
	return "/runs/" + url.PathEscape(text), p.readRun(ctx, text, readEvery).Err
}

// findRow returns the address of the receipts of a row in the first database that has any. Without
// one, it returns that of a database whose older receipts may match, or else the problem. A key of
// several columns may be written without parentheses. Receipts name tables of the search path
// without their schema. Names that are not quoted are in lower case.
func (p lists) findRow(ctx context.Context, r *http.Request, table, key string) (to, problem string, err error) {
	keys := []string{key, ""} // "" finds any receipt of the table
	// A key in parentheses comes first, because it matches no other table.
	parts := strings.FieldsFunc(strings.Trim(key, "()"), func(c rune) bool { return c == ',' || c == ' ' })
	if len(parts) > 1 && key[0] != '(' {
		keys = []string{"(" + strings.Join(parts, ",") + ")", key, ""}
	}
	tables := slices.Compact([]string{table, strings.TrimPrefix(table, "public."), strings.TrimPrefix(strings.ToLower(table), "public.")})
	var queries []url.Values
	for _, name := range p.databaseNames() {
		for _, table := range tables {
			for _, key := range keys {
				queries = append(queries, url.Values{"database": {name}, "table": {table}, "key": {key}})
			}
		}
	}
	problem = fmt.Sprintf("No database has a receipt for table %q. Check its name. "+
		"Either caretaker has not changed this table, or its receipts have expired.", table)
	for i, of := range p.firstReceipts(ctx, r, queries) {
		query, whole := queries[i].Encode(), queries[i].Get("key") == ""
		switch {
		case !whole && len(of.Value) > 0:
			return "/receipts?" + query, "", nil
		case to == "" && (of.Err != nil || !whole && of.next != ""):
			to, err = "/receipts?"+query, of.Err
		case len(of.Value) > 0 && len(parts) == 1 && strings.HasPrefix(of.Value[0].GetLowestKey(), "("):
			problem = fmt.Sprintf("The key of table %q has several columns. Enter all values: orders 42,7.", table)
		case len(of.Value) > 0:
			problem = fmt.Sprintf("No database has a receipt for key %q of table %q. "+
				"Either caretaker has not changed this row, or the receipt has expired.", key, table)
		}
	}
	return to, problem, err
}

// firstReceipts returns the newest receipt of each query. It reads them in parallel.
func (p lists) firstReceipts(ctx context.Context, r *http.Request, queries []url.Values) []pageOf[*pb.Receipt] {
	found := make([]pageOf[*pb.Receipt], len(queries))
	var wait sync.WaitGroup
	for i, query := range queries {
		wait.Go(func() {
			found[i] = apiPages(p.pages, r, &pb.ListReceiptsRequest{PageSize: 1},
				(*pb.ListReceiptsResponse).GetReceipts)(ctx, query, 0, "")
		})
	}
	wait.Wait()
	return found
}
