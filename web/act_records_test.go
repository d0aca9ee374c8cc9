package web

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// bury inserts a dead record, and two held ones whose keys are reused.
func (f *fixture) bury(table string) {
	f.t.Helper()
	f.exec(`INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message,
		failures, recorded_at, dead_at) VALUES (1, $1, 77, 'notes.author_id', '23503', 'quotes a row', 10, now(), now())`, table)
	f.exec(`WITH r AS (INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
			SELECT $1, i, now() + interval '1 hour' FROM generate_series(1, 2) i RETURNING partition, id)
		INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, sqlstate, last_definition, failed_at)
		SELECT partition, id, 0, 1, 'KEY_REUSED', 'notes.author_id -> users', now() FROM r`, table)
}

// follow opens the page of an action by its link on another page, and sends its form.
func (f *fixture) follow(page, text, role string) (reply, string) {
	f.t.Helper()
	_, body := f.request(http.MethodGet, page, as(role))
	link := hrefOf(body, text)
	assert.Require(f.t, link != "", "no link %q in\n%s", text, body)
	return f.post(strings.Split(link, "?")[0], f.form(link, as(role)), as(role))
}

func TestAct_RecordsAreRetriedAndReusedKeysDecided(t *testing.T) {
	f := startActing(assert.Parallel(t))
	f.bury("public.users")
	records := func(state string) string {
		_, body := f.request(http.MethodGet, "/records?state="+state, as("viewer"))
		return body
	}
	assert.Contains(t, records("dead"), "public.users 77", "23503", "/act/retry-records?database=main&amp;table=public.users")
	assert.Contains(t, records("reused"), "public.users 2", "KEY_REUSED")
	assert.Contains(t, records("failing"), "public.users 2", "KEY_REUSED")
	answer, body := f.follow("/decisions", `Keep the child rows of all reused keys of public.users`, "operator")
	assert.Equal(t, answer.Header.Get("Location"), "/decisions?done=1", body)
	assert.Contains(t, records("reused"), "No record matches.")
	answer, body = f.follow("/records", `Retry<span class="hidden"> record 1</span>`, "operator")
	assert.Equal(t, answer.Header.Get("Location"), "/decisions?done=1", body)
	assert.Contains(t, records("dead"), "No record matches.")
	answer, body = f.post("/act/clean-reused", f.form("/act/clean-reused?table=users", as("operator")), as("operator"))
	assert.Equal(t, answer.StatusCode, http.StatusNotFound)
	assert.Contains(t, body, "No held record of users has a reused key", "UNKNOWN_RECORD", "/docs/reference/error-reasons.md#calls")
	assert.Contains(t, f.asked(), "DecideRecords|public.users|decision=RECORD_DECISION_KEEP database=main source=page|OK",
		"DecideRecords|1|decision=RECORD_DECISION_RETRY database=main source=page|OK")
	_, body = f.request(http.MethodGet, "/act/retry-records?table=*&database=main", as("viewer"))
	assert.Contains(t, body, "caretaker lfk retry --all --database main")
}

func TestBar_CountsWhatThePageOfDecisionsShows(t *testing.T) {
	f := start(assert.Parallel(t))
	f.run(tokens, false)
	f.bury("public.users")
	f.exec(`UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now() WHERE id = (SELECT min(id) FROM maintenance.river_job)`)
	f.exec(`DROP TABLE IF EXISTS notes CASCADE`)
	f.fresh()
	f.page("/decisions")
	keys := assert.Must(f.service.CheckLooseForeignKeys(t.Context()))(t)
	dead := int64(0)
	for _, w := range assert.Must(f.service.Status(t.Context(), ""))(t) {
		dead += w.Backlog.Dead
	}
	assert.Require(t, len(keys.Reused) == 2 && len(keys.Absent) > 0 && dead > 0, "%d reused, %d absent, %d dead", len(keys.Reused), len(keys.Absent), dead)
	f.eventually("/runs", fmt.Sprintf(`decisions <span class="tag warn">%d</span>`, dead+1+int64(len(keys.Absent)+len(keys.Reused))))
}

