//go:build chromium

package web

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// pictures, if set, is the folder into which the pictures of the documentation are written.
var pictures = flag.String("pictures", "", "write the pictures of the documentation into this folder")

// cells are the texts of the rows of a table, by the labels of its columns.
const cells = `return [...document.querySelectorAll(%q)].map(row =>
	Object.fromEntries([...row.children].map(c => [c.dataset.label, c.innerText.trim()])))`

func (b *browser) rows(selector string) []map[string]string {
	b.t.Helper()
	return script[[]map[string]string](b, fmt.Sprintf(cells, selector))
}

func TestChromium_ShowsWhatStatusAndRunsSay(t *testing.T) {
	f := start(t)
	f.run(tokens, false)
	f.run("placeholder_user_cleanup", true)
	f.run("adjourned_group_deletion", false)
	f.fresh()
	b := browse(t)
	b.size(1280, 900)
	b.open(f.url)
	statuses := assert.Must(f.service.Status(t.Context(), ""))(t)
	rows := b.rows(".workers tbody tr")
	for i, s := range statuses {
		want := map[string]string{
			"Due": format.Number(s.Backlog.Due), "Deferred": format.Number(s.Backlog.Deferred), "Dead": format.Number(s.Backlog.Dead),
		}
		for label, text := range want {
			assert.Equal(t, rows[i][label], text, s.Worker, label)
		}
		assert.That(t, strings.HasPrefix(rows[i]["Worker"], s.Worker) &&
			strings.HasPrefix(rows[i]["Condition"], s.Condition.Text()), "%s: got %v", s.Worker, rows[i])
	}
	runs := assert.Must(f.service.Runs(t.Context(), run.Filter{Limit: 20}))(t)
	rows = b.rows(".runs tbody tr")
	assert.Require(t, len(rows) == len(runs), "%d runs are shown of %d", len(rows), len(runs))
	for i, r := range runs {
		state := r.State
		if r.DryRun {
			state += " dry run"
		}
		assert.That(t, rows[i]["Worker"] == r.Worker && rows[i]["State"] == state &&
			rows[i]["Trace"] == r.TraceID, "got %v, want %+v", rows[i], r)
		for name, n := range r.Counts {
			assert.That(t, n == 0 || strings.Contains(rows[i]["Result"], format.Number(n)+" "+plain(name)),
				"%s %d is not in %v", name, n, rows[i])
		}
	}
	found := b.complaints()
	assert.That(t, len(found) == 0, "the browser complains: %v", found)
}

func TestChromium_RefreshKeepsThePlaceAndRunsNoScriptOfOthers(t *testing.T) {
	f := start(t)
	f.run(tokens, false)
	b := browse(t)
	b.size(800, 400)
	b.open(f.url)
	script[any](b, `window.mark = 1; window.scrollTo(0, 300); document.querySelector("a[href='/workers/`+tokens+`']").focus({preventScroll: true})`)
	const evil = `<script>window.evil = 1</script>"'><img src=x onerror="window.evil = 1">`
	assert.Must(f.service.PauseWorker(t.Context(), tokens, evil, evil, time.Hour))(t)
	b.eventually("the title says so", func() bool { return strings.HasPrefix(script[string](b, `return document.title`), "1 paused") })
	if !script[bool](b, `return window.mark === 1 && window.scrollY === 300 && !window.evil && document.activeElement.getAttribute("href") === "/workers/`+tokens+`"`) {
		t.Error("the page was loaded anew, has lost its place, or ran a script that somebody wrote")
	}
	assert.Contains(t, script[string](b, `return document.querySelector("#worker-`+tokens+` .detail").innerText`), evil)
	b.open(f.url + "/workers/" + tokens)
	assert.That(t, !script[bool](b, `return !!window.evil || document.images.length > 0`), "a script ran, or an image was made")
	found := b.complaints()
	assert.That(t, len(found) == 0, "the browser complains: %v", found)
}

