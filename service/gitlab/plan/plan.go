// Package plan reports what deleting a user, group or placeholder user of a GitLab database would
// do. It asks the jobs and workers that would do it, in their order. A plan writes nothing. At most
// two plans run at a time, and another waits three seconds for its turn.
package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// IsTarget reports whether jobs delete this kind of target and [Planner.PlanDeletion] plans it.
func IsTarget(kind string) bool {
	return kind == control.KindUser || kind == control.KindGroup || kind == control.KindPlaceholder
}

// TargetOf returns the target that a job deletes. ok is false if jobs of its kind delete none of
// the application's rows.
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
	// plansAtOnce is the maximum number of parallel plans: runs and leases need the connections.
	plansAtOnce = 2
	// planWait is how long a plan waits for earlier ones.
	planWait = 3 * time.Second
)

// Planner makes plans. Any goroutine may call it.
type Planner struct {
	runner *run.Runner
	jobs   *job.Pool
	// turns has an element for each running plan.
	turns chan struct{}
}

// New makes a Planner from the workers of an engine and the jobs of a pool.
func New(runner *run.Runner, jobs *job.Pool) *Planner {
	return &Planner{runner: runner, jobs: jobs, turns: make(chan struct{}, plansAtOnce)}
}

// acquire waits for a free turn, and returns the function that ends it.
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
			Text: fmt.Sprintf("%d plans are already running: try again in %s", plansAtOnce, planWait),
		}
	}
}

// PlanDeletion returns what deleting a user, group or placeholder user would do. It writes nothing.
// It reads the replicas if there are some, once they have caught up with all earlier writes.
//
// Errors: [*fault.InvalidArgumentError], [*fault.RefusedError], [*fault.NotConfiguredError],
// [fault.ErrUnreachable].
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
		// A replica may cancel a query, or lose its connection.
		made, err = p.plan(ctx, begun.Reset(primaries), steps)
	}
	if err == plan.ErrUnknownTarget { //nolint:errorlint // as planners return it
		err = plan.UnknownTarget(kind, id)
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}

// planners returns the planners of a target, in order.
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
			Field: "kind", Description: "must be user, group or placeholder",
		}
	}
	if id <= 0 {
		return nil, &fault.InvalidArgumentError{Field: "id", Description: "must be a positive number"}
	}
	var steps []run.Planner
	for _, name := range names {
		steps = append(steps, p.jobs.Kinds[name].Plan)
	}
	if kind != control.KindGroup {
		// The worker does the work after the jobs.
		for _, w := range p.runner.Workers {
			if w.Plan != nil {
				steps = append(steps, w.Plan)
			}
		}
	}
	return steps, nil
}

// plan runs the steps. An end of a job also ends the plan.
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

// estimate sets the estimate by the last measured speed with about as many rows. It sets no
// estimate without such a speed, or if not all rows were counted.
func (p *Planner) estimate(ctx context.Context, made *plan.Plan) {
	if !made.Exact {
		return
	}
	rows, took, err := p.runner.Main.History.Speed(ctx, made.Kind, made.Rows(), run.ReadLimits())
	if err == nil && rows > 0 {
		made.Estimate = time.Duration(float64(made.Rows()) / float64(rows) * float64(took))
	}
}
