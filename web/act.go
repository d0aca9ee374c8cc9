package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// action is a change that a client can make on the page: a call of the API.
type action struct {
	// Title is the heading, in which %s is the target. Effect is what happens.
	Title, Effect string
	// command is the caretaker command of the same change, without the target.
	command string
	// request has the values that the action always has. Its type gives the method.
	request proto.Message
	// target are the fields that the link contains. Those that begin with -- are flags of the command,
	// and those that begin with - are for the page that follows.
	target []string
	// Inputs are the fields that the client fills.
	Inputs []input
	// role is the role that the API requires, by default operator. The API checks it again.
	role access.Role
}

// input is a field of a form.
type input struct {
	Name, Label, Hint string
	// Values are the choices of a select. Without them the field is a text.
	Values   []choice
	Required bool
}

// reason is the input of a reason that the audit stores.
func reason() input {
	return input{Name: "reason", Label: "Reason", Hint: "Stored in the audit log", Required: true}
}

// period is the input of a duration, with the text of one without an end.
func period(endless string) input {
	return input{Name: "ttl", Label: "For", Values: []choice{
		{Text: "1 hour", URL: "3600s"},
		{Text: "8 hours", URL: "28800s"},
		{Text: "1 day", URL: "86400s"},
		{Text: "7 days", URL: "604800s"},
		{Text: endless},
	}}
}

// do returns an action without inputs, for the role operator.
func do(title, effect, command string, request proto.Message, target ...string) action {
	return action{Title: title, Effect: effect, command: "caretaker " + command, request: request, target: target}
}

// ask returns the action with inputs.
func (a action) ask(inputs ...input) action {
	a.Inputs = inputs
	return a
}

// decide returns the request of a decision on records.
func decide(d pb.RecordDecision) proto.Message { return &pb.DecideRecordsRequest{Decision: d} }

// actions returns the actions by their names in addresses.
func actions() map[string]action {
	unprotect := do("End the protection of %s", "Workers delete this target as soon as it is due.",
		"unprotect", &pb.UnprotectTargetRequest{}, "kind", "id")
	unprotect.role = access.Admin
	return map[string]action{
		"run": do("Run %s now", "Deletes and changes rows, within the limits of a scheduled run.",
			"run", &pb.RunBatchRequest{Async: true}, "worker", "--database", "--expected_digest"),
		"dry-run": do("Dry run of %s", "Shows what a run would do, and changes nothing.",
			"run --dry-run", &pb.RunBatchRequest{Async: true, DryRun: true}, "worker", "--database"),
		"pause": do("Pause %s", "Stops the current run after its current statement. No server starts another run until the pause ends.",
			"pause", &pb.PauseWorkerRequest{}, "worker").ask(reason(), period("until it is resumed")),
		"resume": do("Resume %s", "Ends the pause. The schedules apply again.", "resume", &pb.ResumeWorkerRequest{}, "worker"),
		"cancel-run": do("Cancel run %s", "Ends the run after its current statement. The next run continues.",
			"cancel", &pb.CancelRunRequest{}, "id").ask(reason()),
		"cancel-job": do("Cancel job %s", "The job makes no further attempts.",
			"jobs cancel", &pb.CancelJobRequest{}, "id").ask(reason()),
		"retry-job": do("Retry job %s", "The job makes its next attempt now.", "jobs retry", &pb.RetryJobRequest{}, "id"),
		"protect": do("Protect %s", "Until the protection ends, no worker deletes this target or anything that belongs to it.",
			"protect", &pb.ProtectTargetRequest{MustExist: true}, "kind", "id").ask(reason(), period("permanently")),
		"unprotect": unprotect,
		"accept-absent": do("Accept %s as absent", "Runs skip the definitions of this child table, and no longer hold records because the table is missing.",
			"lfk accept-absent", &pb.AcceptAbsentRequest{}, "children"),
		"ack-outside": do("Mark path %s as done", "Confirms that the path outside the database has been deleted.",
			"jobs outside done", &pb.AckOutsideRequest{}, "ids", "-job_id"),
		"retry-records": do("Retry dead records: %s", "The next run retries these records.",
			"lfk retry", decide(pb.RecordDecision_RECORD_DECISION_RETRY), "--id", "--table", "--database"),
		"clean-reused": do("Clean up the child rows of reused keys: %s",
			"The next run deletes or changes the child rows, even if they belong to the parent rows that now use the keys.",
			"lfk reused --clean", decide(pb.RecordDecision_RECORD_DECISION_CLEAN), "table", "--database"),
		"keep-reused": do("Keep the child rows of reused keys: %s", "Closes the records. No run changes these child rows.",
			"lfk reused --keep", decide(pb.RecordDecision_RECORD_DECISION_KEEP), "table", "--database"),
	}
}

