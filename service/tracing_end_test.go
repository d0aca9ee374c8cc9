package service_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// wantNoErrors fails the test if a span has the status Error.
func wantNoErrors(t *testing.T, spans *tracetest.SpanRecorder) {
	t.Helper()
	for _, s := range spans.Ended() {
		if s.Status().Code.String() == "Error" {
			t.Errorf("%s has the status %+v: %v", s.Name(), s.Status(), s.Attributes())
		}
	}
}

func tells(s sdktrace.ReadOnlySpan, key string) bool { return attributeOf(s, key) != "" }

func attributeOf(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func TestTrace_AUserWhoIsPutOffForTheTimeIsNoFailure(t *testing.T) {
	spans := tracing(t)
	g := newGhosts(t)
	g.doomed(10)
	g.slowIssues(10, 10_000)
	if r := g.run(g.service(lasting(2500*time.Millisecond)), ""); r.Counts["deferred_users"] != 1 {
		t.Fatalf("counts %v", r.Counts)
	}
	wantAttributes(t, named(spans, "maintenance.batch")[0], map[string]string{
		"maintenance.outcome": "deferred", "maintenance.reason": "the run's time is used up", "maintenance.count.deferred_users": "1",
	})
	wantNoErrors(t, spans)
}

func TestTrace_AUserWhoFailedIsAFailure(t *testing.T) {
	spans := tracing(t)
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `UPDATE users SET user_type = 12 WHERE id = 10`)
	g.run(g.service(), "failed_users=1")
	batch := named(spans, "maintenance.batch")[0]
	wantAttributes(t, batch, map[string]string{
		"maintenance.outcome": "failed", "maintenance.reason": "INTERNAL_USER", "error.type": "INTERNAL_USER", "maintenance.count.failed_users": "1",
	})
	if batch.Status().Code.String() != "Error" {
		t.Errorf("status %+v", batch.Status())
	}
}

func TestTrace_ARunThatIsCancelledHasNotFailed(t *testing.T) {
	spans := tracing(t)
	e := newDeletedParents(t, 2000)
	e.exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	e.gate("main", "c")
	e.shut("main", caretakerApp)
	s := e.service(oneChild+"d: [{table: p, column: p_id, on_delete: async_delete}]\n", with(func(c *loosefk.Config) { c.BatchSize = 10 }))
	r := begin(t, s, "main")
	e.atGate("main", caretakerApp)
	if _, err := s.CancelRun(context.Background(), r.ID, ""); err != nil {
		t.Fatal(err)
	}
	e.lift("main", caretakerApp)
	wantState(t, ended(t, s, r.ID), repo.RunCancelled)
	waitFor(t, "the span of the run", func() bool { return len(named(spans, "maintenance.run")) == 1 })
	wantAttributes(t, named(spans, "maintenance.run")[0], map[string]string{"maintenance.outcome": "cancelled", "maintenance.reason": "CANCELLED"})
	stopped := slices.DeleteFunc(named(spans, "maintenance.batch"), func(s sdktrace.ReadOnlySpan) bool { return attributeOf(s, "maintenance.outcome") != "stopped" })
	if len(stopped) == 0 {
		t.Fatal("no batch was stopped")
	}
	wantAttributes(t, stopped[0], map[string]string{"maintenance.reason": "CANCELLED"})
	wantNoErrors(t, spans)
}

func TestTrace_AHeldGroupTellsWhy(t *testing.T) {
	spans := tracing(t)
	g := newGroups(t)
	g.group(10, 0, "g")
	g.markDetails(10, 15, `{}`)
	g.run("held_groups=1")
	batches := slices.DeleteFunc(named(spans, "maintenance.batch"), func(s sdktrace.ReadOnlySpan) bool { return !tells(s, "maintenance.group_id") })
	if len(batches) != 1 {
		t.Fatalf("%d batches of a group", len(batches))
	}
	wantAttributes(t, batches[0], map[string]string{
		"maintenance.group_id": "10", "maintenance.outcome": "held", "maintenance.reason": "DELETING_USER_MISSING",
	})
}

