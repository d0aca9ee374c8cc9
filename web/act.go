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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
)

// action is a change that a client can make on the page: a call of the API.
type action struct {
	// Title is the heading, in which %s is the target. Effect is what happens.
	Title, Effect string
	// command is the caretaker command of the same change, without the target.
	command string
	// request has the values that the action always has. Its type gives the method.
	request proto.Message
	// target are the fields that the link contains. The first one that is set is in the title.
	target []string
	// Inputs are the fields that the client fills.
	Inputs []input
	// role is the role that the API requires, by default operator. The API checks it again.
	role access.Role
	// after returns the page that follows.
	after func(response proto.Message, target url.Values) string
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
	return input{Name: "reason", Label: "Reason", Hint: "Stored in the audit", Required: true}
}

// period is the input of a duration, with the text of one without an end.
func period(endless string) input {
	return input{Name: "ttl", Label: "For", Values: []choice{
		{Text: "1 hour", URL: "1h"},
		{Text: "8 hours", URL: "8h"},
		{Text: "1 day", URL: "24h"},
		{Text: "7 days", URL: "168h"},
		{Text: endless},
	}}
}

// actions returns the actions by their names in addresses.
func actions() map[string]action {
	toRun := func(response proto.Message, _ url.Values) string {
		started, _ := response.(interface{ GetRun() *pb.Run })
		return "/runs/" + started.GetRun().GetId()
	}
	toWorker := func(_ proto.Message, t url.Values) string { return "/workers/" + url.PathEscape(t.Get("worker")) }
	toJob := func(_ proto.Message, t url.Values) string { return "/jobs/" + url.PathEscape(t.Get("id")) }
	toDecisions := func(proto.Message, url.Values) string { return "/decisions" }
	return map[string]action{
		"run": {
			Title: "Run %s now", command: "caretaker run",
			Effect:  "Deletes and changes rows, within the limits of a scheduled run.",
			request: &pb.RunBatchRequest{Async: true}, target: []string{"worker", "database", "expected_digest"}, after: toRun,
		},
		"dry-run": {
			Title: "Dry run of %s", command: "caretaker run --dry-run",
			Effect:  "Shows what a run would do, and changes nothing.",
			request: &pb.RunBatchRequest{Async: true, DryRun: true}, target: []string{"worker", "database"}, after: toRun,
		},
		"pause": {
			Title: "Pause %s", command: "caretaker pause",
			Effect:  "Stops the current run after its batch, and starts no other run, on all servers.",
			request: &pb.PauseWorkerRequest{}, target: []string{"worker"}, after: toWorker,
			Inputs: []input{reason(), period("until it is resumed")},
		},
		"resume": {
			Title: "Resume %s", command: "caretaker resume",
			Effect:  "Ends the pause. The worker runs again by its schedule.",
			request: &pb.ResumeWorkerRequest{}, target: []string{"worker"}, after: toWorker,
		},
		"cancel-run": {
			Title: "Cancel run %s", command: "caretaker cancel",
			Effect:  "Ends the run after its current batch. A later run continues with the rest.",
			request: &pb.CancelRunRequest{}, target: []string{"id"}, after: toRun,
		},
		"cancel-job": {
			Title: "Cancel job %s", command: "caretaker jobs cancel",
			Effect:  "The job makes no further attempt.",
			request: &pb.CancelJobRequest{}, target: []string{"id"}, after: toJob, Inputs: []input{reason()},
		},
		"retry-job": {
			Title: "Retry job %s", command: "caretaker jobs retry",
			Effect:  "The job makes its next attempt now.",
			request: &pb.RetryJobRequest{}, target: []string{"id"}, after: toJob,
		},
		"protect": {
			Title: "Protect %s", command: "caretaker protect",
			Effect:  "No worker deletes it, nor what belongs to it, until the protection ends.",
			request: &pb.ProtectTargetRequest{MustExist: true}, target: []string{"kind", "id"}, after: toDecisions,
			Inputs: []input{reason(), period("permanently")},
		},
		"unprotect": {
			Title: "End the protection of %s", command: "caretaker unprotect",
			Effect:  "Workers delete it as soon as it is due.",
			request: &pb.UnprotectTargetRequest{}, target: []string{"kind", "id"}, role: access.Admin, after: toDecisions,
		},
		"accept-absent": {
			Title: "Accept %s as absent", command: "caretaker lfk accept-absent",
			Effect:  "Runs skip the definitions of this child table, and no longer hold records for them.",
			request: &pb.AcceptAbsentRequest{}, target: []string{"children"}, after: toDecisions,
		},
		"ack-outside": {
			Title: "Mark path %s as done", command: "caretaker jobs outside done",
			Effect:  "Records that the path outside the database has been deleted.",
			request: &pb.AckOutsideRequest{}, target: []string{"ids"}, after: toDecisions,
		},
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
	// Target has the fields of the link. About is them as text.
	Target url.Values
	About  string
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
		switch value := a.Target.Get(name); {
		case value == "":
		case name == "database" || name == "expected_digest":
			words = append(words, "--"+strings.ReplaceAll(name, "_", "-")+" "+format.Argument(value))
		case value == "*":
			words = append(words, "--all")
		default:
			words = append(words, format.Argument(value))
		}
	}
	for _, i := range a.Inputs {
		if i.Required {
			words = append(words, "--"+i.Name+" "+strings.ToUpper(i.Name))
		}
	}
	return strings.Join(words, " ")
}

