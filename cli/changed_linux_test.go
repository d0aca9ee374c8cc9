package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// keeping answers with a run that it has kept.
type keeping struct {
	api
	run *pb.Run
}

func (k keeping) GetRun(context.Context, *pb.GetRunRequest, ...grpc.CallOption) (*pb.GetRunResponse, error) {
	return &pb.GetRunResponse{Run: k.run}, nil
}

func planOf(ids ...int64) *pb.Run {
	run := &pb.Run{DryRun: true, CandidatesDigest: "d", State: pb.RunState_RUN_STATE_SUCCEEDED}
	for _, id := range ids {
		run.Candidates = append(run.Candidates, &pb.Candidate{Kind: "group", Id: id, Name: "acme", Action: "queue"})
	}
	return run
}

func TestRun_AChangedPlanSaysWhatCameAndWent(t *testing.T) {
	t.Parallel()
	refused := assert.Must(status.New(codes.FailedPrecondition, "expected_digest").WithDetails(&errdetails.ErrorInfo{
		Reason: "PLAN_CHANGED", Metadata: map[string]string{"run_id": "r7"},
	}))(t)
	for _, c := range []struct {
		planned, now *pb.Run
		want         string
	}{
		{planOf(1, 2), planOf(2, 3), "what it would do has changed since you were asked: group 3 acme (queue) came, group 1 acme (queue) went"},
		{planOf(), planOf(1, 2, 3, 4, 5, 6, 7), "group 5 acme (queue) and 2 more came"},
		{planOf(1), planOf(1), "beyond those that are listed"},
		{planOf(1), &pb.Run{}, "could not all be looked at"},
		{nil, planOf(1), "look at a new dry run, and give --expected-digest"},
	} {
		text := (&app{}).explainChange(t.Context(), keeping{run: c.now}, refused.Err(), c.planned).Error()
		if !strings.Contains(text, c.want) || !strings.HasSuffix(text, "(PLAN_CHANGED, run r7)") || strings.Contains(text, "_digest") {
			t.Errorf("%s, want %s", text, c.want)
		}
	}
	other := errors.New("other")
	if err := (&app{}).explainChange(t.Context(), keeping{}, other, nil); !errors.Is(err, other) {
		t.Error(err)
	}
}

func TestRun_TheQuestionSaysOnHowMuch(t *testing.T) {
	t.Parallel()
	many := planOf(1, 2)
	many.MoreCandidates = 1000
	for want, plan := range map[string]*pb.Run{
		"1 candidate": planOf(1), "1002 candidates": many,
		"3 records without rows": {Counts: map[string]int64{"processed_records": 3}},
		"at least 7 rows":        {Definitions: []*pb.DefinitionCount{{Rows: 3}, {Rows: 4, AtLeast: true}}},
	} {
		assert.Equal(t, extent(plan), want)
	}
	assert.That(t, nothingDue(planOf()) && !nothingDue(many) && !nothingDue(&pb.Run{}), "what has nothing to do is not known")
	const worker = "loose_foreign_keys_cleanup"
	due := map[string]int64{"processed_records": 1}
	assert.That(t, nothingDue(&pb.Run{Worker: worker}) && !nothingDue(&pb.Run{Worker: worker, OverLimit: true}) &&
		!nothingDue(&pb.Run{Worker: worker, Counts: due}), "whether records are due is not known")
}

func TestRun_ADryRunSpeaksOfWhatWouldBe(t *testing.T) {
	t.Parallel()
	plan := planOf(7)
	plan.Counts = map[string]int64{"scheduled_jobs": 1}
	got := inPipe(t, func(a *app) error { return a.describeRun(plan) })
	if !strings.Contains(got, "  would be scheduled jobs 1\n") || !strings.Contains(got, "KIND   ID  NAME  WOULD  REASON\n") {
		t.Error(got)
	}
}

func TestStatus_WhatIsDeadOrDeferredNamesWhereItIsListed(t *testing.T) {
	t.Parallel()
	for worker, want := range map[string]string{
		"loose_foreign_keys_cleanup": ": 2 dead records: list them with caretaker lfk dead\n",
		"ghost_user_migration": ": see the status page (web_listen): 2 dead at /workers/ghost_user_migration/dead, " +
			"3 deferred at /workers/ghost_user_migration/deferred\n",
	} {
		got := inPipe(t, func(a *app) error {
			return a.describeWorkers(&pb.WorkerStatus{Worker: worker, Backlog: &pb.Backlog{Dead: 2, Deferred: 3}})
		})
		assert.Contains(t, got, worker+want)
	}
}
