package web

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// hrefOf returns the address of the first link of a page with a text.
func hrefOf(body, text string) string {
	found := regexp.MustCompile(`<a [^>]*href="([^"]*)"[^>]*>` + regexp.QuoteMeta(text) + `</a>`).FindStringSubmatch(body)
	if found == nil {
		return ""
	}
	return html.UnescapeString(found[1])
}

// insertRuns inserts runs of a worker, from number first on, in a state.
func (f *fixture) insertRuns(first, number int, state, counts string) {
	f.t.Helper()
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, requested_by, replica, heartbeat_ttl, started_at, finished_at, counts, reason)
		SELECT ('01900000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'request', $2, '', '', '10s', now(), now(), $5,
			CASE WHEN $2 = 'failed' THEN 'LEASE_LOST' ELSE '' END FROM generate_series($3::int, $3 + $4 - 1) i`, tokens, state, first, number, counts)
}

func TestLists_HaveLinksToNewerAndOlderPages(t *testing.T) {
	f := start(assert.Parallel(t))
	f.insertRuns(1, 170, "failed", "{}")
	first := f.page("/runs?state=failed", "000000000170")
	assert.Equal(t, hrefOf(first, "Newer"), "", "a newer page than the first")
	second := f.page(hrefOf(first, "Older"), "000000000120", "state=failed")
	third := f.page(hrefOf(second, "Older"), "000000000070")
	last := f.page(hrefOf(third, "Older"), "000000000001")
	assert.Equal(t, hrefOf(last, "Older"), "", "an older page than the last")
	assert.Equal(t, hrefOf(last, "Newer"), hrefOf(second, "Older"), "the page before the last")
	assert.Equal(t, hrefOf(third, "Newer"), hrefOf(first, "Older"), "the page before the third")
	assert.Equal(t, hrefOf(second, "Newer"), "/runs?state=failed", "the page before the second")
}

func TestRuns_WithoutWorkAreFoldedAndThoseWithFailuresAreNotGreen(t *testing.T) {
	f := start(assert.Parallel(t))
	f.insertRuns(1, 3, "succeeded", `{"examined_users": 0}`)
	f.insertRuns(4, 1, "succeeded", `{"scheduled_jobs": 1}`)
	f.insertRuns(5, 1, "succeeded", `{"failed_users": 2, "held_groups": 1}`)
	body := f.page("/runs", "<summary>3 runs without work</summary>", `<span class="tag good">succeeded`, `<span class="tag warn">succeeded`,
		`<b>2</b> <a href="/workers/`+tokens+`/deferred">failed users</a>`, `<b>1</b> <a href="/workers/`+tokens+`/held">held group</a>`)
	assert.Equal(t, strings.Count(body, `<td data-label="Started">`), 2, "runs that are not folded")
	f.page("/workers/"+tokens, "<summary>3 runs without work</summary>")
	f.page("/runs/01900000-0000-7000-8000-000000000005", `<span class="tag warn">succeeded`, `<a href="/workers/`+tokens+`/held">held group</a>`)
	one := run.Run{State: "succeeded"}
	assert.Equal(t, len(fold([]run.Run{one}, true)), 1, "rows")
	assert.That(t, fold([]run.Run{one}, true)[0].Idle == nil, "one run is folded")
}

func TestRuns_AreChosenByReasonAndTime(t *testing.T) {
	f := start(assert.Parallel(t))
	f.insertRuns(1, 60, "succeeded", "{}")
	f.insertRuns(61, 1, "failed", "{}")
	body := f.page("/runs?reason=lease_l", "000000000061", "Found among 61 entries.")
	assert.Lacks(t, body, "000000000060")
	f.page("/runs?since=1h&reason=lease", "No run matches.") // their ids are of an earlier time
	r := f.run(tokens, false)
	body = f.page("/runs?since=1h", r.ID, `name="since" value="20`)
	assert.Lacks(t, body, "000000000061")
	f.page("/runs?until=2020-01-01", "No run matches.")
	f.page("/jobs?reason=nothing", "No job matches.", "Found among")
}