// newActPage returns the page of the action that a request names. It refuses unknown actions and
// actions without a target.
func (p *pages) newActPage(r *http.Request) (*actPage, error) {
	a, known := actions()[r.PathValue("action")]
	if !known {
		return nil, errPageNotFound
	}
	page := &actPage{action: a, Target: url.Values{}, Path: r.URL.Path, Request: rand.Text()}
	var about []string
	for _, name := range a.target {
		value := strings.TrimSpace(r.FormValue(name))
		if value == "" {
			continue
		}
		page.Target.Set(name, value)
		if name != "expected_digest" {
			about = append(about, value)
		}
	}
	if len(about) == 0 {
		return nil, errNoTarget
	}
	page.About = strings.Join(about, " ")
	if page.About == "*" {
		page.About = "all workers"
	}
	page.Title = fmt.Sprintf(a.Title, page.About)
	client, needed := clientOf(r), max(a.role, access.Operator)
	switch {
	case !p.config.Actions || p.config.Call == nil:
		page.Why = "Actions on this page are off. Set web_actions: true, or use the command."
	case client.Role < needed:
		page.Why = fmt.Sprintf("This needs the role %s, and you have %s. Ask for it, or use the command.",
			needed, client.Role)
	default:
		page.Form = p.forms.Sign(r, client, time.Now())
	}
	return page, nil
}

var (
	errPageNotFound = errors.New("page not found")
	errNoTarget     = errors.New("this address names nothing to change")
)

// confirm serves the page of an action, with its form. It is never refreshed.
func (p *pages) confirm(w http.ResponseWriter, r *http.Request) {
	page, err := p.newActPage(r)
	if err != nil {
		p.renderError(w, r, http.StatusNotFound, sentence(err.Error()))
		return
	}
	p.write(w, r, http.StatusOK, "act", frame{Title: page.Title + " · caretaker", Fixed: true, Body: page})
}

// maxForm is the maximum size of a form in bytes.
const maxForm = 64 << 10

// act makes the call of an action, and then redirects to the page that shows the result.
func (p *pages) act(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		p.renderError(w, r, http.StatusBadRequest, "The form cannot be read: "+err.Error()+".")
		return
	}
	page, err := p.newActPage(r)
	client := clientOf(r)
	switch {
	case err != nil:
		p.renderError(w, r, http.StatusNotFound, sentence(err.Error()))
	case page.Form == "":
		p.renderError(w, r, http.StatusForbidden, page.Why)
	case !p.forms.Signed(r, client, time.Now()):
		p.renderError(w, r, http.StatusForbidden,
			"The form is too old, or from another server. Go back, reload the page and try again.")
	default:
		p.call(w, r, page, client)
	}
}

// call makes the call of an action's form.
func (p *pages) call(w http.ResponseWriter, r *http.Request, page *actPage, client access.Client) {
	request, values := proto.Clone(page.request), maps.Clone(page.Target)
	for _, i := range page.Inputs {
		values.Set(i.Name, strings.TrimSpace(r.PostFormValue(i.Name)))
	}
	values.Set("request_id", r.PostFormValue("request_id"))
	if err := fill(request, values); err != nil {
		p.renderError(w, r, http.StatusBadRequest, sentence(err.Error()))
		return
	}
	from := access.Caller{Client: client, Address: r.RemoteAddr, Source: "page"}
	// The change continues if the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), answerTime)
	defer cancel()
	response, err := p.config.Call(ctx, from, methodOf(request), request)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.recent.forget()
	http.Redirect(w, r, page.after(response, page.Target), http.StatusSeeOther)
}

// methodOf returns the full name of the method of a request: RunBatch for a RunBatchRequest.
func methodOf(request proto.Message) string {
	name := string(request.ProtoReflect().Descriptor().Name())
	return "/" + pb.MaintenanceService_ServiceDesc.ServiceName + "/" + strings.TrimSuffix(name, "Request")
}

// fill sets the fields of a request that have a value. It skips values without such a field.
func fill(request proto.Message, values url.Values) error {
	m := request.ProtoReflect()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text := values.Get(name)
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil || text == "" {
			continue
		}
		if !utf8.ValidString(text) {
			return fmt.Errorf("%s: is not UTF-8", name)
		}
		switch {
		case field.Kind() == protoreflect.StringKind && field.IsList():
			m.Mutable(field).List().Append(protoreflect.ValueOfString(text))
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(text))
		case field.Kind() == protoreflect.Int64Kind:
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("%s: %q is not a number", name, text)
			}
			if field.IsList() {
				m.Mutable(field).List().Append(protoreflect.ValueOfInt64(n))
			} else {
				m.Set(field, protoreflect.ValueOfInt64(n))
			}
		case field.Kind() == protoreflect.MessageKind && field.Message().Name() == "Timestamp":
			t, err := timeOf(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			m.Set(field, protoreflect.ValueOfMessage(timestamppb.New(t).ProtoReflect()))
		case field.Kind() == protoreflect.MessageKind:
			d, err := time.ParseDuration(text)
			if err != nil {
				return fmt.Errorf("%s: %q is not a duration such as 8h", name, text)
			}
			m.Set(field, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
		}
	}
	return nil
}

// httpCode returns the HTTP status of a gRPC code.
func httpCode(c codes.Code) int {
	known := map[codes.Code]int{
		codes.InvalidArgument: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized,
		codes.PermissionDenied: http.StatusForbidden, codes.NotFound: http.StatusNotFound,
		codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict,
		codes.AlreadyExists: http.StatusConflict, codes.ResourceExhausted: http.StatusTooManyRequests,
		codes.Internal: http.StatusInternalServerError,
	}
	return cmp.Or(known[c], http.StatusServiceUnavailable)
}