func TestChromium_ThePlanOfAJobIsOneClickAway(t *testing.T) {
	f := start(t)
	f.run(tokens, false)
	jobs := assert.Must(f.service.Jobs(t.Context(), job.Filter{Kind: "delete_user", Limit: 1}))(t)
	assert.Require(t, len(jobs) == 1, "%v", jobs)
	where := strings.Split(plannedBy(jobs[0]), "/")
	id := assert.Must(strconv.ParseInt(where[3], 10, 64))(t)
	plan := assert.Must(f.service.PlanDeletion(t.Context(), where[2], id))(t)
	b := browse(t)
	b.size(1280, 900)
	b.open(fmt.Sprintf("%s/jobs/%d", f.url, jobs[0].ID))
	script[any](b, `document.querySelector("a[href^='/plan/']").click()`)
	b.eventually("the plan is there", func() bool {
		return script[bool](b, `return location.pathname.startsWith("/plan/") && !!document.querySelector("h1")`)
	})
	if text := script[string](b, `return document.body.innerText`); !strings.Contains(text, plan.Digest) || !strings.Contains(text, plan.Name) {
		t.Errorf("got %s", text)
	}
	rows := b.rows(".plan tbody tr")
	assert.Require(t, len(rows) == len(plan.Tables), "%d tables are shown of %d", len(rows), len(plan.Tables))
	for i, want := range plan.Tables {
		if got := rows[i]; !strings.HasPrefix(got["Table"], want.Table) || got["Would be moved"] != format.Number(want.Moved) || got["Deleted"] != format.Number(want.Deleted) {
			t.Errorf("got %v, want %+v", got, want)
		}
	}
	found := b.complaints()
	assert.That(t, len(found) == 0, "the browser complains: %v", found)
}

func TestChromium_RefreshesWithoutJavaScript(t *testing.T) {
	f := start(t)
	b := browse(t, "--blink-settings=scriptEnabled=false")
	b.open(f.url)
	if !strings.Contains(b.html(), "<title>healthy") && !strings.Contains(b.html(), "<title>1 not configured") {
		t.Errorf("got %s", b.html())
	}
	assert.Must(f.service.PauseWorker(t.Context(), tokens, "test", "test", time.Hour))(t)
	b.eventually("the new state is shown", func() bool { return strings.Contains(b.html(), "<title>1 paused") })
}

