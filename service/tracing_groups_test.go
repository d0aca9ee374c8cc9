package service_test

import (
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func TestTrace_EveryHeldGroupHasItsBatchAndTheRunCountsThemByReason(t *testing.T) {
	spans := tracing(t)
	g := newGroups(t)
	g.group(10, 0, "g")
	g.markDetails(10, 15, `{}`)
	g.group(11, 0, "b")
	g.exec("main", `UPDATE namespaces SET state = 2 WHERE id = 11`)
	g.dryRun("held_groups=2")
	g.run("held_groups=2")
	for _, run := range named(spans, "maintenance.run") {
		wantAttributes(t, run, map[string]string{"maintenance.held": `["DELETING_USER_MISSING: 1","SCHEDULE_LOST: 1"]`})
	}
	held := slices.DeleteFunc(named(spans, "maintenance.batch"), func(s sdktrace.ReadOnlySpan) bool { return attributeOf(s, "maintenance.outcome") != "held" })
	if len(held) != 4 {
		t.Fatalf("%d batches of held groups, want two a run", len(held))
	}
	wantAttributes(t, held[3], map[string]string{
		"maintenance.group_id": "11", "maintenance.reason": "SCHEDULE_LOST", "maintenance.count.held_groups": "1",
	})
}

func TestTrace_NeitherADryRunNorADuplicateSendsAJob(t *testing.T) {
	spans := tracing(t)
	g := newGroups(t)
	g.owned(10, 15)
	g.dryRun("scheduled_jobs=1")
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), "send ") || strings.HasPrefix(s.Name(), "SET") || tells(s, "messaging.message.id") || tells(s, "maintenance.queued") {
			t.Errorf("there is a span %s: %v", s.Name(), s.Attributes())
		}
	}
	g.run("scheduled_jobs=1")
	if sent := named(spans, "send destroy_group"); len(sent) != 1 {
		t.Errorf("%d spans of jobs that were sent, want one", len(sent))
	}
	// The same job waits already.
	g.run("scheduled_jobs=0")
	sent := named(spans, "send destroy_group")
	if len(sent) != 2 || tells(sent[1], "maintenance.job_ids") {
		t.Fatalf("%d spans of jobs: %v", len(sent), sent[len(sent)-1].Attributes())
	}
	wantAttributes(t, sent[1], map[string]string{"maintenance.jobs_inserted": "0", "maintenance.jobs_dropped": "1", "maintenance.reason": "DUPLICATE"})
}
