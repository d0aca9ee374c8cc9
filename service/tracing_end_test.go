package service_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// noFailure is work that is put off, stopped or held, and spans with their names and attributes.
type noFailure struct {
	do    func(t *testing.T)
	spans [][]string
}

func noFailures() map[string]noFailure {
	return map[string]noFailure{
		"a user for whom there is no time": {func(t *testing.T) {
			t.Helper()
			g := servicetest.NewGhosts(t)
			g.Doomed(10)
			g.SlowIssues(10, 10_000)
			g.Run(g.Service(servicetest.Lasting(2500*time.Millisecond)), "")
		}, [][]string{{"maintenance.batch", "outcome=deferred", "reason=the run reached its time " +
			"limit", "count.deferred_users=1"}}},
		"a run that is cancelled": {func(t *testing.T) {
			t.Helper()
			e := servicetest.NewDeletedParents(t, 2000)
			e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
			e.Gate("main", "c")
			e.Shut("main", servicetest.App)
			s := e.Service(servicetest.OneChild+"d: [{table: p, column: p_id, on_delete: async_delete}]\n", servicetest.With(func(c *lfk.Config) { c.BatchSize = 10 }))
			r := servicetest.Begin(t, s, "main")
			e.AtGate("main", servicetest.App)
			assert.Must(s.CancelRun(context.Background(), r.ID, ""))(t)
			e.Lift("main", servicetest.App)
			servicetest.WantState(t, servicetest.Ended(t, s, r.ID), control.RunCancelled)
		}, [][]string{{"maintenance.run", "outcome=cancelled", "reason=CANCELLED"}, {"maintenance.batch", "outcome=stopped", "reason=CANCELLED"}}},
		"a lease, and a dry run": {func(t *testing.T) {
			t.Helper()
			e := servicetest.NewDeletedParents(t, 8)
			s := e.Service(servicetest.OneChild)
			servicetest.DryRun(t, s)
			servicetest.RunBatch(t, s, "main")
			e.Exec("main", `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour'`)
			_, err := s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
			assert.Require(t, err != nil, "the lease was free")
		}, [][]string{
			{"maintenance.run", "dry_run=true", "count.processed_records=8"},
			{"maintenance.batch", "parent=public.p", "count.processed_records=8"},
			{"maintenance.lease.acquire", "lease=" + servicetest.MainLease, "outcome=taken", "lease_epoch=1"},
			{"maintenance.lease.acquire", "lease=" + servicetest.MainLease, "outcome=held", "holder=somebody"},
		}},
		"groups, of which the run counts the reasons": {func(t *testing.T) {
			t.Helper()
			g := servicetest.NewGroups(t)
			g.Group(10, 0, "g")
			g.MarkDetails(10, 15, `{}`)
			g.Group(11, 0, "b")
			g.Exec("main", `UPDATE namespaces SET state = 2 WHERE id = 11`)
			g.DryRun("held_groups=2")
			g.Run("held_groups=2")
			servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups),
				"2 groups held for a decision (to list the groups, run `caretaker run "+
					"adjourned_group_deletion --dry-run`)")
		}, [][]string{
			{"maintenance.run", "dry_run=true", `held=["1 DELETING_USER_MISSING","1 SCHEDULE_LOST"]`},
			{"maintenance.run", "dry_run=false", `held=["1 DELETING_USER_MISSING","1 SCHEDULE_LOST"]`},
			{"maintenance.batch", "group_id=11", "outcome=held", "reason=SCHEDULE_LOST", "count.held_groups=1"},
		}},
		"a job that waits already": {func(t *testing.T) {
			t.Helper()
			g := servicetest.NewGroups(t)
			g.Owned(10, 15)
			g.DryRun("scheduled_jobs=1")
			g.Run("scheduled_jobs=1")
			g.Run("scheduled_jobs=0")
		}, [][]string{
			{"maintenance.run", "dry_run=true", "queued="},
			{"maintenance.run", `queued=["destroy_group: 1"]`},
			{"send destroy_group", "jobs_inserted=1", "jobs_dropped="},
			{"send destroy_group", "jobs_inserted=0", "jobs_dropped=1", "job_ids=", "reason=DUPLICATE"},
		}},
	}
}

func TestTrace_WhatIsPutOffStoppedOrHeldIsNoFailure(t *testing.T) {
	for name, c := range noFailures() {
		t.Run(name, func(t *testing.T) {
			spans := servicetest.Tracing(t)
			c.do(t)
			devdb.Eventually(t, "the span of the run", func() bool { return len(servicetest.Named(spans, "maintenance.run")) > 0 })
			for _, want := range c.spans {
				servicetest.WantSpan(t, spans, want[0], want[1:]...)
			}
			sent := len(servicetest.Named(spans, "send destroy_group"))
			assert.That(t, sent == 0 || sent == 2, "%d spans of jobs that were sent, of two runs and a dry run", sent)
			for _, s := range spans.Ended() {
				assert.That(t, s.Status().Code.String() != "Error", "%s has the status %+v: %v", s.Name(), s.Status(), s.Attributes())
			}
		})
	}
}