func TestTrace_RestsAreToldOnTheRunAndItsBatch(t *testing.T) {
	spans := tracing(t)
	e := newDeletedParents(t, 40)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 300 * time.Millisecond, Patience: patience}))
	dissolve := e.lockQueue("c", "2 s")
	r := begin(t, s, "main")
	throttled(t, s, "somebody waits for a lock on public.c of main: ")
	dissolve()
	wantState(t, ended(t, s, r.ID), repo.RunSucceeded)
	waitFor(t, "the span of the run", func() bool { return len(named(spans, "maintenance.run")) == 1 })
	for _, name := range []string{"maintenance.run", "maintenance.batch"} {
		rested := slices.DeleteFunc(named(spans, name), func(s sdktrace.ReadOnlySpan) bool {
			return !tells(s, "maintenance.rested_seconds") || len(s.Events()) != 1 || s.Events()[0].Name != "throttled"
		})
		if len(rested) == 0 {
			t.Errorf("no span %s tells of a rest, with one event", name)
		}
	}
}

func TestTrace_ALeaseTellsWhoHasIt(t *testing.T) {
	spans := tracing(t)
	e := newDeletedParents(t, 1)
	s := e.service(oneChild)
	runBatch(t, s, "main")
	e.exec("main", `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour'`)
	if _, err := s.RunBatch(t.Context(), service.RunRequest{Worker: cleanupWorker, Database: "main"}); err == nil {
		t.Fatal("the lease was free")
	}
	leases := named(spans, "maintenance.lease.acquire")
	wantAttributes(t, leases[0], map[string]string{"maintenance.lease": mainLease, "maintenance.outcome": "taken", "maintenance.lease_epoch": "1"})
	wantAttributes(t, leases[1], map[string]string{
		"maintenance.lease": mainLease, "maintenance.outcome": "held", "maintenance.holder": "somebody",
	})
	wantNoErrors(t, spans)
}

func TestTrace_DryRunsHaveBatchesToo(t *testing.T) {
	spans := tracing(t)
	e := newDeletedParents(t, 8)
	dryRun(t, e.service(oneChild))
	batches := named(spans, "maintenance.batch")
	if len(batches) == 0 {
		t.Fatal("no batch")
	}
	wantAttributes(t, batches[0], map[string]string{"maintenance.parent": "public.p", "maintenance.count.processed_records": "8"})
}

// wantOneType fails the test if an attribute of ours has values of several types, is empty, or a span has no name.
func wantOneType(t *testing.T, spans *tracetest.SpanRecorder) {
	t.Helper()
	types := map[string]string{}
	for _, s := range spans.Ended() {
		if s.Name() == "" {
			t.Errorf("a span has no name: %v", s.Attributes())
		}
		for _, a := range s.Attributes() {
			key, kind := string(a.Key), fmt.Sprint(a.Value.Type())
			if known := types[key]; known != "" && known != kind {
				t.Errorf("%s is %s and %s", key, known, kind)
			}
			if types[key] = kind; a.Value.String() == "" {
				t.Errorf("%s of %s is empty", key, s.Name())
			}
		}
	}
}

func TestTrace_WhyARunStoppedIsNotItsReason(t *testing.T) {
	spans := tracing(t)
	last := func() sdktrace.ReadOnlySpan {
		runs := named(spans, "maintenance.run")
		return runs[len(runs)-1]
	}
	e := tokenEstate(t)
	e.bots(1, 2, 3)
	s := e.service("", e.withQueue, oneBotARun)
	runTokens(t, s)
	e.work(s, "continue_inactive_token_deletion")
	waitFor(t, "the run of the continuation", func() bool { return len(named(spans, "maintenance.run")) == 2 })
	wantAttributes(t, last(), map[string]string{
		"maintenance.reason": "continuation", "maintenance.over_limit": "true", "maintenance.stopped_because": "limit reached: max_runtime; more is left",
	})

	g := newGhosts(t)
	g.doomed(10, 11)
	g.exec("main", `UPDATE users SET user_type = 12 WHERE id = 11`)
	g.hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE`)
	g.run(g.service(), "deferred_users=1 failed_users=1 deleted_rows=3")
	wantAttributes(t, last(), map[string]string{
		"maintenance.reason":          "1 users deferred; 1 users failed",
		"maintenance.stopped_because": "all that was due has been looked at, 1 users deferred; more is left",
	})
}