func TestSearch_FindsRunsByABeginningAndJobsByTheirID(t *testing.T) {
	f := start(assert.Parallel(t))
	r := f.run(tokens, false)
	f.page("/runs", `action="/search"`)
	f.page("/search?q="+strings.ToUpper(r.ID[:18]), r.ID, "request by a test")
	var id int64
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT min(id) FROM maintenance.river_job`).Scan(&id))
	f.page(fmt.Sprint("/search?q=+", id), fmt.Sprintf("Job %d", id))
	f.insertRuns(7, 2, "succeeded", `{}`)
	answer, body := f.request(http.MethodGet, "/search?q=01900000")
	assert.That(t, answer.StatusCode == http.StatusBadRequest && strings.Contains(body, "matches several runs"), "%s: %s", answer.Status, body)
	answer, body = f.request(http.MethodGet, "/search?q=zzzz%3Cb%3E")
	assert.That(t, answer.StatusCode == http.StatusNotFound && strings.Contains(body, "Nothing found for &#34;zzzz&lt;b&gt;&#34;"), "%s: %s", answer.Status, body)
	for _, q := range []string{"", "zzzz", "..%2F..%2Fact%2Fpause", "9223372036854775807", "%00", "https:%2F%2Fexample.com"} {
		answer, _ := f.request(http.MethodGet, "/search?q="+q)
		assert.That(t, answer.StatusCode < http.StatusInternalServerError, "%s: %s", q, answer.Status)
	}
}

func TestReceipts_TellWhichRuleDeletedARow(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`CREATE TABLE orders (id bigint PRIMARY KEY)`)
	f.insertRuns(7, 1, "succeeded", `{"deleted_rows": 3}`)
	const id = "01900000-0000-7000-8000-000000000007"
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys, keys_digest, requested_by, hash)
		VALUES (1000, now(), $1::text::uuid, 'w', 'orders', 'deleted', 'orders.customer_id -> customers', 3, '7', '42', '{7,8,42}', '', 'a <b>test', ''),
			(1001, now(), $1::text::uuid, 'w', 'orders', 'deleted', 'another rule', 1, '50', '50', NULL, '', '', '')`, id)
	overview := f.page("/")
	all := f.page(hrefOf(overview, "receipts"), "another rule")
	assert.Contains(t, all, `<form class="search" method="get" action="/receipts">`, `name="table"`, `name="key"`)
	one := f.page("/receipts?table=orders&key=42", "orders.customer_id -&gt; customers", "7 to 42", "3 keys", "7, 8, 42", "a &lt;b&gt;test", `href="/runs/`+id+`"`)
	assert.Lacks(t, one, "another rule")
	f.page("/receipts?table=orders&key=9", "No receipt matches.")
	f.page("/search?q=orders++42", "orders.customer_id -&gt; customers", `name="key" value="42"`)
	answer, none := f.request(http.MethodGet, "/search?q=orders+9")
	assert.Equal(t, answer.StatusCode, http.StatusNotFound, "a row without receipts")
	assert.Contains(t, none, "No database has a receipt for key &#34;9&#34; of table &#34;orders&#34;")
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, run_id, worker, "table", action, rule, rows, lowest_key, highest_key, keys, keys_digest, requested_by, hash)
		VALUES (1002, now(), $1::text::uuid, 'w', 'lines', 'deleted', 'a wide key', 1, '(42,7)', '(42,7)', '{"(42,7)"}', '', '', '')`, id)
	for _, key := range []string{"42,7", "42, 7", "42 7", "(42,7)"} {
		f.page("/search?q="+url.QueryEscape("lines "+key), "a wide key", `name="key" value="(42,7)"`, "a match is only possible")
	}
	for _, q := range []string{"public.orders+42", "ORDERS+42", "PUBLIC.Orders+42"} {
		f.page("/search?q="+q, "orders.customer_id -&gt; customers", `name="key" value="42"`)
	}
	for q, text := range map[string]string{
		"public.orders+9": "No database has a receipt for key &#34;9&#34; of table &#34;public.orders&#34;", "nonsense_table+1": "No database has a receipt for table &#34;nonsense_table&#34;. Check its name.",
		"archive.orders+42": "for table &#34;archive.orders&#34;", "lines+42": "The key of table &#34;lines&#34; has several columns. Enter all values", "lines+1,1": "for key &#34;1,1&#34; of table &#34;lines&#34;",
	} {
		answer, body := f.request(http.MethodGet, "/search?q="+q)
		assert.That(t, answer.StatusCode == http.StatusNotFound && strings.Contains(body, text), "%s: %s %s", q, answer.Status, body)
	}
	f.page("/receipts?worker=nobody", "No receipt matches.")
	f.page("/receipts?worker=w&since=1h", "another rule")
	f.page("/receipts?until=1h", "No receipt matches.")
	of := f.page("/runs/"+id, `href="/receipts?database=main&amp;run_id=`+id)
	f.page(hrefOf(of, "main"), "another rule", "customers")
	assert.Lacks(t, of, "/receipts?database=ci")
	f.insertRuns(8, 1, "succeeded", `{"deleted_rows": 3}`)
	f.page("/runs/01900000-0000-7000-8000-000000000008", "No database has a receipt of this run.")
}

