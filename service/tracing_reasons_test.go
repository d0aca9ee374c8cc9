package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestTrace_ATickThatRunsNothingHasATraceOfItsOwnAndTheTypedReason(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 5)
	next := int64(25772282)
	tick := func(s *service.Service, state string, want map[string]string) (service.Run, sdktrace.ReadOnlySpan) {
		t.Helper()
		r := fired(t, s, servicetest.LooseForeignKeys, minute(next))
		servicetest.WantState(t, r, state)
		runs := servicetest.Named(spans, "maintenance.run")
		root := runs[len(runs)-1]
		servicetest.WantAttributes(t, root, want)
		servicetest.WantAttributes(t, root, map[string]string{
			"maintenance.outcome": state, "maintenance.fire_time": minute(next).UTC().Format("2006-01-02T15:04:05Z"),
		})
		equal(t, "the trace of the run", r.TraceID, root.SpanContext().TraceID().String())
		if failed := root.Status().Code.String() == "Error"; failed != (state == repo.RunFailed) || root.Parent().IsValid() {
			t.Errorf("status %+v, parent %v", root.Status(), root.Parent())
		}
		next++
		return r, root
	}
	for name, why := range map[string]string{servicetest.LooseForeignKeys: servicetest.LooseForeignKeys + " is paused", service.AllWorkers: "all workers are paused"} {
		log := &bytes.Buffer{}
		s := e.Service(servicetest.OneChild, servicetest.TracedLogTo(log))
		servicetest.Pause(t, s, name)
		log.Reset()
		r, _ := tick(s, repo.RunSkipped, map[string]string{"maintenance.reason": "WORKER_PAUSED", "maintenance.stopped_because": why})
		if !strings.HasPrefix(r.Reason, "WORKER_PAUSED: ") {
			t.Errorf("reason %s", r.Reason)
		}
		wantNothingOf(t, spans, "an incident", "alice")
		line := map[string]any{}
		servicetest.NoError(t, json.Unmarshal(log.Bytes(), &line))
		for key, want := range map[string]any{"msg": "run skipped", "outcome": "skipped", "reason": "WORKER_PAUSED", "trigger": "schedule", "trace_id": r.TraceID, "why": nil} {
			equal(t, key, line[key], want)
		}
		servicetest.Resume(t, s, name)
	}
	_, root := tick(e.Service(""), repo.RunSkipped, map[string]string{"maintenance.reason": "WORKER_NOT_CONFIGURED"})
	if why := servicetest.Attribute(root, "maintenance.stopped_because"); !strings.Contains(why, "is not configured: ") {
		t.Errorf("stopped because %q", why)
	}
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	tick(e.Service(servicetest.OneChild), repo.RunSkipped, map[string]string{"maintenance.reason": "LEASE_HELD"})
	s := e.Service(servicetest.OneChild)
	e.Exec("main", `DELETE FROM maintenance.leases; ALTER TABLE maintenance.feature_flags RENAME TO hidden`)
	tick(s, repo.RunFailed, map[string]string{"error.type": "42P01"})
}

func TestTrace_ACallWhoseRequestIDIsKnownLeadsToItsRun(t *testing.T) {
	spans := servicetest.Tracing(t)
	s := servicetest.NewDeletedParents(t, 3).Service(servicetest.OneChild)
	var first service.Run
	for _, name := range []string{"first", "second"} {
		ctx, call := otel.Tracer("test").Start(t.Context(), name)
		r, err := s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", RequestID: "once", RequestedBy: "tester"})
		if call.End(); err != nil {
			t.Fatal(err)
		}
		servicetest.WantAttributes(t, servicetest.Named(spans, name)[0], map[string]string{"maintenance.run_id": r.ID})
		first = r
	}
	if first := servicetest.Named(spans, "first")[0]; servicetest.HasAttribute(first, "maintenance.reason") || len(first.Links()) > 0 {
		t.Errorf("the first call has %v, %v", first.Attributes(), first.Links())
	}
	servicetest.WantAttributes(t, servicetest.Named(spans, "maintenance.run")[0], map[string]string{"maintenance.requested_by": "tester"})
	second, root := servicetest.Named(spans, "second")[0], servicetest.Named(spans, "maintenance.run")[0].SpanContext()
	servicetest.WantAttributes(t, second, map[string]string{"maintenance.reason": "REQUEST_KNOWN"})
	links := second.Links()
	if len(links) != 1 || links[0].SpanContext.SpanID() != root.SpanID() || links[0].SpanContext.TraceID() != root.TraceID() || first.TraceID != root.TraceID().String() {
		t.Errorf("links %v, want one to %v", links, root)
	}
}

func TestTrace_ASettingThatIsInvalidOrOffIsNamedWithoutItsValue(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	s := e.Service("", e.WithQueue)
	const setTokens = `UPDATE application_settings SET resource_access_tokens_settings = $1`
	for _, settings := range []string{servicetest.TokenSettings(`"alice@example.com"`), `"alice@example.com"`} {
		e.Exec("main", setTokens, settings)
		if r := servicetest.RunTokens(t, s); !strings.Contains(r.Error, "alice@example.com") {
			t.Errorf("error %q", r.Error)
		}
	}
	e.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = -4711`)
	if r := ran(t, s, service.RunRequest{Worker: servicetest.AdjournedGroups}); !strings.Contains(r.Error, "-4711") {
		t.Errorf("error %q", r.Error)
	}
	runs := servicetest.Named(spans, "maintenance.run")
	if len(runs) != 3 {
		t.Fatalf("%d runs", len(runs))
	}
	for i, run := range runs {
		servicetest.WantAttributes(t, run, map[string]string{"maintenance.outcome": repo.RunFailed, "maintenance.reason": "SETTING_INVALID", "error.type": "SETTING_INVALID"})
		setting := []string{servicetest.TokenSettingKey, servicetest.TokenSettingKey, "deletion_adjourned_period"}[i]
		for _, text := range []string{servicetest.Attribute(run, "maintenance.error"), servicetest.Attribute(run, "maintenance.stopped_because"), run.Status().Description} {
			if !strings.Contains(text, setting) {
				t.Errorf("%q does not name %s", text, setting)
			}
		}
	}
	wantNothingOf(t, spans, "alice", "4711")
	e.Exec("main", setTokens, servicetest.TokenSettings("null"))
	log := &bytes.Buffer{}
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.TracedLogTo(log)))
	if why := servicetest.Attribute(servicetest.Named(spans, "maintenance.run")[3], "maintenance.stopped_because"); !strings.HasPrefix(why, "skipped: SETTING_OFF: "+servicetest.TokenSettingKey) {
		t.Errorf("stopped because %q", why)
	}
	if !strings.Contains(log.String(), `"reason":"SETTING_OFF"`) || !strings.Contains(log.String(), `"why":"`+servicetest.TokenSettingKey) {
		t.Errorf("the log is %s", log)
	}
}

func TestLog_SaysWhoHasResumed(t *testing.T) {
	t.Parallel()
	log := &bytes.Buffer{}
	e := servicetest.New(t, "main", "main")
	s := e.Service(servicetest.OneChild, e.WithQueue, servicetest.TracedLogTo(log))
	servicetest.Must(s.ResumeWorker(context.Background(), servicetest.LooseForeignKeys, "alice at 192.0.2.1"))(t)
	if !strings.Contains(log.String(), `"worker resumed"`) || !strings.Contains(log.String(), `"by":"alice at 192.0.2.1"`) {
		t.Errorf("the log is %s", log)
	}
}
