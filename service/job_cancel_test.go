package service_test

import (
	"context"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const cancelledGroup = "cancelled cancelled CANCELLED"

func TestCancelJob_OneThatWaitsNeverStartsUntilItIsRetried(t *testing.T) {
	t.Parallel()
	g := family(t)
	g.Run("scheduled_jobs=1")
	job, err := g.Service.CancelJob(t.Context(), 1, "not this one", "ann")
	if err != nil || job.State != "cancelled" || job.Reason != "CANCELLED" {
		t.Fatalf("%+v, %v", job, err)
	}
	const words = "job 1 was cancelled by ann: not this one; caretaker jobs retry 1 takes that back"
	plan, err := g.Service.PlanDeletion(t.Context(), "group", 10)
	if err != nil || plan.Refused == nil || plan.Refused.Reason+": "+plan.Refused.Detail != "CANCELLED: "+words || len(plan.Tables) == 0 {
		t.Errorf("%+v, %v", plan, err)
	}
	// Nor is it queued again behind the operator's back.
	g.Run("held_groups=1")
	g.WantLog(1, "Group held", "reason=CANCELLED", "job 1 was cancelled by ann: not this one")
	servicetest.WantCandidates(t, g.DryRun("held_groups=1"), "group 10 g10 hold CANCELLED: "+words)
	g.Want("main", `SELECT count(*) FROM maintenance.river_job`, "1")
	servicetest.Must(g.Service.RetryJob(t.Context(), 1))(t)
	g.Attempts("completed succeeded")
}

func TestCancelJob_OneAtWorkStopsAfterItsStatementAndARetryFinishesIt(t *testing.T) {
	t.Parallel()
	g := family(t)
	g.QueueJob(10, 1)
	g.Gate("main", "project_repositories")
	g.Shut("main", servicetest.App)
	q := g.Queue()
	servicetest.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
	g.AtGate("main", servicetest.App)
	job, err := g.Service.CancelJob(t.Context(), 1, "stop", "ann")
	if err != nil || job.State != "running" {
		t.Fatalf("%+v, %v", job, err)
	}
	if c := job.Cancellation; c == nil || c.Reason != "stop" || c.By != "ann" || c.At.IsZero() {
		t.Errorf("the cancellation is %+v", c)
	}
	g.Lift("main", servicetest.App)
	g.Eventually("main", `SELECT state::text FROM maintenance.river_job WHERE id = 1`, "cancelled")
	servicetest.NoError(t, q.Stop(context.Background()))
	g.WantJob(cancelledGroup)
	g.Want("main", `SELECT count(*) FROM projects`, "3")
	g.Want("main", `SELECT count(*) FROM maintenance.group_removals`, "1")
	g.Run("held_groups=1")
	g.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'destroy_group'`, "1")
	servicetest.Must(g.Service.RetryJob(t.Context(), 1))(t)
	g.Attempts("completed succeeded")
	job, err = g.Service.Job(t.Context(), 1)
	gone := map[string]int64{}
	for _, c := range job.Tables {
		gone[c.Table] = c.Deleted
	}
	g.Want("main", `SELECT string_agg(path, ' ' ORDER BY path) FROM maintenance.outside_paths WHERE job_id = 1`,
		"@hashed/1 @hashed/2 @hashed/3 @snippets/1 @snippets/2 @snippets/3")
	left := repo.OutsideCount{All: 6, Pending: 6}
	if err != nil || job.Cancellation != nil || gone["projects"] != 3 || job.Outside != left || job.Worked <= 0 {
		t.Errorf("%+v, %v", job, err)
	}
}