func TestDecisions_HaveWhatWaitsWithItsActions(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message,
		failures, recorded_at, dead_at) VALUES (1, 'public.users', 77, 'notes.author_id', '23503', 'quotes a row', 10, now(), now())`)
	f.run(tokens, false)
	f.exec(`UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now() WHERE id = (SELECT min(id) FROM maintenance.river_job)`)
	f.exec(`DELETE FROM group_deletion_schedules`)
	f.exec(`INSERT INTO namespace_details (namespace_id, deletion_scheduled_at)
		SELECT id, now() - interval '100 days' FROM namespaces WHERE type = 'Group' ORDER BY id LIMIT 1
		ON CONFLICT (namespace_id) DO UPDATE SET deletion_scheduled_at = now() - interval '100 days', state_metadata = '{}'`)
	var group, user int64
	assert.NoError(t, f.sql.QueryRow(t.Context(), `SELECT (SELECT min(id) FROM namespaces WHERE type = 'Group'), (SELECT min(id) FROM users)`).Scan(&group, &user))
	assert.Must(f.service.Protect(t.Context(), service.Protection{Kind: "user", ID: user, Reason: "a <b>reason", By: "me"}, 0, true))(t)
	f.exec(`DROP TABLE IF EXISTS notes CASCADE`)
	f.fresh()
	body := f.page("/decisions", "public.users 77", `/act/retry-records?database=main&amp;id=1"`, `href="/act/retry-job?id=`, "Protected users and groups", "a &lt;b&gt;reason",
		fmt.Sprintf(`href="/act/unprotect?id=%d&amp;kind=user"`, user), fmt.Sprintf(`href="/act/protect?id=%d&amp;kind=group"`, group),
		"the user who marked the group does not exist", "Absent child tables", "Reused keys on hold", "<details id=\"deferred-", "Protected items wait until the protection ends")
	assert.Lacks(t, body, "quotes a row")
}

func TestDefinitions_HaveTheKeysAndTheFindingsOfLint(t *testing.T) {
	f := start(assert.Parallel(t))
	keys := assert.Must(f.service.CheckLooseForeignKeys(t.Context()))(t)
	assert.Require(t, len(keys.Keys) > 0, "no definitions")
	k := keys.Keys[0]
	f.page("/definitions", k.Parent, k.Table+"."+k.Columns[0], k.OnDelete, "Findings", "Adopted foreign keys")
	f.exec(`CREATE TABLE maintenance_probe (id bigint)`)
	f.exec(`INSERT INTO maintenance.adopted_foreign_keys (schema, "table", columns, name, parent_schema, parent, definition)
		VALUES ('public', 'maintenance_probe', '{id}', 'x', 'public', 'users', 'FOREIGN KEY (id) REFERENCES public.users(id)')`)
	f.fresh()
	f.page("/definitions", "maintenance_probe.id")
}

func TestDatabases_ShowLoadLimitsPartitionsAndOutages(t *testing.T) {
	f := start(assert.Parallel(t))
	f.eventually("/databases", "main", "reachable", "no limit is set", "none", `data-label="Queue partitions" class="num">1<`)
	f.main.Close()
	f.fresh()
	f.page("/databases", "unreachable")
}

func TestAudit_TellsWhoStoppedWhat(t *testing.T) {
	f := start(assert.Parallel(t))
	from := access.Caller{Client: access.Client{Name: "<i>ops", Role: access.Admin}, Address: "10.0.0.1:5"}
	for _, reason := range []string{"wrong <b>stop", "second"} {
		assert.Must(f.site.config.Call(t.Context(), from, &pb.PauseWorkerRequest{Worker: tokens, Reason: reason}, nil))(t)
	}
	overview := f.page("/")
	f.page(hrefOf(overview, "audit"), "PauseWorker", tokens, "wrong &lt;b&gt;stop", "10.0.0.1")
	body := f.page("/audit?about=SECOND&since=1h", "Found among 2 entries.")
	assert.Lacks(t, body, "wrong")
	f.page("/audit?since=2100-01-01", "No entry matches.")
	f.page("/audit?until=2100-01-01&action=PauseWorker&by=%3Ci%3Eops", "wrong &lt;b&gt;stop")
	f.page("/audit?action=CancelRun", "No entry matches.")
}

func TestOtherPages_HaveEachWorkersRow(t *testing.T) {
	f := start(assert.Parallel(t))
	f.run(tokens, false)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, started_at)
		SELECT $1, now() - i * interval '5 minutes', '', 'missed', NULL FROM generate_series(1, 60) i`, keys)
	f.fresh()
	f.page("/workers", `id="worker-`+tokens+`"`, `aria-current="page">workers`)
	f.page("/leases", tokens, "free", "Epoch")
	first := f.page("/schedule?outcome=missed", "Next runs", keys, "missed")
	second := f.page(hrefOf(first, "Older"), "missed")
	assert.Equal(t, hrefOf(second, "Newer"), "/schedule?outcome=missed", "the first page")
	f.page("/schedule?outcome=ran", "No scheduled run matches.")
}

