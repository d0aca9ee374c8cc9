package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
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

func TestTrace_AUserWhoIsPutOffForTheTimeIsNoFailure(t *testing.T) {
	spans := servicetest.Tracing(t)
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.SlowIssues(10, 10_000)
	if r := g.Run(g.Service(servicetest.Lasting(2500*time.Millisecond)), ""); r.Counts["deferred_users"] != 1 {
		t.Fatalf("counts %v", r.Counts)
	}
	servicetest.WantAttributes(t, servicetest.Named(spans, "maintenance.batch")[0], map[string]string{
		"maintenance.outcome": "deferred", "maintenance.reason": "the run's time is used up", "maintenance.count.deferred_users": "1",
	})
	wantNoErrors(t, spans)
}

func TestTrace_ARunThatIsCancelledHasNotFailed(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 2000)
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild+"d: [{table: p, column: p_id, on_delete: async_delete}]\n", servicetest.With(func(c *loosefk.Config) { c.BatchSize = 10 }))
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	servicetest.Must(s.CancelRun(context.Background(), r.ID, ""))(t)
	e.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunCancelled)
	devdb.Eventually(t, "the span of the run", func() bool { return len(servicetest.Named(spans, "maintenance.run")) == 1 })
	servicetest.WantAttributes(t, servicetest.Named(spans, "maintenance.run")[0], map[string]string{"maintenance.outcome": "cancelled", "maintenance.reason": "CANCELLED"})
	stopped := slices.DeleteFunc(servicetest.Named(spans, "maintenance.batch"), func(s sdktrace.ReadOnlySpan) bool {
		return servicetest.Attribute(s, "maintenance.outcome") != "stopped"
	})
	if len(stopped) == 0 {
		t.Fatal("no batch was stopped")
	}
	servicetest.WantAttributes(t, stopped[0], map[string]string{"maintenance.reason": "CANCELLED"})
	wantNoErrors(t, spans)
}

func TestTrace_RestsAreToldOnTheRunAndItsBatch(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 40)
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(service.LoadConfig{MaxLockWait: 300 * time.Millisecond, Patience: devdb.WaitTimeout}))
	dissolve := e.LockQueue("c", "2 s")
	r := servicetest.Begin(t, s, "main")
	servicetest.WaitThrottled(t, s, "somebody waits for a lock on public.c of main: ")
	dissolve()
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunSucceeded)
	devdb.Eventually(t, "the span of the run", func() bool { return len(servicetest.Named(spans, "maintenance.run")) == 1 })
	for _, name := range []string{"maintenance.run", "maintenance.batch"} {
		rested := slices.DeleteFunc(servicetest.Named(spans, name), func(s sdktrace.ReadOnlySpan) bool {
			return !servicetest.HasAttribute(s, "maintenance.rested_seconds") || len(s.Events()) != 1 || s.Events()[0].Name != "throttled"
		})
		if len(rested) == 0 {
			t.Errorf("no span %s tells of a rest, with one event", name)
		}
	}
}

func TestTrace_ADryRunHasItsBatchAndALeaseTellsWhoHasIt(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 8)
	s := e.Service(servicetest.OneChild)
	servicetest.DryRun(t, s)
	batches := servicetest.Named(spans, "maintenance.batch")
	if len(batches) == 0 {
		t.Fatal("no batch")
	}
	servicetest.WantAttributes(t, batches[0], map[string]string{"maintenance.parent": "public.p", "maintenance.count.processed_records": "8"})
	servicetest.RunBatch(t, s, "main")
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour'`)
	if _, err := s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"}); err == nil {
		t.Fatal("the lease was free")
	}
	leases := servicetest.Named(spans, "maintenance.lease.acquire")
	servicetest.WantAttributes(t, leases[0], map[string]string{"maintenance.lease": servicetest.MainLease, "maintenance.outcome": "taken", "maintenance.lease_epoch": "1"})
	servicetest.WantAttributes(t, leases[1], map[string]string{
		"maintenance.lease": servicetest.MainLease, "maintenance.outcome": "held", "maintenance.holder": "somebody",
	})
	wantNoErrors(t, spans)
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