func TestAct_MarksSeveralPathsAtOnce(t *testing.T) {
	f := startActing(assert.Parallel(t))
	f.run(tokens, false)
	var job int64
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT min(id) FROM maintenance.river_job`).Scan(&job))
	f.exec(`INSERT INTO maintenance.outside_paths (id, job_id, kind, path) OVERRIDING SYSTEM VALUE SELECT i, $1, 'project_repository', '@hashed/' || i FROM generate_series(1, 3) i`, job)
	page := fmt.Sprintf("/act/ack-outside?ids=1&ids=3&job_id=%d", job)
	_, body := f.request(http.MethodGet, page, as("operator"))
	assert.Contains(t, body, "Mark path 1 3 as done", "caretaker jobs outside done 1 3<")
	form := f.form(page, as("operator"))
	form["ids"] = []string{"1", "3"}
	answer, body := f.post("/act/ack-outside", form, as("operator"))
	assert.Equal(t, answer.Header.Get("Location"), fmt.Sprintf("/jobs/%d?done=1", job), body)
	var left string
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT string_agg(path, ',') FROM maintenance.outside_paths WHERE done_at IS NULL`).Scan(&left))
	assert.Equal(t, left, "@hashed/2")
}

// TestAct_EachRoleMayDoWhatTheAPIAllows tries every action with every role.
func TestAct_EachRoleMayDoWhatTheAPIAllows(t *testing.T) {
	f := startActing(assert.Parallel(t))
	var called []string
	var tooLow bool
	api := f.site.config.Call
	f.site.config.Call = func(ctx context.Context, from access.Caller, request proto.Message, fields map[string][]string) (proto.Message, error) {
		if tooLow {
			return api(ctx, from, request, fields)
		}
		called = append(called, from.Client.Role.String()+" "+string(request.ProtoReflect().Descriptor().Name()))
		return &pb.RunBatchResponse{Run: &pb.Run{Id: "r"}}, nil
	}
	f.site.pages.config.Call = f.site.config.Call
	for name, a := range actions() {
		for worker, all := range map[string]bool{tokens: false, fault.AllWorkers: true} {
			fields := url.Values{}
			for _, field := range a.target {
				fields.Set(strings.TrimLeft(field, "-"), map[bool]string{true: worker, false: "1"}[field == "worker"])
			}
			if _, runs := a.request.(*pb.RunBatchRequest); runs && all {
				continue // no such run
			}
			needed := max(a.role, access.Operator)
			if all && fields.Has("worker") {
				needed = access.Admin
			}
			for _, role := range access.Roles() {
				form := f.form("/act/"+name+"?"+fields.Encode(), as(role.String()))
				for field := range fields {
					form.Set(field, fields.Get(field))
				}
				called, tooLow = nil, role < needed
				answer, body := f.post("/act/"+name, form, as(role.String()))
				if tooLow {
					assert.That(t, answer.StatusCode == http.StatusForbidden && called == nil && strings.Contains(body, "/docs/guides/security.md#roles"), "%s, %s: %s, %v", name, role, answer.Status, called)
				} else {
					assert.That(t, answer.StatusCode == http.StatusSeeOther && len(called) == 1 && strings.HasPrefix(called[0], role.String()), "%s, %s: %s, %v", name, role, answer.Status, called)
				}
			}
		}
	}
}

func TestAct_AFormOfOneServerIsAcceptedByAnother(t *testing.T) {
	f := startActing(assert.Parallel(t))
	page := "/act/pause?worker=" + tokens
	form := f.form(page, as("operator"))
	form.Set("reason", "r")
	one := f.url
	f.serve([]func(*Config){func(c *Config) { c.Access, c.Call, c.Actions = f.site.config.Access, f.site.config.Call, true }})
	assert.That(t, f.url != one, "the same server")
	answer, body := f.post("/act/pause", form, as("operator"))
	assert.Equal(t, answer.StatusCode, http.StatusSeeOther, body)
	old := f.form(page, as("admin"))
	old.Set("reason", "r")
	answer, body = f.post("/act/pause", old, as("operator"))
	assert.Equal(t, answer.StatusCode, http.StatusForbidden)
	assert.Contains(t, body, "The form has expired", "Open the page of the action again", "FORM_EXPIRED")
}

