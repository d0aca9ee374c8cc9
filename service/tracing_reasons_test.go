package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestTrace_ATickOfAPausedWorkerHasATraceOfItsOwnTheTypedReasonAndNobodysWords(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 5)
	ticks := 0
	for name, want := range map[string]string{servicetest.LooseForeignKeys: servicetest.LooseForeignKeys + " is paused", service.AllWorkers: "all workers are paused"} {
		log := &bytes.Buffer{}
		s := e.Service(servicetest.OneChild, servicetest.TracedLogTo(log))
		servicetest.Pause(t, s, name)
		log.Reset()
		r, _, err := s.RunScheduled(t.Context(), servicetest.LooseForeignKeys, minute(25772282))
		servicetest.NoError(t, err)
		servicetest.WantState(t, r, repo.RunSkipped)
		root := servicetest.Named(spans, "maintenance.run")[ticks]
		ticks++
		if id := root.SpanContext().TraceID().String(); r.TraceID != id || !strings.HasPrefix(r.Reason, "WORKER_PAUSED: ") {
			t.Errorf("trace %q, want %s; reason %s", r.TraceID, id, r.Reason)
		}
		servicetest.WantAttributes(t, root, map[string]string{
			"maintenance.outcome": repo.RunSkipped, "maintenance.reason": "WORKER_PAUSED", "maintenance.stopped_because": want,
		})
		wantNothingOf(t, spans, "an incident", "alice")
		line := map[string]any{}
		servicetest.NoError(t, json.Unmarshal(log.Bytes(), &line))
		for key, want := range map[string]any{"msg": "run skipped", "outcome": "skipped", "reason": "WORKER_PAUSED", "trigger": "schedule", "trace_id": r.TraceID, "why": nil} {
			if line[key] != want {
				t.Errorf("%s is %v, want %v", key, line[key], want)
			}
		}
		servicetest.Resume(t, s, name)
		e.Exec("main", `TRUNCATE maintenance.fires, maintenance.schedules`)
	}
}

func TestTrace_ATickOfAWorkerThatIsNotConfiguredHasTheTypedReason(t *testing.T) {
	spans := servicetest.Tracing(t)
	s := servicetest.NewDeletedParents(t, 5).Service("")
	if _, _, err := s.RunScheduled(t.Context(), servicetest.LooseForeignKeys, minute(25772282)); err != nil {
		t.Fatal(err)
	}
	root := servicetest.Named(spans, "maintenance.run")[0]
	servicetest.WantAttributes(t, root, map[string]string{"maintenance.outcome": repo.RunSkipped, "maintenance.reason": "WORKER_NOT_CONFIGURED"})
	if why := servicetest.Attribute(root, "maintenance.stopped_because"); !strings.Contains(why, "is not configured: ") {
		t.Errorf("stopped because %q", why)
	}
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

func TestTrace_AnInvalidSettingHasItsTypeAndNotItsValue(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	s := e.Service("", e.WithQueue)
	for _, settings := range []string{servicetest.TokenSettings(`"alice@example.com"`), `"alice@example.com"`} {
		e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, settings)
		if r := servicetest.RunTokens(t, s); !strings.Contains(r.Error, "alice@example.com") {
			t.Errorf("error %q", r.Error)
		}
	}
	g := servicetest.NewGroups(t)
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = -4711`)
	if r, err := g.Service.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups}); err != nil || !strings.Contains(r.Error, "-4711") {
		t.Errorf("error %q, %v", r.Error, err)
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
}

func TestTrace_ASettingThatIsOffIsNamed(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	e.Exec("main", `UPDATE application_settings SET resource_access_tokens_settings = $1`, servicetest.TokenSettings("null"))
	log := &bytes.Buffer{}
	servicetest.RunTokens(t, e.Service("", e.WithQueue, servicetest.TracedLogTo(log)))
	if why := servicetest.Attribute(servicetest.Named(spans, "maintenance.run")[0], "maintenance.stopped_because"); !strings.HasPrefix(why, "skipped: SETTING_OFF: "+servicetest.TokenSettingKey) {
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
