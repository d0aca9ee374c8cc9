//go:build jaeger

package cli_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// TestJaeger runs all workers and their jobs in a real server, and checks their traces as a real
// Jaeger returns them.
func TestJaeger(t *testing.T) {
	e := newTracedEstate(t)
	_, placeholderTrace := e.call(&maintenancev1.RunBatchRequest{Worker: "placeholder_user_cleanup"})
	_, tokenTrace := e.call(&maintenancev1.RunBatchRequest{Worker: "inactive_token_deletion", Async: true})
	_, groupTrace := e.call(&maintenancev1.RunBatchRequest{Worker: "adjourned_group_deletion"})
	e.settled()
	execute(t, e.sql, `UPDATE ghost_user_migrations SET consume_after = now() - interval '1 minute' WHERE consume_after > now()`)
	_, rehearsal := e.call(&maintenancev1.RunBatchRequest{Worker: "ghost_user_migration", DryRun: true})
	ghosts, ghostTrace := e.call(&maintenancev1.RunBatchRequest{Worker: "ghost_user_migration"})
	const application = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	execute(t, e.sql, `SELECT set_config('caretaker.traceparent', '`+application+`', false)`)
	execute(t, e.sql, `DELETE FROM drainers; DELETE FROM faulters; RESET caretaker.traceparent`)
	cleanup, cleanupTrace := e.call(&maintenancev1.RunBatchRequest{Worker: "loose_foreign_keys_cleanup", Database: "main"})
	for _, database := range []string{"ci", "sec"} {
		_, trace := e.call(&maintenancev1.RunBatchRequest{Worker: "loose_foreign_keys_cleanup", Database: database})
		t.Run("tree of "+database, func(t *testing.T) { wantTree(t, trace) })
	}
	for range 3 {
		assert.Must(e.client.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
	}
	tick := e.tick()
	e.settled()
	e.stop()

	for name, trace := range map[string]jaegerTrace{
		"placeholder_user_cleanup": placeholderTrace, "inactive_token_deletion": tokenTrace, "adjourned_group_deletion": groupTrace,
		"ghost_user_migration": ghostTrace, "loose_foreign_keys_cleanup": cleanupTrace, "dry run": rehearsal,
	} {
		t.Run("tree of "+name, func(t *testing.T) { wantTree(t, trace) })
	}
	jobs := e.search("maintenance.job", nil)
	t.Run("jobs are linked to what queued them", func(t *testing.T) {
		wantJobs(t, jobs, map[string]jaegerTrace{
			"delete_placeholder_user": placeholderTrace, "delete_user": tokenTrace, "destroy_group": groupTrace,
		})
	})
	t.Run("the ghost migration is linked to the jobs before it", func(t *testing.T) { wantGhosts(t, ghosts, ghostTrace, jobs) })
	t.Run("a huge drain is a readable trace", func(t *testing.T) { wantDrain(t, cleanup, cleanupTrace, application, ghostTrace) })
	t.Run("runs that failed are found", func(t *testing.T) {
		failed := e.search("maintenance.run", map[string]string{"maintenance.outcome": "failed"})
		if !slices.ContainsFunc(failed, func(tr jaegerTrace) bool { return tr.TraceID == cleanupTrace.TraceID }) {
			t.Errorf("%d traces, without that of the cleanup", len(failed))
		}
	})
	t.Run("a tick is a root", func(t *testing.T) { wantTick(t, tick) })
	t.Run("nothing else is a root, and nothing is said that should not be", func(t *testing.T) { wantNothingElse(t, e.search("", nil)) })
	// The trees of docs/operate/tracing.md: make test-jaeger with JAEGER_TREES=FILE.
	if file := os.Getenv("JAEGER_TREES"); file != "" {
		var out strings.Builder
		for _, trace := range append([]jaegerTrace{placeholderTrace, tokenTrace, groupTrace, ghostTrace, cleanupTrace, rehearsal, tick}, jobs...) {
			fmt.Fprintf(&out, "%d spans, trace %s\n%s\n", len(trace.Spans), trace.TraceID, trace)
		}
		assert.NoError(t, os.WriteFile(file, []byte(out.String()), 0o600))
	}
}

// mostSpans is how many spans a trace has at most to be readable.
const mostSpans = 65

// wantTree fails the test unless the trace is the caller's call, below it one run, below that lease
// and batches, below them statements. And unless every span has its parent.
func wantTree(t *testing.T, trace jaegerTrace) {
	t.Helper()
	known := map[string]jaegerSpan{}
	for _, s := range trace.Spans {
		known[s.SpanID] = s
	}
	call, run := trace.only(t, runBatch), trace.only(t, "maintenance.run")
	if call.parent() != callerSpan || run.parent() != call.SpanID || call.tag("span.kind") != "server" || call.tag("rpc.system.name") != "grpc" {
		t.Errorf("the run is not below the call, or that not below the caller's span:\n%s", trace)
	}
	for _, key := range []string{"worker", "run_id", "database", "trigger", "outcome", "stopped_because"} {
		assert.That(t, run.tag("maintenance."+key) != "", "the run has no %s", key)
	}
	if dry := run.tag("maintenance.dry_run") == "true"; !dry && (run.tag("maintenance.lease_epoch") == "0" || len(trace.named("maintenance.lease.acquire")) != 1) {
		t.Errorf("no lease in\n%s", trace)
	}
	assert.That(t, len(trace.named("maintenance.batch")) != 0, "no batch in\n%s", trace)
	for _, s := range trace.Spans {
		parent, ok := known[s.parent()]
		assert.That(t, ok || s.SpanID == call.SpanID, "%s is an orphan", s.Name)
		if strings.HasPrefix(s.Name, "maintenance.") && s.Name != runBatch && s.Name != "maintenance.run" && parent.Name != "maintenance.run" {
			t.Errorf("%s is below %s", s.Name, parent.Name)
		}
		if s.tag("span.kind") == "client" {
			wantStatement(t, s)
		}
	}
	n := len(trace.Spans)
	assert.That(t, n <= mostSpans, "%d spans, at most %d can be read", n, mostSpans)
}

// wantStatement fails the test unless a statement's span is what the semantic conventions ask for.
func wantStatement(t *testing.T, s jaegerSpan) {
	t.Helper()
	for key, want := range map[string]string{"db.system.name": "postgresql", "db.namespace": "", "server.address": "", "maintenance.database": ""} {
		got := s.tag(key)
		assert.That(t, got != "" && (want == "" || got == want), "%s: %s is %q", s.Name, key, got)
	}
	summary := s.tag("db.query.summary")
	assert.That(t, summary == s.Name && summary != "", "%s is called %s", summary, s.Name)
	if s.tag("error") == "true" && (s.tag("error.type") == "" || strings.ContainsAny(s.tag("error.type"), " :")) {
		t.Errorf("%s failed without a class: %v", s.Name, s.Tags)
	}
}

// wantJobs fails the test unless a job of each kind is linked to its run. Every job must be linked
// to a run or to another job.
func wantJobs(t *testing.T, jobs []jaegerTrace, runs map[string]jaegerTrace) {
	t.Helper()
	known := map[string]bool{}
	for _, trace := range jobs {
		known[trace.only(t, "maintenance.job").id()] = true
	}
	for _, trace := range runs {
		known[trace.only(t, "maintenance.run").id()] = true
	}
	linked := map[string]bool{}
	for _, trace := range jobs {
		job := trace.only(t, "maintenance.job")
		kind := job.tag("maintenance.job.kind")
		if links := job.links(); len(links) != 1 {
			t.Errorf("%s has links %v", kind, links)
		} else if strings.HasPrefix(kind, "delete_placeholder") && !known[links[0]] {
			t.Errorf("%s is linked to %v, which is not there", kind, links)
		} else if of, ok := runs[kind]; ok && links[0] == of.only(t, "maintenance.run").id() {
			linked[kind] = true
		}
		if job.parent() != "" || job.tag("span.kind") != "consumer" || job.tag("messaging.operation.type") != "process" ||
			job.tag("messaging.system") != "river" || job.tag("messaging.message.id") == "" || job.tag("maintenance.outcome") == "" {
			t.Errorf("%s: %v", kind, job.Tags)
		}
		assert.That(t, len(trace.Spans) <= mostSpans, "%s has %d spans", kind, len(trace.Spans))
	}
	for kind := range runs {
		assert.That(t, linked[kind], "no job %s is linked to its run", kind)
	}
}

// wantGhosts fails the test unless the migration leads to jobs delete_user.
func wantGhosts(t *testing.T, run *maintenancev1.Run, trace jaegerTrace, jobs []jaegerTrace) {
	t.Helper()
	span := trace.only(t, "maintenance.run")
	if got, want := span.tag("maintenance.count.migrated_users"), fmt.Sprint(run.GetCounts()["migrated_users"]); got != want {
		t.Errorf("%s users migrated, want %s", got, want)
	}
	deletions := map[string]bool{}
	for _, job := range jobs {
		if s := job.only(t, "maintenance.job"); s.tag("maintenance.job.kind") == "delete_user" {
			deletions[s.id()] = true
		}
	}
	assert.That(t, len(span.links()) != 0, "no links in\n%s", trace)
	for _, l := range span.links() {
		assert.That(t, deletions[l], "linked to %s, which is no job delete_user", l)
	}
}

// wantDrain fails the test unless the trace of a run of hundreds of batches shows their number and
// a failure with its class. It must lead to the application and the ghost migration, which have
// deleted the parents.
func wantDrain(t *testing.T, run *maintenancev1.Run, trace jaegerTrace, application string, ghosts jaegerTrace) {
	t.Helper()
	span := trace.only(t, "maintenance.run")
	if batches := len(trace.named("maintenance.batch")); batches > 10 || span.tag("maintenance.batches_omitted") == "0" {
		t.Errorf("%d batches shown, %s left out", batches, span.tag("maintenance.batches_omitted"))
	}
	for key, want := range map[string]string{
		"maintenance.outcome": "failed", "error": "true", "otel.status_description": run.GetError(),
		"maintenance.count.deleted_rows": fmt.Sprint(run.GetCounts()["deleted_rows"]),
	} {
		assert.Equal(t, span.tag(key), want, key)
	}
	refused := slices.DeleteFunc(slices.Clone(trace.Spans), func(s jaegerSpan) bool {
		return s.tag("error.type") != "P0001" || strings.HasPrefix(s.Name, "maintenance.")
	})
	assert.That(t, len(refused) != 0 && refused[0].tag("db.response.status_code") == "P0001",
		"no statement refused with P0001 in\n%s", trace)
	parts := strings.Split(application, "-")
	for what, link := range map[string]string{"the application": parts[1] + "/" + parts[2], "the ghost migration": ghosts.only(t, "maintenance.run").id()} {
		if !slices.Contains(span.links(), link) {
			t.Errorf("no link to %s among %v", what, span.links())
		}
	}
}

func wantTick(t *testing.T, trace jaegerTrace) {
	t.Helper()
	run := trace.only(t, "maintenance.run")
	assert.That(t, run.parent() == "" && run.tag("maintenance.fire_time") != "" &&
		run.tag("maintenance.lateness_seconds") != "", "got\n%s", trace)
}

// wantNothingElse fails the test if it finds other traces than of calls, runs and jobs, or an
// orphan in any. No trace may have texts of statements, rows or the server's messages.
func wantNothingElse(t *testing.T, traces []jaegerTrace) {
	t.Helper()
	assert.That(t, len(traces) >= 20, "only %d traces", len(traces))
	roots := map[string]int{}
	for _, trace := range traces {
		known := map[string]bool{callerSpan: true}
		for _, s := range trace.Spans {
			known[s.SpanID] = true
		}
		for _, s := range trace.Spans {
			assert.That(t, s.Name != "", "a span of trace %s has no name: %v", trace.TraceID, s.Tags)
			if s.parent() == "" || s.parent() == callerSpan {
				roots[s.Name]++
			} else if !known[s.parent()] {
				t.Errorf("%s is an orphan in %s", s.Name, trace.TraceID)
			}
		}
		for _, word := range []string{"secret", "WITH fence", "$1", "set_config", "SELECT *", "db.query.text", "@example", "@demo", "traceparent"} {
			assert.Lacks(t, trace.raw, word)
		}
	}
	for _, name := range []string{runBatch, "maintenance.run", "maintenance.job"} {
		delete(roots, name)
	}
	if len(roots) > 0 {
		t.Errorf("other roots: %v", slices.Sorted(maps.Keys(roots)))
	}
}