func TestSignIn_FailuresAreLimitedAndLoggedWithoutTheToken(t *testing.T) {
	log := &bytes.Buffer{}
	f := startActing(assert.Parallel(t), func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	secret := url.Values{"token": {"a-secret-guess"}}
	for range 10 {
		answer, _ := f.post("/signin", secret)
		assert.Equal(t, answer.StatusCode, http.StatusUnauthorized)
	}
	last, body := f.post("/signin", secret)
	for last.StatusCode == http.StatusUnauthorized { // an attempt may have become free
		last, body = f.post("/signin", secret)
	}
	valid, _ := f.post("/signin", url.Values{"token": {"viewer-token"}})
	assert.Equal(t, valid.StatusCode, http.StatusSeeOther, "a valid token after failures of others")
	assert.That(t, last.StatusCode == http.StatusTooManyRequests && last.Header.Get("Retry-After") != "" && strings.Contains(body, "Too many failed attempts"), "%s: %s", last.Status, body)
	assert.Contains(t, log.String(), `"msg":"sign-in failed"`, `"address":"127.0.0.1:`, "Unknown token")
	assert.Lacks(t, log.String(), "a-secret-guess")
}

func TestSignIn_IsRefusedOverPlainHTTPOfAnotherHost(t *testing.T) {
	t.Parallel()
	for host, refused := range map[string]bool{
		"127.0.0.1:80": false, "localhost": false, "[::1]:80": false, "[::1]": false, "ops.example:80": true, "10.0.0.1": true,
	} {
		r := &http.Request{Host: host, Header: http.Header{}}
		assert.Equal(t, newSignIn(r, "/").Refused, refused, host)
		r.Header.Set("X-Forwarded-Proto", "https")
		assert.That(t, !newSignIn(r, "/").Refused, "HTTPS of %s is refused", host)
	}
}

func TestPages_ShowNoNameAsMarkup(t *testing.T) {
	f := startActing(assert.Parallel(t))
	const evil = `"><script>alert(1)</script>`
	f.bury("public." + evil)
	var user, group, job int64
	r := f.run(tokens, false)
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT (SELECT min(id) FROM users), (SELECT min(id) FROM namespaces WHERE type = 'Group'), (SELECT min(id) FROM maintenance.river_job)`).Scan(&user, &group, &job))
	f.exec(`UPDATE users SET username = $1, name = $1 WHERE id = $2`, evil, user)
	f.exec(`UPDATE namespaces SET name = $1, path = $1 WHERE id = $2`, evil, group)
	f.exec(`UPDATE maintenance.runs SET reason = $1, error = $1, requested_by = $1, trace_id = $1, tables = jsonb_build_array(jsonb_build_object('table', $1::text, 'deleted', 1, 'updated', 0)) WHERE id = $2`, evil, r.ID)
	f.exec(`INSERT INTO maintenance.outside_paths (job_id, kind, path) VALUES ($1, $2, $2)`, job, evil)
	f.exec(`INSERT INTO maintenance.audit (by, address, role, action, target, reason, outcome) VALUES ($1, $1, $1, $1, $1, $1, $1)`, evil)
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys_digest, requested_by, hash)
		VALUES (1000, now(), $2, $1, $1, $1, $1, 1, $1, $1, '', $1, '')`, evil, r.ID)
	f.fresh()
	address := url.QueryEscape(evil)
	for _, path := range []string{
		"/", "/workers", "/workers/" + tokens, "/runs", "/runs/" + r.ID, "/jobs", fmt.Sprint("/jobs/", job), "/decisions", "/records", "/records?state=reused",
		"/receipts", "/audit", "/databases", "/definitions", "/leases", "/schedule", fmt.Sprint("/plan/user/", user), fmt.Sprint("/plan/group/", group),
		"/search?q=" + address, "/runs?reason=" + address, "/audit?about=" + address, "/receipts?table=" + address, "/workers/" + address, "/act/run?worker=" + address,
		"/act/protect?kind=" + address + "&id=1", "/act/" + address, "/plan/" + address + "/1", "/docs/" + address,
	} {
		_, body := f.request(http.MethodGet, path, as("admin"))
		assert.That(t, !strings.Contains(body, "<script>"), "%s runs a script:\n%s", path, body)
		assert.That(t, strings.Contains(body, "operator") || strings.Contains(body, "admin&lt;b&gt;"), "%s is not a page for the client", path)
	}
	for _, path := range []string{"/docs/../../go.mod", "/docs/%2e%2e%2fpages.go", "/docs/..%2f..%2fetc%2fpasswd", "/docs/pages.go", "/static/..%2ftemplates%2frun.html"} {
		answer, body := f.request(http.MethodGet, path, as("admin"))
		assert.That(t, answer.StatusCode == http.StatusNotFound && !strings.Contains(body, "package docs"), "%s: %s", path, answer.Status)
	}
}