func TestChromium_SaysWhatIsDown(t *testing.T) {
	f := start(t)
	r := f.run(tokens, false)
	b := browse(t)
	b.open(f.url)
	f.main.Close()
	b.eventually("main is said to be down", func() bool { return script[string](b, `return document.title`) == "main is down · caretaker" })
	if got := script[string](b, `return document.body.innerText`); !strings.Contains(got, "does not answer") || !strings.Contains(got, r.TraceID) {
		t.Errorf("got %s", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:gocritic // elapses: the browser keeps its connection
	defer cancel()
	f.site.Stop(ctx)
	b.eventually("the server is said to be gone", func() bool { return script[bool](b, `return document.getElementById("lost").checkVisibility()`) })
}

func TestChromium_FitsEveryScreen(t *testing.T) {
	f := start(t)
	f.busy()
	f.run("ghost_user_migration", false)
	r := f.run(tokens, false)
	assert.Must(f.service.PauseWorker(t.Context(), tokens, strings.Repeat("averylongword", 30), "by", 0))(t)
	b := browse(t)
	user, group, _ := f.one()
	for _, path := range []string{
		"/", "/workers/" + tokens, "/workers/ghost_user_migration", "/runs/" + r.ID, "/jobs/1", "/databases", "/nothing",
		fmt.Sprintf("/plan/user/%d", user), fmt.Sprintf("/plan/group/%d", group),
	} {
		b.open(f.url + path)
		for _, width := range []int{320, 390, 768, 1024, 1280, 1920} {
			b.size(width, 800)
			wide := script[int](b, `return document.documentElement.scrollWidth`)
			assert.That(t, wide <= width, "%s is %d pixels wide on a screen of %d", path, wide, width)
		}
	}
}

// busy lets workers have run, jobs fail, and a curve of the last hours be there.
func (f *fixture) busy() {
	f.t.Helper()
	f.exec(`INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(mins => i), w.name, w.base + (w.swing * (1 + sin(i / w.pace + w.base)) * exp(-i / 900.0))::bigint, 0, 0, w.dead
		FROM generate_series(1, 1400) i, (VALUES ('loose_foreign_keys_cleanup', 1100, 4200, 37.0, 0), ('ghost_user_migration', 20, 60, 61.0, 1),
			('adjourned_group_deletion', 8, 5, 200.0, 2), ('placeholder_user_cleanup', 35, 12, 140.0, 5), ('inactive_token_deletion', 0, 30, 300.0, 0)) w(name, base, swing, pace, dead)`)
	for _, w := range []string{tokens, "adjourned_group_deletion", keys, "placeholder_user_cleanup", keys, keys} {
		f.run(w, false)
	}
	f.run("placeholder_user_cleanup", true)
	f.exec(`UPDATE maintenance.river_job SET state = 'retryable', attempt = 3, scheduled_at = now() + interval '80 seconds',
		errors = ARRAY['{"at": "2026-11-21T03:34:09Z", "attempt": 3, "error": "delete rows of notes on main: 55P03 lock_not_available"}'::jsonb]
		WHERE id IN (SELECT min(id) FROM maintenance.river_job WHERE kind = 'destroy_group')`)
	f.exec(`UPDATE maintenance.river_job SET state = 'discarded', attempt = 25, finalized_at = now() - interval '3 hours',
		metadata = metadata || '{"outcome": "discarded", "reason": "STILL_REFERENCED"}'
		WHERE id IN (SELECT min(id) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user')`)
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome)
		SELECT 'ghost_user_migration', date_trunc('hour', now()) - make_interval(mins => 2 * i), '', 'missed' FROM generate_series(1, 2) i`)
}

// aged lets runs have started one after the other, not all at once.
func (f *fixture) aged() {
	f.t.Helper()
	f.exec(`UPDATE maintenance.runs r SET started_at = started_at - older.by, finished_at = finished_at - older.by
		FROM (SELECT id, make_interval(secs => 71 * (row_number() OVER (ORDER BY id DESC)) ^ 1.7) AS by FROM maintenance.runs) older
		WHERE older.id = r.id AND r.state <> 'running'`)
}

func TestChromium_TakesThePicturesOfTheDocumentation(t *testing.T) {
	f := start(t)
	f.busy()
	if _, err := f.service.PauseWorker(t.Context(), "placeholder_user_cleanup", "import of ACME under way", "alice@ops", 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	f.exec(`CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END';
		CREATE TRIGGER nap BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION nap()`)
	f.aged()
	run, err := f.service.RunBatch(t.Context(), run.Request{Worker: "ghost_user_migration", Async: true, RequestedBy: "alice@ops"})
	assert.NoError(t, err)
	f.exec(`UPDATE maintenance.runs SET started_at = started_at - interval '3 s' WHERE id = $1`, run.ID)
	f.fresh()
	b := browse(t)
	for _, p := range []struct {
		name, path, scheme string
		width              int
	}{
		{"overview-light", "/", "light", 1280},
		{"overview-dark", "/", "dark", 1280},
		{"worker-light", "/workers/" + keys, "light", 1100},
		{"overview-phone", "/", "light", 390},
	} {
		b.size(p.width, 700)
		b.scheme(p.scheme)
		b.open(f.url + p.path)
		height := script[int](b, `return document.documentElement.scrollHeight`)
		b.size(p.width, min(height, 1400))
		content := small(t, b.picture())
		assert.That(t, len(content) >= 10_000, "%s has %d bytes", p.name, len(content))
		if *pictures != "" {
			assert.NoError(t, os.WriteFile(filepath.Join(*pictures, p.name+".png"), content, 0o600))
		}
	}
	assert.Must(f.service.CancelRun(t.Context(), run.ID, ""))(t)
}