func TestTrace_ARunThatRestsWhileALockQueueLastsGoesOnAndTellsOfItsRests(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 40)
	book := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxLockWait: 300 * time.Millisecond, Timeout: devdb.WaitTimeout}), book.KeepAll)
	dissolve := e.LockQueue("c", "2 s")
	r := servicetest.Begin(t, s, "main")
	servicetest.WaitThrottled(t, s, "lock wait on public.c in main: ")
	servicetest.WaitThrottled(t, e.Service(servicetest.OneChild), "lock wait on public.c in main: ")
	dissolve()
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, control.RunSucceeded, "processed_records=40 deleted_rows=120")
	assert.That(t, !r.OverLimit && r.Reason == "", "%+v", r)
	devdb.Eventually(t, "one log line of the run's end with its pauses", func() bool {
		finished := book.Lines("run finished")
		return len(finished) == 1 && strings.Contains(finished[0], "rested_seconds=")
	})
	devdb.Eventually(t, "the span of the run", func() bool { return len(servicetest.Named(spans, "maintenance.run")) == 1 })
	for _, name := range []string{"maintenance.run", "maintenance.batch"} {
		assert.That(t, slices.ContainsFunc(servicetest.Named(spans, name), func(s sdktrace.ReadOnlySpan) bool {
			return servicetest.HasAttribute(s, "maintenance.rested_seconds") && len(s.Events()) == 1 && s.Events()[0].Name == "throttled"
		}), "no span %s tells of a rest, with one event", name)
	}
}

// wantOneType fails the test if an attribute of ours has values of several types, is empty, or a span has no name.
func wantOneType(t *testing.T, spans *tracetest.SpanRecorder) {
	t.Helper()
	types := map[string]string{}
	for _, s := range spans.Ended() {
		assert.That(t, s.Name() != "", "a span has no name: %v", s.Attributes())
		for _, a := range s.Attributes() {
			key, kind := string(a.Key), fmt.Sprint(a.Value.Type())
			known := types[key]
			assert.That(t, known == "" || known == kind, "%s is %s and %s", key, known, kind)
			if types[key] = kind; a.Value.String() == "" {
				t.Errorf("%s of %s is empty", key, s.Name())
			}
		}
	}
}

