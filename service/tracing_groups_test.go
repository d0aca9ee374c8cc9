package service_test

import (
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