func TestTrace_WhyARunStoppedIsNotItsReasonAndAUserWhoFailedIsAFailure(t *testing.T) {
	spans := servicetest.Tracing(t)
	last := func(name string) sdktrace.ReadOnlySpan {
		all := servicetest.Named(spans, name)
		return all[len(all)-1]
	}
	e := servicetest.NewTokens(t)
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	e.Work(s, "continue_inactive_token_deletion")
	devdb.Eventually(t, "the run of the continuation", func() bool { return len(servicetest.Named(spans, "maintenance.run")) == 2 })
	servicetest.WantAttributes(t, last("maintenance.run"), map[string]string{
		"maintenance.reason": "continuation", "maintenance.over_limit": "true", "maintenance.stopped_because": "limit reached: max_runtime; more is left",
	})

	g := servicetest.NewGhosts(t)
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE users SET user_type = 12 WHERE id = 11`)
	g.Hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE`)
	g.Run(g.Service(), "deferred_users=1 failed_users=1 deleted_rows=3")
	servicetest.WantAttributes(t, last("maintenance.run"), map[string]string{
		"maintenance.reason":          "1 user deferred; 1 user failed",
		"maintenance.stopped_because": "all due work was processed, 1 user deferred; more is left",
	})
	failed := last("maintenance.batch")
	servicetest.WantAttributes(t, failed, map[string]string{
		"maintenance.outcome": "failed", "maintenance.reason": "INTERNAL_USER", "error.type": "INTERNAL_USER", "maintenance.count.failed_users": "1",
	})
	equal(t, "the status of its batch", failed.Status().Code.String(), "Error")
}

func TestTrace_EveryHeldGroupHasItsBatchAndTheRunCountsThemByReason(t *testing.T) {
	spans := servicetest.Tracing(t)
	g := servicetest.NewGroups(t)
	g.Group(10, 0, "g")
	g.MarkDetails(10, 15, `{}`)
	g.Group(11, 0, "b")
	g.Exec("main", `UPDATE namespaces SET state = 2 WHERE id = 11`)
	g.DryRun("held_groups=2")
	g.Run("held_groups=2")
	for _, run := range servicetest.Named(spans, "maintenance.run") {
		servicetest.WantAttributes(t, run, map[string]string{"maintenance.held": `["DELETING_USER_MISSING: 1","SCHEDULE_LOST: 1"]`})
	}
	held := slices.DeleteFunc(servicetest.Named(spans, "maintenance.batch"), func(s sdktrace.ReadOnlySpan) bool { return servicetest.Attribute(s, "maintenance.outcome") != "held" })
	if len(held) != 4 {
		t.Fatalf("%d batches of held groups, want two a run", len(held))
	}
	servicetest.WantAttributes(t, held[3], map[string]string{
		"maintenance.group_id": "11", "maintenance.outcome": "held", "maintenance.reason": "SCHEDULE_LOST", "maintenance.count.held_groups": "1",
	})
}

func TestTrace_NeitherADryRunNorADuplicateSendsAJob(t *testing.T) {
	spans := servicetest.Tracing(t)
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.DryRun("scheduled_jobs=1")
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), "send ") || strings.HasPrefix(s.Name(), "SET") || servicetest.HasAttribute(s, "messaging.message.id") || servicetest.HasAttribute(s, "maintenance.queued") {
			t.Errorf("there is a span %s: %v", s.Name(), s.Attributes())
		}
	}
	g.Run("scheduled_jobs=1")
	if sent := servicetest.Named(spans, "send destroy_group"); len(sent) != 1 {
		t.Errorf("%d spans of jobs that were sent, want one", len(sent))
	}
	// The same job waits already.
	g.Run("scheduled_jobs=0")
	sent := servicetest.Named(spans, "send destroy_group")
	if len(sent) != 2 || servicetest.HasAttribute(sent[1], "maintenance.job_ids") {
		t.Fatalf("%d spans of jobs: %v", len(sent), sent[len(sent)-1].Attributes())
	}
	servicetest.WantAttributes(t, sent[1], map[string]string{"maintenance.jobs_inserted": "0", "maintenance.jobs_dropped": "1", "maintenance.reason": "DUPLICATE"})
}
