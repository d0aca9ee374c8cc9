package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
)

func TestDatabases_AllAreListedAndThoseThatDoNotAnswerComeFirst(t *testing.T) {
	f := startWith(assert.Parallel(t), 60)
	f.exec(`INSERT INTO maintenance.database_samples (minute, database, pending, oldest, load, p50, p99)
		SELECT date_bin('2 hours', now(), 'epoch'), 'db_' || i, 4711, 4000, 0.42, 0.002, 0.34 FROM generate_series(10, 69) i`)
	broken := f.service.Databases[31]
	broken.Close()
	devdb.Eventually(t, "all databases to be read", func() bool {
		f.fresh()
		_, body := f.request(http.MethodGet, "/databases")
		return strings.Count(body, `class="tag bad">unreachable`) == 1 && !strings.Contains(body, "not known</span></td><td data-label=\"Oldest\"")
	})
	first := f.page("/databases", "4,711 pending, oldest 66 min", "p50 2 ms, p99 340 ms", "42% of the limit", "More databases")
	_, top, _ := strings.Cut(first, `data-label="Database">`)
	assert.That(t, strings.HasPrefix(top, broken.Name+"<"), "the first is %.20q", top)
	second := f.page(hrefOf(first, "More databases"), "Previous databases")
	for _, d := range f.service.Databases {
		row := `data-label="Database">` + d.Name + "<"
		assert.Equal(t, strings.Count(first+second, row), 1, d.Name)
	}
	f.page("/", "All 61 databases", broken.Name, `<a href="/databases">`)
	f.page("/databases?name=B_69", `data-label="Database">db_69<`)
	f.page("/databases?name=nothing", "No database matches.")
	answer, _ := f.request(http.MethodGet, "/databases?before=x")
	assert.Equal(t, answer.StatusCode, http.StatusBadRequest)
}

func TestErrors_HaveTheReasonAndALinkToTheDocumentation(t *testing.T) {
	f := start(assert.Parallel(t))
	for path, parts := range map[string][]string{
		"/nothing":        {"Page not found: /nothing.", `href="/docs/README.md"`},
		"/workers/nobody": {"Worker nobody not found.", "UNKNOWN_WORKER", `href="/docs/reference/error-reasons.md#calls"`},
		"/runs/01a1fc25-49b4-7a5a-9f8b-d9d55372381d": {"UNKNOWN_RUN", "deleted after a while"},
		"/jobs/7777":                       {"Job 7777 not found", "UNKNOWN_JOB", "deleted after a while"},
		"/runs?state=lost":                 {"State: must be one of", `href="/docs/README.md"`},
		"/receipts?database=main&job_id=x": {"INVALID_ARGUMENT", `href="/docs/reference/error-reasons.md#calls"`},
	} {
		answer, body := f.request(http.MethodGet, path)
		assert.That(t, answer.StatusCode/100 == 4, "%s: %s", path, answer.Status)
		assert.Contains(t, body, parts...)
	}
	f.page("/docs/reference/error-reasons.md", "UNKNOWN_WORKER")
}

// startWith starts a page on a database that is configured under several other names too.
func startWith(t *testing.T, aliases int) *fixture {
	t.Helper()
	f := start(t)
	f.site.Stop(t.Context())
	for i := range aliases {
		d := assert.Must(repo.Open(t.Context(), fmt.Sprint("db_", 10+i), f.sql.Config().ConnString()))(t)
		t.Cleanup(d.Close)
		f.databases = append(f.databases, d)
	}
	f.newService()
	f.serve(nil)
	return f
}
