package web

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// oneSQL is an id that the demo data has of each kind.
const oneSQL = `SELECT (SELECT min(id) FROM users WHERE user_type = 0), (SELECT min(id) FROM namespaces WHERE type = 'Group'),
	(SELECT min(placeholder_user_id) FROM import_placeholder_user_details)`

func (f *fixture) one() (user, group, placeholder int64) {
	f.t.Helper()
	assert.NoError(f.t, f.sql.QueryRow(f.t.Context(), oneSQL).Scan(&user, &group, &placeholder))
	return user, group, placeholder
}

func TestPlan_IsWhatTheServiceSaysAndWritesNothing(t *testing.T) {
	f := start(assert.Parallel(t))
	user, group, placeholder := f.one()
	assert.Must(f.service.Protect(t.Context(), service.Protection{Kind: "user", ID: user, Reason: "evidence <b>", By: "me"}, 0, false))(t)
	// Samples of the backlog are taken all the time.
	content := func() map[string]string {
		return devdb.Content(t, f.sql, "maintenance.backlog_samples", "maintenance.database_samples")
	}
	before := content()
	for kind, id := range map[string]int64{"user": user, "group": group, "placeholder": placeholder} {
		var p *plan.Plan
		var body string
		// On a busy machine a plan may end before it has counted all rows.
		devdb.Eventually(t, "two plans with exact counts", func() bool {
			p = assert.Must(f.service.PlanDeletion(t.Context(), kind, id))(t)
			f.fresh()
			body = f.page(fmt.Sprintf("/plan/%s/%d", kind, id), p.Name, fmt.Sprintf("caretaker plan %s %d", kind, id), "reload")
			return p.Exact && strings.Contains(body, "<dd>exact</dd>")
		})
		assert.Contains(t, body, p.Digest)
		for _, table := range p.Tables {
			row := fmt.Sprintf(`data-label="Table">%s</th><td data-label="Would be moved"`, table.Table)
			assert.That(t, strings.Contains(body, row), "%s: no %s", kind, table.Table)
		}
		if strings.Contains(body, `id="refused"`) != (p.Refused != nil) || strings.Contains(body, "data-refresh") {
			t.Errorf("%s: refused is %v, or the page makes plans again by itself:\n%s", kind, p.Refused, body)
		}
	}
	f.page(fmt.Sprintf("/plan/user/%d", user), "The deletion would be refused now: PROTECTED", "evidence &lt;b&gt;")
	assert.That(t, maps.Equal(content(), before), "a plan has written")
}

func TestPlan_SaysWhyThereIsNone(t *testing.T) {
	f := start(assert.Parallel(t))
	for path, want := range map[string]struct {
		code  int
		words string
	}{
		"/plan/user/4711": {404, "User 4711 not found"}, "/plan/group/4711": {404, "Group 4711 not found"},
		"/plan/project/7": {400, "Kind: must be user, group or placeholder"}, "/plan/user/x": {400, "the number of a user"},
		"/plan/user/0": {400, "Id: must be a positive number"}, "/plan/user": {404, "Page not found"},
	} {
		if answer, body := f.request(http.MethodGet, path); answer.StatusCode != want.code || !strings.Contains(body, want.words) {
			t.Errorf("%s: %s, %s", path, answer.Status, body)
		}
	}
	user, _, _ := f.one()
	f.main.Close()
	if answer, body := f.request(http.MethodGet, fmt.Sprintf("/plan/user/%d", user)); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "Database main cannot be reached: ") {
		t.Errorf("without the database: %s, %s", answer.Status, body)
	}
}

func TestPlan_IsForViewers(t *testing.T) {
	t.Parallel()
	only := assert.Must(access.New(access.Config{Token: "secret"}))(t)
	f := start(t, func(c *Config) { c.Access = only })
	user, _, _ := f.one()
	path := fmt.Sprintf("/plan/user/%d", user)
	if answer, _ := f.request(http.MethodGet, path); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", answer.Status)
	}
	viewer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }
	if answer, _ := f.request(http.MethodPost, path, viewer); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", answer.Status)
	}
	if answer, _ := f.request(http.MethodHead, path, viewer); answer.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %s", answer.Status)
	}
}

func TestPlan_SaysWhenTooManyAreBeingMade(t *testing.T) {
	f := start(assert.Parallel(t))
	answer := httptest.NewRecorder()
	f.site.pages.fail(answer, httptest.NewRequest(http.MethodGet, "/plan/user/1", http.NoBody), &fault.RefusedError{Text: "try again in 3s", Retry: 3 * time.Second})
	if answer.Code != http.StatusTooManyRequests || answer.Header().Get("Retry-After") != "3" || !strings.Contains(answer.Body.String(), "try again in 3s") {
		t.Errorf("%d, %v, %s", answer.Code, answer.Header(), answer.Body)
	}
}

func TestPlan_IsOneClickFromWhateverIsToGo(t *testing.T) {
	f := start(assert.Parallel(t))
	dry := f.run(tokens, true)
	assert.Require(t, len(dry.Candidates) != 0, "nothing would go")
	bot := fmt.Sprintf(`href="/plan/user/%d"`, dry.Candidates[0].ID)
	f.page("/runs/"+dry.ID, bot)
	f.run(tokens, false)
	jobs, err := f.service.Jobs(t.Context(), job.Filter{Kind: "delete_user", Limit: 1000})
	assert.Require(t, err == nil && len(jobs) != 0, "%v, %v", jobs, err)
	last := jobs[len(jobs)-1]
	f.page("/jobs?kind=delete_user", plannedBy(last))
	f.page(fmt.Sprintf("/jobs/%d", last.ID), `href="`+plannedBy(last)+`"`)
	f.exec(`UPDATE import_placeholder_user_details SET namespace_id = NULL, deletion_attempts = 15, last_deletion_attempt_at = now()`)
	f.page("/workers/placeholder_user_cleanup/dead", `href="/plan/placeholder/`)
	f.exec(`INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message,
		failures, recorded_at, dead_at) VALUES (1, 'public.users', 77, 'notes.author_id', '23503', '', 10, now(), now())`)
	assert.Lacks(t, f.page("/workers/"+keys+"/dead"), "/plan/")
}

func TestPlannedBy_IsTheTargetOfAJobThatMayStillRun(t *testing.T) {
	t.Parallel()
	for want, j := range map[string]job.Job{
		"/plan/user/7":        {Kind: jobqueue.DeleteUser{}.Kind(), Args: []byte(`{"user_id": 7, "deleted_by_id": 8}`), State: "discarded"},
		"/plan/group/8":       {Kind: jobqueue.DestroyGroup{}.Kind(), Args: []byte(`{"group_id": 8, "user_id": 7}`)},
		"/plan/placeholder/9": {Kind: jobqueue.DeletePlaceholderUser{}.Kind(), Args: []byte(`{"placeholder_user_id": 9}`)},
		"":                    {Kind: jobqueue.ContinueInactiveTokenDeletion{}.Kind(), Args: []byte(`{"pass_id": 9}`)},
	} {
		assert.Equal(t, plannedBy(j), want)
	}
	got := plannedBy(job.Job{Kind: jobqueue.DeleteUser{}.Kind(), Args: []byte(`{"user_id": 7}`), State: "completed"})
	assert.That(t, got == "", "the user is gone: %s", got)
}
