package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestRuns_AreChosenByWorkerAndStateAndPaged(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, requested_by, replica, heartbeat_ttl, started_at, finished_at)
		SELECT ('01900000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, $1, 'request', CASE i % 2 WHEN 0 THEN 'failed' ELSE 'succeeded' END,
		'', '', '10s', now(), now() FROM generate_series(1, 120) i`, tokens)
	first := f.page("/runs?worker="+tokens+"&state=failed", "000000000120", "Older runs", `class="chosen" aria-current="true">failed</a>`)
	if strings.Contains(first, "000000000119") || strings.Contains(first, "000000000020") {
		t.Error("the list has runs of another state, or more than a page")
	}
	f.page("/runs?before=01900000-0000-7000-8000-000000000022&state=failed&worker="+tokens, "000000000020", "000000000002", "stop refreshing")
	f.page("/runs?state=cancelled&refresh=off", "No run matches.", "refresh every 5 s", "refresh=off&amp;state=failed")
	for path, words := range map[string]string{
		"/runs?before=x": "page_token", "/jobs?before=x": "number of a job", "/jobs?kind=x": "kind", "/jobs?state=x": "state",
		"/runs?state=foo": "state: is not one of running, succeeded", "/jobs?page_token=x": "filters of this list are kind, state, before", "/runs?page=2": "worker, state, before",
	} {
		if answer, body := f.request(http.MethodGet, path); answer.StatusCode != http.StatusBadRequest || !strings.Contains(body, words) {
			t.Errorf("%s: %s, %s", path, answer.Status, body)
		}
	}
	if answer, _ := f.request(http.MethodGet, "/runs?worker=nobody"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a worker that does not exist: %s", answer.Status)
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
	f.exec(`UPDATE import_placeholder_user_details SET namespace_id = NULL, deletion_attempts = 15, last_deletion_attempt_at = now()`)
	f.exec(`UPDATE import_placeholder_user_details SET deletion_attempts = 1 WHERE id = (SELECT min(id) FROM import_placeholder_user_details)`)
	f.page("/workers/placeholder_user_cleanup/dead", "15 attempts", "placeholder ")
	f.page("/workers/placeholder_user_cleanup/deferred", "1 attempt<", "in 2 d")
	f.exec(`INSERT INTO ghost_user_migrations (user_id, initiator_user_id, hard_delete, created_at, updated_at, consume_after)
		SELECT id, id, false, now(), now(), now() + interval '1 hour' FROM users WHERE user_type = 0 ORDER BY id LIMIT 1`)
	f.page("/workers/ghost_user_migration/deferred", "postponed after", "in 60 min")
	f.exec(`DELETE FROM group_deletion_schedules`)
	f.exec(`INSERT INTO namespace_details (namespace_id, deletion_scheduled_at)
		SELECT id, now() - interval '100 days' FROM namespaces WHERE type = 'Group' ORDER BY id LIMIT 1
		ON CONFLICT (namespace_id) DO UPDATE SET deletion_scheduled_at = now() - interval '100 days', state_metadata = '{}'`)
	f.page("/workers/adjourned_group_deletion/dead", "the user who marked it does not exist")
	f.exec(`UPDATE namespaces SET path = path || '-deletion_scheduled-' || id WHERE id = (SELECT max(id) FROM namespaces WHERE type = 'Group')`)
	f.exec(`UPDATE namespace_details SET deletion_scheduled_at = NULL WHERE namespace_id = (SELECT max(id) FROM namespaces WHERE type = 'Group')`)
	f.fresh()
	f.page("/workers/adjourned_group_deletion/dead", "but no mark is stored")
	f.exec(`UPDATE namespace_details SET deletion_scheduled_at = now() WHERE namespace_id = (SELECT min(id) FROM namespaces WHERE type = 'Group')`)
	f.page("/workers/adjourned_group_deletion/deferred", "in its grace period")
	f.page("/workers/"+tokens+"/deferred", "no such list")
	for _, path := range []string{"/workers/nobody/dead", "/workers/" + keys + "/other"} {
		answer, _ := f.request(http.MethodGet, path)
		assert.Equal(t, answer.StatusCode, http.StatusNotFound, path)
	}
}

func TestOutages_AreThoseOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	down := &status.Problem{Class: status.FailureUnreachable, Database: "ci", Message: "database ci: unreachable"}
	workers := []status.Worker{
		{Worker: "a", Condition: status.ConditionFailing, Failing: down},
		{Worker: "b", Condition: status.ConditionFailing, Failing: down},
		{Worker: "c", Condition: status.ConditionFailing, Failing: &status.Problem{Class: status.FailureLock, Database: "ci"}},
	}
	if v := judge(workers, false); v.Short != "ci unreachable" || v.Long != "database ci: unreachable. Failing: a, b." {
		t.Errorf("%+v", v)
	}
	if v := judge(workers[1:], false); v.Short != "2 failing" {
		t.Errorf("%+v", v)
	}
	idle := []status.Worker{{Condition: status.ConditionIdle, Backlog: status.Backlog{Untracked: 2}}}
	v := judge(idle, false).withDead(idle, nil)
	assert.Equal(t, v, verdict{"in order, 2 not tracked", "All workers are healthy. Parents whose deletions are not recorded: 2.", "warn"})
}

func TestDryRun_IsMarkedEverywhereAndSaysWould(t *testing.T) {
	f := start(assert.Parallel(t))
	r := f.run(tokens, true)
	for _, path := range []string{"/", "/workers/" + tokens, "/runs/" + r.ID} {
		f.page(path, "dry run")
	}
	f.page("/runs/"+r.ID, "What a run would do", "A run would", "--expected-digest "+r.CandidatesDigest)
	f.page("/workers/"+tokens, "would be: ")
}

func samples(at time.Time, values map[time.Duration]int64, order ...time.Duration) (out []status.BacklogSample) {
	for _, d := range order {
		out = append(out, status.BacklogSample{At: at.Add(-d), Pending: values[d]})
	}
	return out
}

func TestCurve_EndsWithThePresentValueAndHasGaps(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	kept := samples(at, map[time.Duration]int64{3 * time.Hour: 50, 3*time.Hour - 4*time.Minute: 100, 4 * time.Minute: 20},
		3*time.Hour, 3*time.Hour-4*time.Minute, 4*time.Minute)
	c := newCurve(kept, 0, at, overviewSpan)
	assert.That(t, c.Peak == 100 && c.Least == 0 && c.Last == 0 && c.Span == overviewSpan, "got %+v", c)
	want := "M300.0 50.0L306.7 0.0M593.3 80.0L600.0 100.0"
	assert.That(t, c.Line == want, "got %s, want %s", c.Line, want)
	assert.Equal(t, strings.Count(c.Area, "Z"), 2, "areas in", c.Area)
}

func TestCurve_OfAYoungServerBeginsAnHourAgo(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	c := newCurve(samples(at, map[time.Duration]int64{2 * time.Minute: 7}, 2*time.Minute), 7, at, overviewSpan)
	assert.That(t, c.Span == time.Hour && c.Line == "M580.0 0.0L600.0 0.0", "got %+v", c)
}

func TestCurve_OfNothingIsNone(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	c := newCurve(samples(at, nil, 7*time.Hour), 7, at, overviewSpan)
	assert.That(t, c == nil, "got %+v", c)
}

func TestRun_SaysHowMuchOfWhatWasDueIsDone(t *testing.T) {
	t.Parallel()
	page := func(change func(*runPage)) int64 {
		p := &runPage{
			Run:    run.Run{Worker: "ghost_user_migration", State: running, Counts: map[string]int64{"migrated_users": 20, "failed_users": 5, "moved_rows": 9}},
			Status: status.Worker{Backlog: control.Backlog{Due: 75}},
		}
		change(p)
		return p.Percent()
	}
	assert.Equal(t, page(func(*runPage) {}), 25, "%%")
	for what, change := range map[string]func(*runPage){
		"ended":    func(p *runPage) { p.Run.State = "succeeded" },
		"dry":      func(p *runPage) { p.Run.DryRun = true },
		"not read": func(p *runPage) { p.Status.BacklogUnknown = true },
		"at least": func(p *runPage) { p.Status.Backlog.AtLeast = true },
		"none due": func(p *runPage) { p.Status.Backlog.Due = 0 },
		"several":  func(p *runPage) { p.Status.Leases = make([]run.Lease, 2) },
		"unknown":  func(p *runPage) { p.Run.Worker = "other" },
	} {
		assert.Equal(t, page(change), 0, what)
	}
}

// lease is the i-th of a worker.
func lease(i int, held bool) run.Lease {
	l := run.Lease{Expired: !held}
	l.Name = fmt.Sprintf("w/%02d", i)
	return l
}

func TestLeases_ThoseHeldAreAllShownAndOthersAsLongAsThereIsRoom(t *testing.T) {
	t.Parallel()
	var w status.Worker
	for i := range 30 {
		w.Leases = append(w.Leases, lease(i, i%15 == 0))
	}
	l := leases(w)
	if shown := l.Shown; len(shown) != 12 || shown[0].Name != "w/00" || shown[1].Name != "w/15" || shown[2].Name != "w/01" ||
		l.Others != "18 more, free; caretaker leases lists them all." {
		t.Errorf("%+v", l)
	}
	for i := range w.Leases {
		w.Leases[i].Expired = false
	}
	if l = leases(w); len(l.Shown) != 30 || l.Others != "" {
		t.Errorf("%+v", l)
	}
}

func TestDatabases_WhatIsNotShownIsSummedUp(t *testing.T) {
	t.Parallel()
	w := status.Worker{Worker: "w"}
	for i := range 30 {
		d := status.Database{Name: fmt.Sprint(i), KnownBacklog: run.KnownBacklog{Known: true}}
		d.Backlog.Due = int64(i)
		w.Databases = append(w.Databases, d)
	}
	page := &workerPage{Status: w}
	const want = "18 more, with 369 due; caretaker status w lists them all."
	if d := page.Databases(); len(d.Shown) != 12 || d.Others != want {
		t.Errorf("%+v", d)
	}
	page.Status.Databases = w.Databases[:3]
	if d := page.Databases(); len(d.Shown) != 3 || d.Others != "" {
		t.Errorf("%+v", d)
	}
}