func TestJob_ListsThePathsThatItHasLeft(t *testing.T) {
	f := start(assert.Parallel(t))
	f.run(tokens, false)
	var id, path int64
	assert.NoError(t, f.sql.QueryRow(t.Context(), `INSERT INTO maintenance.outside_paths (job_id, kind, path)
		SELECT min(id), 'project_repository', '@hashed/<b>' FROM maintenance.river_job RETURNING job_id, id`).Scan(&id, &path))
	f.exec(`INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		VALUES (1000, now(), $1, 'w', 'memberships', 'deleted', 'r', 1, '', '', '')`, id)
	f.page(fmt.Sprint("/jobs/", id), "@hashed/&lt;b&gt;", fmt.Sprintf(`<input type="checkbox" name="ids" value="%d">`, path), fmt.Sprintf("/receipts?job_id=%d", id))
}

func TestFault_MainDown_ListsSayThatTheyCouldNotLoad(t *testing.T) {
	f := start(assert.Parallel(t))
	f.main.Close()
	for _, path := range []string{"/runs", "/jobs", "/schedule", "/leases", "/records", "/receipts", "/audit", "/decisions", "/definitions", "/workers/" + tokens} {
		body := f.page(path, "Could not load")
		for _, wrong := range []string{"matches.", "No run", "has not run", "None yet"} {
			assert.That(t, !strings.Contains(body, wrong), "%s: %q is in %s", path, wrong, body)
		}
	}
	answer, body := f.request(http.MethodGet, "/runs/01900000-0000-7000-8000-000000000001")
	assert.Equal(t, answer.StatusCode, http.StatusServiceUnavailable)
	assert.Contains(t, body, "caretaker doctor", "operate/troubleshooting.md")
}

func TestFilters_WithADefaultHaveNoChoiceOfAll(t *testing.T) {
	t.Parallel()
	filters := []filter{
		{Name: "database", Values: []string{"main", "ci"}, Default: "main"}, {Name: "worker", Values: []string{"w"}},
	}
	got := assert.Must(readFilters(filters, "/receipts", url.Values{"before": {"1"}, "refresh": {"off"}}))(t)
	assert.Equal(t, fmt.Sprint(got[0].Of), "[{main /receipts?database=main&refresh=off true} {ci /receipts?database=ci&refresh=off false}]")
	assert.Equal(t, fmt.Sprint(got[1].Of), "[{all /receipts?refresh=off true} {w /receipts?refresh=off&worker=w false}]")
}