// actLink returns the address of an action's page. fields are names and values of its target.
func actLink(name string, fields ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		if value := fmt.Sprint(fields[i+1]); value != "" {
			query.Set(fmt.Sprint(fields[i]), value)
		}
	}
	return "/act/" + name + "?" + query.Encode()
}

// actPage is the data of an action's page.
type actPage struct {
	action
	// Target has the fields of the link.
	Target url.Values
	// Form is the token of the form. It is "" if the client cannot act here, for the reason Why.
	Form, Why string
	// Request identifies the call, so that a form that is sent twice starts one run.
	Request string
	Path    string
}

// Command returns the command that makes the same change.
func (a actPage) Command() string {
	words := []string{a.command}
	for _, name := range a.target {
		field := strings.TrimLeft(name, "-")
		for _, value := range a.Target[field] {
			switch {
			case value == "*":
				words = append(words, "--all")
			case strings.HasPrefix(name, "--"):
				words = append(words, strings.ReplaceAll(name, "_", "-")+" "+format.Argument(value))
			case name == field:
				words = append(words, format.Argument(value))
			}
		}
	}
	for _, i := range a.Inputs {
		if i.Required {
			words = append(words, "--"+i.Name+" "+strings.ToUpper(i.Name))
		}
	}
	return strings.Join(words, " ")
}

// newActPage returns the page of a request's action. It refuses unknown actions and missing targets.
func (p *pages) newActPage(r *http.Request) (*actPage, error) {
	a, known := actions()[r.PathValue("action")]
	if !known {
		return nil, errors.New("page not found")
	}
	if err := r.ParseForm(); err != nil {
		return nil, fmt.Errorf("cannot read the form: %w", err)
	}
	page := &actPage{action: a, Target: url.Values{}, Path: r.URL.Path, Request: rand.Text()}
	var about []string
	for _, name := range a.target {
		field := strings.TrimLeft(name, "-")
		for _, value := range r.Form[field] {
			value = strings.TrimSpace(value)
			if strings.HasPrefix(value, "-") {
				return nil, &fault.InvalidArgumentError{Field: field, Description: "must not start with -"}
			}
			if value == "" || page.Target.Has(field) && field != "ids" {
				continue
			}
			page.Target.Add(field, value)
			if field != "expected_digest" && field != "job_id" {
				about = append(about, value)
			}
		}
	}
	if len(about) == 0 {
		return nil, errors.New("the URL does not say what to act on: go back, and use the action's button")
	}
	client, needed := clientOf(r), max(a.role, access.Operator)
	_, runs := a.request.(*pb.RunBatchRequest)
	if worker := page.Target.Get("worker"); worker == fault.AllWorkers && !runs {
		about, needed = []string{"all workers"}, access.Admin
	} else if worker != "" {
		of, err := p.config.Service.Worker(worker)
		if err != nil {
			return nil, err
		}
		if runs && page.Target.Get("database") == "" {
			page.Inputs = databaseInput(of)
		}
	}
	page.Title = fmt.Sprintf(a.Title, format.Shorten(strings.Join(about, " "), 200, "see the command below"))
	switch {
	case !p.config.Actions:
		page.Why = "Actions on this page are off. Set web_actions: true, or run the command below."
	case client.Role < needed:
		page.Why = fmt.Sprintf("This action requires the role %s, but you have the role %s. Ask an administrator for the required role.",
			needed, client.Role)
	default:
		page.Form = p.forms.Sign(r, client, time.Now())
	}
	return page, nil
}

