package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
)

func TestRuns_AreChosenByWorkerAndStateAndPaged(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, requested_by, replica, heartbeat_ttl, started_at, finished_at)
		SELECT ('01900000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'request', CASE i % 2 WHEN 0 THEN 'failed' ELSE 'succeeded' END,
		'', '', '10s', now(), now() FROM generate_series(1, 120) i`, tokens)
	first := f.page("/runs?worker="+tokens+"&state=failed", "000000000120", `rel="next">Older</a>`, `class="chosen" aria-current="true">failed</a>`)
	if strings.Contains(first, "000000000119") || strings.Contains(first, "000000000020") {
		t.Error("the list has runs of another state, or more than a page")
	}
	f.page("/runs?before=01900000-0000-7000-8000-000000000022&state=failed&worker="+tokens, "000000000020", "000000000002", "stop refreshing")
	f.page("/runs?state=cancelled&refresh=off", "No run matches.", "refresh every 5 s", "refresh=off&amp;state=failed")
	for path, words := range map[string]string{
		"/runs?before=x": "page_token", "/jobs?before=x": "number of a job", "/jobs?kind=x": "Kind", "/jobs?state=x": "State",
		"/runs?state=foo": "State: must be one of running, succeeded", "/jobs?page_token=x": "use kind, state, reason, since, until or before",
		"/runs?page=2": "use worker, state, database, reason, since, until or before", "/runs?worker=nobody": "Worker: must be one of loose_foreign",
		"/runs?since=yesterday": "such as 24h", "/schedule?before=x": "a time and a worker", "/receipts?job_id=x": "job_id",
		"/audit?before=x": "page_token", "/audit?since=x": "such as 24h",
	} {
		if answer, body := f.request(http.MethodGet, path); answer.StatusCode != http.StatusBadRequest || !strings.Contains(body, words) {
			t.Errorf("%s: %s, %s", path, answer.Status, body)
		}
	}
}

func TestJobs_AreChosenByKindAndStateAndPaged(t *testing.T) {
	f := start(assert.Parallel(t))
	f.run(tokens, false)
	jobs, err := f.service.Jobs(t.Context(), job.Filter{Limit: 100})
	assert.Require(t, err == nil && len(jobs) != 0, "%v, %v", jobs, err)
	f.page("/jobs?kind=delete_user&state=available", fmt.Sprintf(`href="/jobs/%d"`, jobs[0].ID))
	f.page(fmt.Sprintf("/jobs?before=%d", jobs[len(jobs)-1].ID), "No job matches.")
	f.page("/jobs?kind=destroy_group", "No job matches.")
}

func TestWaiting_SaysWhoWaitsAndWhyAndIsLinked(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message,
		failures, recorded_at, dead_at) VALUES (1, 'public.users', 77, 'notes.author_id', '23503', 'quotes a row', 10, now(), now())`)
	body := f.page("/workers/"+keys+"/dead", "public.users 77", "notes.author_id failed 10 times, last with 23503")
	assert.Lacks(t, body, "quotes a row")
	devdb.Eventually(t, "the dead record on the overview, whose backlog may be of the server's start", func() bool {
		f.fresh()
		_, overview := f.request(http.MethodGet, "/")
		return strings.Contains(overview, `href="/workers/`+keys+`/dead"`)
	})
	f.page("/workers/"+keys, `href="/workers/`+keys+`/dead"`)
	f.exec(`UPDATE import_placeholder_user_details SET namespace_id = NULL, deletion_attempts = 15, last_deletion_attempt_at = now() - interval '10 hours'`)
	f.exec(`UPDATE import_placeholder_user_details SET deletion_attempts = 1 WHERE id = (SELECT min(id) FROM import_placeholder_user_details)`)
	f.page("/workers/placeholder_user_cleanup/dead", "15 attempts", "placeholder ")
	f.page("/workers/placeholder_user_cleanup/deferred", "1 attempt<", "in 38 h")
	f.exec(`INSERT INTO ghost_user_migrations (user_id, initiator_user_id, hard_delete, created_at, updated_at, consume_after)
		SELECT id, id, false, now(), now(), now() + interval '5 hours' FROM users WHERE user_type = 0 ORDER BY id LIMIT 1`)
	f.page("/workers/ghost_user_migration/deferred", "postponed after", "in 5 h")
	f.exec(`DELETE FROM group_deletion_schedules`)
	f.exec(`INSERT INTO namespace_details (namespace_id, deletion_scheduled_at)
		SELECT id, now() - interval '100 days' FROM namespaces WHERE type = 'Group' ORDER BY id LIMIT 1
		ON CONFLICT (namespace_id) DO UPDATE SET deletion_scheduled_at = now() - interval '100 days', state_metadata = '{}'`)
	f.page("/workers/adjourned_group_deletion/dead", "DELETING_USER_MISSING: the user who marked the group does not exist")
	f.exec(`UPDATE namespaces SET path = path || '-deletion_scheduled-' || id WHERE id = (SELECT max(id) FROM namespaces WHERE type = 'Group')`)
	f.exec(`UPDATE namespace_details SET deletion_scheduled_at = NULL WHERE namespace_id = (SELECT max(id) FROM namespaces WHERE type = 'Group')`)
	f.fresh()
	f.page("/workers/adjourned_group_deletion/dead", "but no deletion date is stored")
	f.exec(`UPDATE namespace_details SET deletion_scheduled_at = now() WHERE namespace_id = (SELECT min(id) FROM namespaces WHERE type = 'Group')`)
	f.page("/workers/adjourned_group_deletion/deferred", "in its grace period")
	var protected int64
	assert.NoError(t, f.sql.QueryRow(t.Context(), `UPDATE namespace_details SET deletion_scheduled_at = now() - interval '100 days'
		WHERE namespace_id = (SELECT min(id) FROM namespaces WHERE type = 'Group') RETURNING namespace_id`).Scan(&protected))
	assert.Must(f.service.Protect(t.Context(), service.Protection{Kind: "group", ID: protected, Reason: "r", By: "me"}, 0, true))(t)
	f.fresh()
	f.page("/workers/adjourned_group_deletion/deferred", "protected", "Protected items wait until the protection ends")
	f.page("/workers/adjourned_group_deletion/held", "but no deletion date is stored", fmt.Sprintf("/act/unprotect?id=%d&amp;kind=group", protected), "Protected items wait until the protection ends")
	f.page("/workers/"+tokens+"/deferred", "no such list")
	for _, path := range []string{"/workers/nobody/dead", "/workers/" + keys + "/other"} {
		answer, _ := f.request(http.MethodGet, path)
		assert.Equal(t, answer.StatusCode, http.StatusNotFound, path)
	}
}

func TestDryRun_IsMarkedEverywhereAndSaysWould(t *testing.T) {
	f := start(assert.Parallel(t))
	r := f.run(tokens, true)
	for _, path := range []string{"/", "/workers/" + tokens, "/runs/" + r.ID} {
		f.page(path, "dry run")
	}
	f.page("/runs/"+r.ID, "What a run would do", "A run would", "Run exactly these", "expected_digest="+r.CandidatesDigest)
	f.page("/workers/"+tokens, "would be: ")
}

func TestCounts_OfOneAreSingular(t *testing.T) {
	t.Parallel()
	got := counts(map[string]int64{"deleted_rows": 1, "held_groups": 0, "processed_records": 2})
	assert.Equal(t, fmt.Sprint(got), "[{deleted row 1 } {processed records 2 }]")
}
