// Package plan says what deleting a user, group or placeholder user of a GitLab database would do: it asks
// the jobs and workers that would carry it out, in their order. A plan writes nothing. At most two plans are
// made at a time, and another waits three seconds for its turn.
package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// IsTarget reports whether this is a kind of what jobs delete and [Planner.PlanDeletion] plans.
func IsTarget(kind string) bool {
	return kind == control.KindUser || kind == control.KindGroup || kind == control.KindPlaceholder
}

// TargetOf is what a job is to delete, not ok if it is of a kind that deletes nothing of the application.
func TargetOf(j job.Job) (kind string, id int64, ok bool) {
	var args struct {
		User        int64 `json:"user_id"`
		Group       int64 `json:"group_id"`
		Placeholder int64 `json:"placeholder_user_id"`
	}
	if json.Unmarshal(j.Args, &args) != nil {
		return "", 0, false
	}
	switch j.Kind {
	case jobqueue.DeleteUser{}.Kind():
		return control.KindUser, args.User, true
	case jobqueue.DestroyGroup{}.Kind():
		return control.KindGroup, args.Group, true
	case jobqueue.DeletePlaceholderUser{}.Kind():
		return control.KindPlaceholder, args.Placeholder, true
	}
	return "", 0, false
}

const (
	// plansAtOnce is how many plans are made at a time: runs and leases need the connections.
	plansAtOnce = 2
	// planWait is how long a plan waits for those before it.
	planWait = 3 * time.Second
)

// Planner makes plans. It may be called from any goroutine.
type Planner struct {
	runner *run.Runner
	jobs   *job.Pool
	// turns has an element for each plan that is being made.
	turns chan struct{}
}

// New makes a Planner of the workers of an engine and the jobs of a pool.
func New(runner *run.Runner, jobs *job.Pool) *Planner {
	return &Planner{runner: runner, jobs: jobs, turns: make(chan struct{}, plansAtOnce)}
}

// acquire waits until one more plan may be made, and returns what ends it.
func (p *Planner) acquire(ctx context.Context) (done func(), err error) {
	wait, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	select {
	case p.turns <- struct{}{}:
		return func() { <-p.turns }, nil
	case <-wait.Done():
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &fault.RefusedError{
			Reason: "PLANS_BUSY", Retry: planWait,
			Text: fmt.Sprintf("%d plans are being made, as many as may be at once: try again in %s", plansAtOnce, planWait),
		}
	}
}

// PlanDeletion says what deleting a user, group or placeholder user would do. It writes nothing, and
// reads the replicas where there are some, once they have what was written until now.
//
// Errors: [*fault.InvalidArgumentError], [*fault.RefusedError], [*fault.NotConfiguredError], [fault.ErrUnreachable].
func (p *Planner) PlanDeletion(ctx context.Context, kind string, id int64) (*plan.Plan, error) {
	steps, err := p.planners(kind, id)
	if err != nil {
		return nil, err
	}
	done, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	primaries := run.GitLabs(p.runner.Databases)
	copies, replicas := make([]*repo.Database, len(primaries)), false
	for i, d := range primaries {
		copies[i] = d.ReadCopy(ctx)
		replicas = replicas || copies[i] != d
	}
	begun := plan.New(kind, id, copies)
	made, err := p.plan(ctx, begun, steps)
	if err != nil && replicas && ctx.Err() == nil {
		// A replica may cancel what it is asked, or lose its connection.
		made, err = p.plan(ctx, begun.Reset(primaries), steps)
	}
	if err == plan.ErrUnknownTarget { //nolint:errorlint // as planners return it
		err = unknownTarget(kind, id)
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}

func unknownTarget(kind string, id int64) error {
	table := "users"
	if kind == control.KindGroup {
		table = "namespaces, with the type Group"
	}
	return &fault.RefusedError{
		Reason: "UNKNOWN_TARGET", What: plan.ErrUnknownTarget,
		Text:     fmt.Sprintf("there is no %s %d: its id is that of %s", kind, id, table),
		Metadata: map[string]string{"kind": kind, "id": strconv.FormatInt(id, 10)},
	}
}

// planners are what would be done, in order.
func (p *Planner) planners(kind string, id int64) ([]run.Planner, error) {
	var names []string
	switch kind {
	case control.KindGroup:
		names = []string{jobqueue.DestroyGroup{}.Kind()}
	case control.KindPlaceholder:
		names = []string{jobqueue.DeletePlaceholderUser{}.Kind(), jobqueue.DeleteUser{}.Kind()}
	case control.KindUser:
		names = []string{jobqueue.DeleteUser{}.Kind()}
	default:
		return nil, &fault.InvalidArgumentError{
			Field: "kind", Description: "is not user, group or placeholder",
		}
	}
	if id <= 0 {
		return nil, &fault.InvalidArgumentError{Field: "id", Description: "is required: a number above 0"}
	}
	var steps []run.Planner
	for _, name := range names {
		steps = append(steps, p.jobs.Kinds[name].Plan)
	}
	if kind != control.KindGroup {
		// After the jobs the rest is the worker's.
		for _, w := range p.runner.Workers {
			if w.Plan != nil {
				steps = append(steps, w.Plan)
			}
		}
	}
	return steps, nil
}

// plan goes through the steps. What would end a job ends the plan, too.
func (p *Planner) plan(
	ctx context.Context, made *plan.Plan, steps []run.Planner,
) (*plan.Plan, error) {
	x := p.runner.Planning(ctx, made)
	for _, step := range steps {
		err := fault.RecoverPanic(func() error { return step(ctx, x, made) })
		if err := made.AddRefusal(ctx, err); err != nil {
			return nil, err
		}
		if err != nil {
			break
		}
	}
	if err := made.AddRefusal(ctx, made.Check(ctx)); err != nil {
		return nil, err
	}
	names, err := made.Main().Users.Names(ctx, made.Kind, []int64{made.ID}, run.ReadLimits())
	if err != nil {
		return nil, err
	}
	made.Name = names[made.ID]
	if err := made.Finish(); err != nil {
		return nil, err
	}
	p.estimate(ctx, made)
	return made, nil
}

// estimate is by the speed last measured with about as many rows; without one there is none, nor where
// not all rows were counted.
func (p *Planner) estimate(ctx context.Context, made *plan.Plan) {
	if !made.Exact {
		return
	}
	rows, took, err := p.runner.Main.History.Speed(ctx, made.Kind, made.Rows(), run.ReadLimits())
	if err == nil && rows > 0 {
		made.Estimate = time.Duration(float64(made.Rows()) / float64(rows) * float64(took))
	}
}
