package web

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/gitlab/plan"
	"github.com/caretaker-go/caretaker/service/job"
)

const (
	// planEvery is the age from which on a plan is computed again.
	planEvery = 30 * time.Second
	// planTimeout limits a plan, which waits up to 3 seconds for others and computes for up to 20.
	planTimeout = 25 * time.Second
)

// plan shows the effects of a deletion, from the API's PlanDeletion.
func (p *pages) plan(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		p.renderError(w, r, http.StatusBadRequest, "Replace "+strconv.Quote(r.PathValue("id"))+" in the address with the number of a "+kind+".")
		return
	}
	found := readWithin(r.Context(), p.recent, fmt.Sprintf("plan %s %d %q", kind, id, clientOf(r).Name),
		times{maxAge: planEvery, most: planTimeout}, func(ctx context.Context) (*pb.Plan, error) {
			answer, err := p.config.Call(ctx, callerOf(r), &pb.PlanDeletionRequest{Kind: kind, Id: id}, nil)
			planned, _ := answer.(*pb.PlanDeletionResponse)
			return planned.GetPlan(), err
		})
	if found.Err != nil {
		p.fail(w, r, found.Err)
		return
	}
	p.write(w, r, http.StatusOK, "plan", frame{Title: fmt.Sprintf("plan of %s %d · caretaker", kind, id), Fixed: true, Body: found})
}

// planned returns the address of a target's plan, "" for a kind without plans.
func planned(kind string, id int64) string {
	if !plan.IsTarget(kind) {
		return ""
	}
	return fmt.Sprintf("/plan/%s/%d", kind, id)
}

// plannedBy returns the address of the plan of a job's deletion, "" after the job has succeeded.
func plannedBy(j job.Job) string {
	if kind, id, ok := plan.TargetOf(j); ok && j.State != "completed" {
		return planned(kind, id)
	}
	return ""
}