// databaseInput returns the choice of a database for a worker that works on several, nil for others.
func databaseInput(w *run.Worker) []input {
	if len(w.Databases) < 2 {
		return nil
	}
	of := input{Name: "database", Label: "Database", Values: []choice{{Text: "next in rotation"}}}
	for _, d := range w.Databases {
		of.Values = append(of.Values, choice{Text: d.Name, URL: d.Name})
	}
	return []input{of}
}

// act serves the page of an action, with its form. For a sent form it makes the call, and then
// redirects to the page that shows the result.
func (p *pages) act(w http.ResponseWriter, r *http.Request) {
	page, err := p.newActPage(r)
	_, isLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isLarge:
		p.renderError(w, r, http.StatusRequestEntityTooLarge, "The form is too large. Nothing was changed.")
	case err != nil && !p.refused(w, r, err):
		p.renderError(w, r, http.StatusNotFound, sentence(err.Error()))
	case err != nil:
	case r.Method != http.MethodPost:
		p.write(w, r, http.StatusOK, "act", frame{Title: page.Title + " · caretaker", Fixed: true, Body: page})
	case !p.config.Actions:
		p.reject(w, r, page.Why)
	case page.Form != "" && !p.forms.Signed(r, clientOf(r), time.Now()):
		p.reject(w, r, "The form has expired, or was not sent from this page. Nothing was changed.", "FORM_EXPIRED")
	default: // Without a form, the client's role is too low: the API rejects the call, and audits it.
		p.call(w, r, page)
	}
}

// call makes the call of an action's form.
func (p *pages) call(w http.ResponseWriter, r *http.Request, page *actPage) {
	values := maps.Clone(page.Target)
	values.Set("request_id", r.PostFormValue("request_id"))
	for _, i := range page.Inputs {
		values.Set(i.Name, strings.TrimSpace(r.PostFormValue(i.Name)))
	}
	// The change continues if the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), answerTime)
	defer cancel()
	response, err := p.config.Call(ctx, callerOf(r), page.request, values)
	p.recent.forget()
	if err != nil {
		p.fail(w, r, err)
		return
	}
	to, worker := "/decisions", page.Target.Get("worker")
	switch of := response.(type) {
	case interface{ GetRun() *pb.Run }:
		to = "/runs/" + of.GetRun().GetId()
	case interface{ GetJob() *pb.Job }:
		to = "/jobs/" + strconv.FormatInt(of.GetJob().GetId(), 10)
	case *pb.AckOutsideResponse:
		to = "/jobs/" + url.PathEscape(page.Target.Get("job_id"))
	case interface{ GetWorker() *pb.WorkerStatus }:
		to = strings.TrimSuffix("/workers/"+url.PathEscape(strings.TrimPrefix(worker, fault.AllWorkers)), "/")
	}
	http.Redirect(w, r, to+"?done=1", http.StatusSeeOther)
}

// httpCode returns the HTTP status of a gRPC code.
func httpCode(c codes.Code) int {
	known := map[codes.Code]int{
		codes.InvalidArgument: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
		codes.NotFound: http.StatusNotFound, codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict,
		codes.AlreadyExists: http.StatusConflict, codes.ResourceExhausted: http.StatusTooManyRequests, codes.Internal: http.StatusInternalServerError,
	}
	return cmp.Or(known[c], http.StatusServiceUnavailable)
}
