package server

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// audited are the entries, the oldest first, in words.
func (f *fixture) audited() (lines []string) {
	f.t.Helper()
	answer := assert.Must(f.ListAudit(as(f.t.Context(), "viewer-token"), &maintenancev1.ListAuditRequest{}))(f.t)
	for _, e := range answer.GetEntries() {
		assert.That(f.t, e.GetAt() != nil && e.GetAddress() == "bufconn", "got %v", e)
		line := strings.Join([]string{e.GetBy(), e.GetRole(), e.GetAction(), e.GetTarget(), e.GetReason(), e.GetOutcome()}, "|")
		lines = append([]string{line}, lines...)
	}
	return lines
}

func TestAudit_HasWhatChangesSomethingAndWhoWasRefused(t *testing.T) {
	f := start(t, withTokens(t, ""))
	viewer, operator, admin := as(t.Context(), "viewer-token"), as(t.Context(), "operator-token"), as(t.Context(), "admin-token")
	const flag = "loose_foreign_keys_turbo_mode_main"
	run := assert.Must(f.RunBatch(operator, &maintenancev1.RunBatchRequest{Worker: worker, Database: "main", RequestId: "mine"}))(t)
	id := run.GetRun().GetId()
	for _, err := range []error{
		second(f.RunBatch(operator, &maintenancev1.RunBatchRequest{Worker: worker, DryRun: true})),
		second(f.GetStatus(viewer, &maintenancev1.GetStatusRequest{})),
		second(f.PauseWorker(operator, &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "incident 4711", Ttl: durationpb.New(90e9)})),
		second(f.SetFeatureFlag(admin, &maintenancev1.SetFeatureFlagRequest{Name: flag})),
	} {
		assert.NoError(t, err)
	}
	for _, err := range []error{
		second(f.RunBatch(viewer, &maintenancev1.RunBatchRequest{Worker: worker, DryRun: true})),
		second(f.RunBatch(viewer, &maintenancev1.RunBatchRequest{Worker: "a\nb\x00"})),
		second(f.RunBatch(operator, &maintenancev1.RunBatchRequest{Worker: worker, Async: true})),
		second(f.CancelRun(operator, &maintenancev1.CancelRunRequest{Id: "x"})),
		second(f.RetryJob(operator, &maintenancev1.RetryJobRequest{})),
		second(f.PauseWorker(operator, &maintenancev1.PauseWorkerRequest{Worker: "*", Reason: "all"})),
		second(f.SetFeatureFlag(as(t.Context(), "forged"), &maintenancev1.SetFeatureFlagRequest{Name: flag})),
	} {
		assert.Require(t, err != nil, "not refused")
	}
	want := []string{
		"operator|operator|RunBatch|" + worker + "|database=main dry_run=false async=false request_id=mine run=" + id + "|OK",
		"operator|operator|PauseWorker|" + worker + "|incident 4711 ttl=90s|OK",
		"admin|admin|SetFeatureFlag|" + flag + "|enabled=false|OK",
		"viewer|viewer|RunBatch|a b|dry_run=false async=false|PERMISSION_DENIED ROLE_TOO_LOW",
		"operator|operator|RunBatch|" + worker + "|dry_run=false async=true|FAILED_PRECONDITION WORKER_PAUSED",
		"operator|operator|CancelRun|x||NOT_FOUND UNKNOWN_RUN",
		"operator|operator|RetryJob|||INVALID_ARGUMENT INVALID_ARGUMENT",
		"operator|operator|PauseWorker|*|all|PERMISSION_DENIED ROLE_TOO_LOW",
	}
	got := f.audited()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("entry %d of %d: got\n%s\nwant\n%s", i, len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestAudit_ComesInPagesFromATimeOn(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.audit (at, by, address, role, action, target, reason, outcome)
		SELECT '2026-11-01Z'::timestamptz + (i / 3) * interval '1 hour' + i * interval '1 ms', 'a', '', 'admin', 'PauseWorker', i::text, '', 'OK' FROM generate_series(0, 11) i`)
	read := func(size int32, since *timestamppb.Timestamp) string {
		request := &maintenancev1.ListAuditRequest{PageSize: size, Since: since}
		return joined(entries(f, f.ListAudit, request, (*maintenancev1.ListAuditResponse).GetEntries),
			(*maintenancev1.AuditEntry).GetTarget)
	}
	const all = "11 10 9 8 7 6 5 4 3 2 1 0"
	hour := timestamppb.New(timeOf(t, "2026-11-01T02:00:00Z"))
	for _, size := range []int32{1, 2, 5, 0, 100_000} {
		assert.Equal(t, read(size, nil), all, size)
		assert.Equal(t, read(size, hour), "11 10 9 8 7 6", size)
	}
}

// A run goes on without its caller.
func TestAudit_IsWrittenBeforeTheCallDoesAnythingAndAlsoIfTheClientHasGone(t *testing.T) {
	f := start(t)
	lift := f.gate()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker})) }()
	f.eventually("the run is at work", func() bool { return f.count(`SELECT count(*) FROM maintenance.runs WHERE state = 'running'`) == 1 })
	if got := f.audited(); len(got) != 1 || got[0] != "|admin|RunBatch|"+worker+"|dry_run=false async=false|STARTED" {
		t.Errorf("while the run is at work: %q", got)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("the call was not cancelled: %v", err)
	}
	f.eventually("the call is audited", func() bool {
		return f.count(`SELECT count(*) FROM maintenance.audit WHERE action = 'RunBatch' AND outcome = 'CANCELLED CLIENT_GONE'`) == 1
	})
	lift()
	f.eventually("the run has ended", func() bool { return f.count(`SELECT count(*) FROM maintenance.runs WHERE state = 'succeeded'`) == 1 })
	n := f.count(`SELECT count(*) FROM maintenance.audit a JOIN maintenance.runs r ON a.reason LIKE '% run=' || r.id`)
	assert.That(t, n == 1, "%d entries name the run that was started", n)
	assert.Equal(t, f.count(`SELECT (counts ->> 'deleted_rows')::integer FROM maintenance.runs`), 1, "the run has deleted")
}

func TestAudit_ARefusedClientCannotFillIt(t *testing.T) {
	f := start(t, withTokens(t, ""), withLimits(func(l *limits) { l.refusals, l.refusalBurst = 0.001, 3 }))
	for range 10 {
		f.failure(second(f.SetFeatureFlag(as(t.Context(), "viewer-token"), &maintenancev1.SetFeatureFlagRequest{})), 7, "ROLE_TOO_LOW")
	}
	f.failure(second(f.SetFeatureFlag(as(t.Context(), "operator-token"), &maintenancev1.SetFeatureFlagRequest{})), 7, "ROLE_TOO_LOW")
	if got := f.audited(); len(got) != 4 || !strings.HasPrefix(got[3], "operator|") {
		t.Errorf("got %q, want three entries of the viewer and one of the operator", got)
	}
	assert.Equal(t, strings.Count(f.log.String(), `"grpc.code":"PermissionDenied"`), 11, "calls are in the log")
	for range 10 {
		f.failure(second(f.RetryJob(as(t.Context(), "operator-token"), &maintenancev1.RetryJobRequest{Id: 9})), 5, "UNKNOWN_JOB")
	}
	if got := f.audited(); len(got) != 14 {
		t.Errorf("%d entries, want one more for each call that was allowed", len(got)-4)
	}
}

func TestAudit_NoArgumentCanBeTakenForAnother(t *testing.T) {
	f := start(t)
	const forged = "x run=1\noutcome=OK \" target=y"
	for _, err := range []error{
		second(f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: forged})),
		second(f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: "a=b", Reason: "plain \u202e words"})),
		second(f.ProtectTarget(t.Context(), &maintenancev1.ProtectTargetRequest{Kind: "user 7", Id: 8, Reason: "r"})),
		second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, RequestId: "a async=true"})),
	} {
		_ = err // They are audited whether they are done or refused.
	}
	want := []string{
		worker + `|"x run=1 outcome=OK \" target=y"|`,
		`"a=b"|"plain \u202e words"|`,
		`"user 7" 8|r must_exist=false|`,
		worker + `|dry_run=false async=false request_id="a async=true"|`,
	}
	for i, line := range f.audited() {
		if !strings.Contains(line, "|"+want[i]) && !strings.Contains(line, "|"+strings.TrimSuffix(want[i], "|")+" run=") {
			t.Errorf("got %s, want %s", line, want[i])
		}
	}
}
