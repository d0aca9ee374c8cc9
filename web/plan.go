package web

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/caretaker-go/caretaker/service/gitlab/plan"
	"github.com/caretaker-go/caretaker/service/job"
	deletion "github.com/caretaker-go/caretaker/service/run/plan"
)

const (
	// planEvery is the age from which on a plan is made again.
	planEvery = 30 * time.Second
	// planTimeout bounds the making of a plan: it stops by itself after 20 seconds, and waits up to
	// three for others.
	planTimeout = 25 * time.Second
)

// planPage is the data of the page of a plan.
type planPage struct {
	*deletion.Plan
	// At is when it was made.
	At time.Time
}

// Takes is the estimate in words, "" if there is none.
func (p planPage) Takes() string {
	switch {
	case p.Estimate <= 0:
		return ""
	case p.Estimate < time.Second:
		return "less than a second"
	}
	return "about " + span(p.Estimate)
}

// plan shows what a deletion would do, as the API's PlanDeletion says.
func (p *pages) plan(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		p.renderError(w, r, http.StatusBadRequest, "The address of a plan is /plan/user/ID, /plan/group/ID "+
			"or /plan/placeholder/ID, with a number.")
		return
	}
	found := readWithin(r.Context(), p.recent, fmt.Sprintf("plan %s %d", kind, id),
		times{planEvery, planTimeout}, func(ctx context.Context) (*deletion.Plan, error) {
			return p.config.Service.PlanDeletion(ctx, kind, id)
		})
	if found.Err != nil {
		p.fail(w, r, found.Err)
		return
	}
	p.write(w, r, http.StatusOK, "plan", frame{
		Title: fmt.Sprintf("plan of %s %d · caretaker", kind, id), Fixed: true,
		Body: planPage{found.Value, found.At},
	})
}

// planned is the address of the plan of something, "" if there is none for its kind.
func planned(kind string, id int64) string {
	if !plan.IsTarget(kind) {
		return ""
	}
	return fmt.Sprintf("/plan/%s/%d", kind, id)
}

// plannedBy is the address of the plan of what a job is to delete, "" once it has ended well.
func plannedBy(j job.Job) string {
	kind, id, ok := plan.TargetOf(j)
	if !ok || j.State == "completed" {
		return ""
	}
	return planned(kind, id)
}
