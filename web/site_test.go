package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/job"
)

func TestOverview_ShowsEveryWorkerAsGetStatusDoes(t *testing.T) {
	f := start(assert.Parallel(t))
	f.run(tokens, false)
	f.fresh()
	// A worker may be failing for a moment when the machine is slow: the page and the answer are of one moment then.
	different := ""
	defer func() {
		if t.Failed() {
			t.Log(different)
		}
	}()
	devdb.Eventually(t, "the page to show what GetStatus says", func() bool {
		different = f.differs(t)
		return different == ""
	})
}

// differs reports what of the status is not on the page, "" if all is.
func (f *fixture) differs(t *testing.T) string {
	t.Helper()
	statuses := assert.Must(f.service.Status(t.Context(), ""))(t)
	body := f.page("/", "inactive_token_deletion", "<h2 id=\"runs\">Recent runs</h2>", "scheduled jobs")
	for _, s := range statuses {
		_, row, found := strings.Cut(body, `<tr id="worker-`+s.Worker+`">`)
		row, _, _ = strings.Cut(row, "</tr>")
		for _, part := range []string{s.Schedule, s.Condition.Text(), `data-label="Due" class="num">` + format.Number(s.Backlog.Due) + "<"} {
			if !found || !strings.Contains(row, part) {
				return fmt.Sprintf("%s: %q is not in %s", s.Worker, part, row)
			}
		}
	}
	return ""
}

func TestRun_HasItsCountsItsTraceAndItsJobs(t *testing.T) {
	f := start(assert.Parallel(t), func(c *Config) { c.TraceURL = "https://jaeger.example/trace/{trace_id}?x=1" })
	r := f.run(tokens, false)
	f.page("/runs/"+strings.ToUpper(r.ID), r.ID, "request by a test", format.Number(r.Counts["scheduled_jobs"]), "scheduled jobs", "Jobs that the run queued", "user id",
		`href="https://jaeger.example/trace/`+r.TraceID+`?x=1"`)
	f.page("/workers/"+tokens, r.ID, "scheduled jobs", "Backlog")
}

func TestJob_TellsWhatBecameOfIt(t *testing.T) {
	f := start(assert.Parallel(t), func(c *Config) { c.TraceURL = "https://jaeger.example/trace/{trace_id}" })
	f.run(tokens, false)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	f.exec(`UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now(), attempt = 25,
		metadata = metadata || '{"trace_id": "` + trace + `", "worked_ms": 61500}',
		errors = ARRAY['{"at": "2026-11-21T03:34:09Z", "attempt": 25, "error": "a table is locked"}'::jsonb]`)
	jobs := assert.Must(f.service.Jobs(t.Context(), job.Filter{Limit: 1}))(t)
	assert.Require(t, len(jobs) == 1, "%v", jobs)
	f.exec(`INSERT INTO maintenance.outside_paths (job_id, kind, path, done_at)
		SELECT id, 'project_repository', '@hashed/' || id || i, CASE i WHEN 1 THEN now() END FROM maintenance.river_job, generate_series(1, 3) i;
		INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		SELECT 1000 + id, now(), id, kind, 'memberships', 'deleted', 'r', 4711, '', '', '' FROM maintenance.river_job`)
	f.page("/", "Failed jobs", "failed jobs · caretaker</title>", ": delete_user (", "a table is locked", `href="https://jaeger.example/trace/`+trace+`"`)
	f.page(fmt.Sprint("/jobs/", jobs[0].ID), "discarded", "25 of 25", "a table is locked", "2026-11-21 03:34:09 UTC", "/runs/"+jobs[0].RunID, `href="https://jaeger.example/trace/`+trace+`"`,
		"62 s", "The deletion left 3 paths outside the database (2 not marked as done)", fmt.Sprint("caretaker jobs outside ", jobs[0].ID), "memberships", "4,711")
}