func TestTrace_WhyARunStoppedIsNotItsReasonAndAUserWhoFailedIsAFailure(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	// The status reports when the unfinished pass resumes.
	due := e.Value("main", `SELECT to_char(scheduled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens), "the unfinished bot check resumes at "+due)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE kind = 'continue_inactive_token_deletion'`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.InactiveTokens), "resumes when a server runs the job")
	e.Work(s, "continue_inactive_token_deletion")
	devdb.Eventually(t, "the run of the continuation", func() bool { return len(servicetest.Named(spans, "maintenance.run")) == 2 })
	servicetest.WantSpan(t, spans, "maintenance.run", "reason=continuation", "over_limit=true", "stopped_because=limit reached: max_runtime; more work remains")

	g := servicetest.NewGhosts(t)
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE users SET user_type = 12 WHERE id = 11`)
	g.Hold(`SELECT FROM users WHERE id = 10 FOR KEY SHARE`)
	g.Run(g.Service(), "deferred_users=1 failed_users=1 deleted_rows=3")
	servicetest.WantSpan(t, spans, "maintenance.run", "reason=1 user deferred; 1 user failed",
		"stopped_because=all due work was processed, 1 user deferred; more work remains")
	failed := servicetest.WantSpan(t, spans, "maintenance.batch", "outcome=failed", "reason=INTERNAL_USER", "error.type=INTERNAL_USER", "count.failed_users=1")
	assert.Equal(t, failed.Status().Code.String(), "Error", "the status of its batch")
}

func TestTrace_ATickThatRunsNothingHasATraceOfItsOwnAndTheTypedReason(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 5)
	next := int64(25772282)
	tick := func(s *service.Service, state string, want ...string) run.Run {
		t.Helper()
		r := fired(t, s, servicetest.LooseForeignKeys, minute(next))
		servicetest.WantState(t, r, state)
		root := servicetest.WantSpan(t, spans, "maintenance.run", append(want, "outcome="+state, "fire_time="+minute(next).UTC().Format(time.RFC3339))...)
		assert.Equal(t, r.TraceID, root.SpanContext().TraceID().String(), "the trace of the run")
		assert.That(t, root.Status().Code.String() != "Error" != (state == control.RunFailed) && !root.Parent().IsValid(),
			"status %+v, parent %v", root.Status(), root.Parent())
		next++
		return r
	}
	for name, why := range map[string]string{servicetest.LooseForeignKeys: servicetest.LooseForeignKeys + " is paused", fault.AllWorkers: "all workers are paused"} {
		log := &servicetest.Buffer{}
		s := e.Service(servicetest.OneChild, servicetest.TracedLogTo(log))
		servicetest.Pause(t, s, name)
		log.Reset()
		r := tick(s, control.RunSkipped, "reason=WORKER_PAUSED", "stopped_because="+why)
		assert.That(t, strings.HasPrefix(r.Reason, "WORKER_PAUSED: "), "reason %s", r.Reason)
		wantNothingOf(t, spans, "an incident", "alice")
		line := map[string]any{}
		assert.NoError(t, json.Unmarshal([]byte(log.String()), &line))
		for key, want := range map[string]any{"msg": "run skipped", "outcome": "skipped", "reason": "WORKER_PAUSED", "trigger": "schedule", "trace_id": r.TraceID, "why": nil} {
			assert.Equal(t, line[key], want, key)
		}
		assert.Must(s.ResumeWorker(t.Context(), name, "alice at 192.0.2.1"))(t)
		assert.That(t, strings.Contains(log.String(), `"worker resumed"`) &&
			strings.Contains(log.String(), `"by":"alice at 192.0.2.1"`), "the log is %s", log)
	}
	tick(e.Service(""), control.RunSkipped, "reason=WORKER_NOT_CONFIGURED")
	why := servicetest.Attribute(servicetest.WantSpan(t, spans, "maintenance.run", "reason=WORKER_NOT_CONFIGURED"), "maintenance.stopped_because")
	assert.Contains(t, why, "is not configured: ")
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	tick(e.Service(servicetest.OneChild), control.RunSkipped, "reason=LEASE_HELD")
	s := e.Service(servicetest.OneChild)
	e.Exec("main", `DELETE FROM maintenance.leases; ALTER TABLE maintenance.feature_flags RENAME TO hidden`)
	tick(s, control.RunFailed, "error.type=42P01")
}

func TestTrace_ACallWhoseRequestIDIsKnownLeadsToItsRun(t *testing.T) {
	spans := servicetest.Tracing(t)
	s := servicetest.NewDeletedParents(t, 3).Service(servicetest.OneChild)
	var first run.Run
	for _, name := range []string{"first", "second"} {
		ctx, call := otel.Tracer("test").Start(t.Context(), name)
		r, err := s.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", RequestID: "once", RequestedBy: "tester"})
		if call.End(); err != nil {
			t.Fatal(err)
		}
		servicetest.WantSpan(t, spans, name, "run_id="+r.ID)
		first = r
	}
	known := servicetest.WantSpan(t, spans, "first", "reason=")
	assert.That(t, len(known.Links()) == 0, "the first call has links %v", known.Links())
	root := servicetest.WantSpan(t, spans, "maintenance.run", "requested_by=tester").SpanContext()
	links := servicetest.WantSpan(t, spans, "second", "reason=REQUEST_KNOWN").Links()
	assert.That(t, len(links) == 1 && links[0].SpanContext.SpanID() == root.SpanID() && links[0].SpanContext.TraceID() == root.TraceID() &&
		first.TraceID == root.TraceID().String(), "links %v, want one to %v", links, root)
}

func TestTrace_ASettingThatIsInvalidOrOffIsNamedWithoutItsValue(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	s := e.Service("", e.WithQueue)
	const setTokens = `UPDATE application_settings SET resource_access_tokens_settings = $1`
	for _, settings := range []string{servicetest.TokenSettings(`"alice@example.com"`), `"alice@example.com"`} {
		e.Exec("main", setTokens, settings)
		r := servicetest.RunTokens(t, s)
		assert.That(t, strings.Contains(r.Error, "alice@example.com"), "error %q", r.Error)
	}
	e.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = -2047110815`)
	r := ran(t, s, run.Request{Worker: servicetest.AdjournedGroups})
	assert.That(t, strings.Contains(r.Error, "-2047110815"), "error %q", r.Error)
	runs := servicetest.Named(spans, "maintenance.run")
	assert.Require(t, len(runs) == 3, "%d runs", len(runs))
	for i, run := range runs {
		servicetest.WantAttributes(t, run, map[string]string{"maintenance.reason": "SETTING_INVALID", "error.type": "SETTING_INVALID"})
		setting := []string{servicetest.TokenSettingKey, servicetest.TokenSettingKey, "deletion_adjourned_period"}[i]
		for _, text := range []string{servicetest.Attribute(run, "maintenance.error"), servicetest.Attribute(run, "maintenance.stopped_because"), run.Status().Description} {
			assert.Contains(t, text, setting)
		}
	}
	wantNothingOf(t, spans, "alice", "2047110815")
	e.Exec("main", setTokens, servicetest.TokenSettings("null"))
	log := &servicetest.Buffer{}
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.TracedLogTo(log)))
	why := servicetest.Attribute(servicetest.Named(spans, "maintenance.run")[3], "maintenance.stopped_because")
	assert.That(t, strings.HasPrefix(why, "skipped: SETTING_OFF: "+servicetest.TokenSettingKey), "stopped because %q", why)
	assert.That(t, strings.Contains(log.String(), `"reason":"SETTING_OFF"`) &&
		strings.Contains(log.String(), `"why":"`+servicetest.TokenSettingKey), "the log is %s", log)
}