func TestPaused_SaysByWhomAndUntilWhenAndRunsNoScript(t *testing.T) {
	f := start(assert.Parallel(t))
	const evil = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>` + "\u202e"
	assert.Must(f.service.PauseWorker(t.Context(), tokens, evil, evil, time.Hour))(t)
	for _, path := range []string{"/", "/workers/" + tokens} {
		body := f.page(path, "paused", "&lt;script&gt;alert(1)")
		assert.That(t, !strings.Contains(body, "<script>alert") && !strings.Contains(body, "<img") &&
			!strings.Contains(body, "\u202e"), "%s: what somebody wrote is not escaped", path)
	}
	f.page("/", "<title>1 paused", " need attention · caretaker</title>")
	f.page("/workers/"+tokens, "until")
}

func TestFault_MainDown_IsSaidOnceAndWhatWasKnownIsShown(t *testing.T) {
	f := start(assert.Parallel(t))
	r := f.run(tokens, false)
	f.page("/", r.ID)
	f.main.Close()
	f.eventually("/", "<title>main is down", "does not answer", "failing", "Out of date", "see above")
	body := f.page("/", "<title>main is down · caretaker</title>", "does not "+
		"answer", "failing", r.ID, "Out of date", "see above")
	if n := strings.Count(body, "does not answer"); n > 2 { // the banner, and the script's own banner
		t.Errorf("that main does not answer is said %d times:\n%s", n, body)
	}
	answer, body := f.request(http.MethodGet, "/runs/"+strings.Replace(r.ID, r.ID[:4], "ffff", 1))
	assert.Equal(t, answer.StatusCode, http.StatusServiceUnavailable, answer.Status, body)
}

func TestOverview_HasMissedFiresAndALineForUnusedWorkers(t *testing.T) {
	f := start(assert.Parallel(t))
	f.exec(`INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, started_at) VALUES ($1, now() - interval '5 minutes', '', 'missed', NULL),
		($1, now() - interval '6 minutes', '', 'ran', now() - interval '6 minutes' + interval '2.5 s')`, keys)
	f.exec(`INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(mins => i), $1, 1000 + i, 0, 0, 3 FROM generate_series(1, 300) i`, tokens)
	f.page("/", "Missed scheduled runs", "missed", "5 min ago")
	f.page("/workers/"+tokens, `role="img" aria-label="Backlog, values below"`, `class="part"`, ": 1,300 pending, 3 dead")
	f.page("/workers/"+keys, ">2.5 s</td>")
	f.fresh()
	f.exec(`ALTER TABLE ghost_user_migrations RENAME TO hidden`)
	body := f.page("/", "<title>healthy", "Not used: <a href=\"/workers/ghost_user_migration\">", "database main has no ghost_user_migrations")
	if strings.Contains(body, `id="worker-ghost_user_migration"`) || !strings.Contains(body, `id="worker-`+keys+`"`) {
		t.Errorf("the rows are not those of the workers that are used: %s", body)
	}
}

func TestManyBrowsers_CostOneReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recent{known: map[string]*reading{}}
		var loads atomic.Int64
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				got := read(t.Context(), r, "x", readEvery, func(context.Context) (int64, error) {
					time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
					return loads.Add(1), nil
				})
				assert.That(t, got.Value == 1 && !got.Stale(), "got %+v", got)
			})
		}
		wait.Wait()
		time.Sleep(readEvery) //nolint:forbidigo // in a synctest bubble
		got := read(t.Context(), r, "x", readEvery, func(context.Context) (int64, error) { return loads.Add(1), nil })
		assert.That(t, got.Value == 2, "later: got %+v", got)
	})
}

func TestFailedReading_KeepsWhatWasKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recent{known: map[string]*reading{}}
		load := func(value int, err error) part[int] {
			defer time.Sleep(readEvery) //nolint:forbidigo // in a synctest bubble
			return read(t.Context(), r, "x", readEvery, func(context.Context) (int, error) { return value, err })
		}
		got := load(0, errors.New("down"))
		assert.That(t, got.Stale() && got.At.IsZero(), "never read: got %+v", got)
		first := load(7, nil)
		if got := load(0, errors.New("down")); !got.Stale() || got.Value != 7 || !got.At.Equal(first.At) {
			t.Errorf("got %+v", got)
		}
		if got := load(8, nil); got.Stale() || got.Value != 8 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestReadings_TheOldestIsForgottenWhenThereAreTooMany(t *testing.T) {
	t.Parallel()
	r := &recent{known: map[string]*reading{}}
	get := func(name string, value int) int {
		return read(t.Context(), r, name, time.Hour, func(context.Context) (int, error) { return value, nil }).Value
	}
	get("used", 1)
	for i := range 2 * maxReadings {
		get(fmt.Sprint(i), i)
		assert.Equal(t, get("used", 2), 1, "what is requested is kept")
	}
	assert.Equal(t, len(r.known), maxReadings, "readings")
	assert.Equal(t, get(fmt.Sprint(maxReadings+1), -1), maxReadings+1, "of the newest")
	assert.Equal(t, get(fmt.Sprint(maxReadings), -1), -1, "of the oldest")
}

func TestReadLater_ReturnsAnOldValueAtOnceAndRefreshesIt(t *testing.T) {
	t.Parallel()
	r, n, gate := &recent{known: map[string]*reading{}}, atomic.Int64{}, make(chan struct{}, 1)
	defer close(gate)
	get := func() part[int64] {
		return readLater(t.Context(), r, "n", 0, func(context.Context) (int64, error) {
			<-gate
			return n.Add(1), nil
		})
	}
	gate <- struct{}{}
	assert.Equal(t, get().Value, 1, "the first read")
	// The read in the background waits at the gate.
	assert.Equal(t, get().Value, 1, "while another read waits")
	assert.Equal(t, get().Value, 1, "while another read waits")
	gate <- struct{}{}
	devdb.Eventually(t, "the new value", func() bool {
		if len(gate) == 0 {
			gate <- struct{}{}
		}
		return get().Value > 1
	})
}
