package service

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// IsTarget reports whether this is a kind of what jobs delete and [Service.PlanDeletion] plans.
func IsTarget(kind string) bool {
	return kind == repo.KindUser || kind == repo.KindGroup || kind == repo.KindPlaceholder
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
	case repo.DeleteUser{}.Kind():
		return repo.KindUser, args.User, true
	case repo.DestroyGroup{}.Kind():
		return repo.KindGroup, args.Group, true
	case repo.DeletePlaceholderUser{}.Kind():
		return repo.KindPlaceholder, args.Placeholder, true
	}
	return "", 0, false
}

const (
	// plansAtOnce is how many plans are made at a time: runs and leases need the connections.
	plansAtOnce = 2
	// planWait is how long a plan waits for those before it.
	planWait = 3 * time.Second
)

// acquirePlan waits until one more plan may be made, and returns what ends it.
func (s *Service) acquirePlan(ctx context.Context) (done func(), err error) {
	wait, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	select {
	case s.plans <- struct{}{}:
		return func() { <-s.plans }, nil
	case <-wait.Done():
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &run.RefusedError{
			Reason: "PLANS_BUSY", Retry: planWait,
			Text: fmt.Sprintf("%d plans are being made, as many as may be at once: try again in %s", plansAtOnce, planWait),
		}
	}
}

// PlanDeletion says what deleting a user, group or placeholder user would do. It writes nothing, and
// reads the replicas where there are some, once they have what was written until now.
//
// Errors: [*run.InvalidArgumentError], [*run.RefusedError], [*run.NotConfiguredError], [run.ErrUnreachable].
func (s *Service) PlanDeletion(ctx context.Context, kind string, id int64) (*run.Plan, error) {
	steps, err := s.planners(kind, id)
	if err != nil {
		return nil, err
	}
	done, err := s.acquirePlan(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	primaries := run.GitLabs(s.Databases)
	copies, replicas := make([]*repo.Database, len(primaries)), false
	for i, d := range primaries {
		copies[i] = d.ReadCopy(ctx)
		replicas = replicas || copies[i] != d
	}
	begun := run.NewPlan(kind, id, copies)
	p, err := s.plan(ctx, begun, steps)
	if err != nil && replicas && ctx.Err() == nil {
		// A replica may cancel what it is asked, or lose its connection.
		p, err = s.plan(ctx, begun.Reset(primaries), steps)
	}
	if err == run.ErrUnknownTarget { //nolint:errorlint // as planners return it
		err = unknownTarget(kind, id)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func unknownTarget(kind string, id int64) error {
	table := "users"
	if kind == repo.KindGroup {
		table = "namespaces, with the type Group"
	}
	return &run.RefusedError{
		Reason: "UNKNOWN_TARGET", What: run.ErrUnknownTarget,
		Text:     fmt.Sprintf("there is no %s %d: its id is that of %s", kind, id, table),
		Metadata: map[string]string{"kind": kind, "id": strconv.FormatInt(id, 10)},
	}
}

// planners are what would be done, in order.
func (s *Service) planners(kind string, id int64) ([]run.Planner, error) {
	var names []string
	switch kind {
	case repo.KindGroup:
		names = []string{repo.DestroyGroup{}.Kind()}
	case repo.KindPlaceholder:
		names = []string{repo.DeletePlaceholderUser{}.Kind(), repo.DeleteUser{}.Kind()}
	case repo.KindUser:
		names = []string{repo.DeleteUser{}.Kind()}
	default:
		return nil, &run.InvalidArgumentError{
			Field: "kind", Description: "is not user, group or placeholder",
		}
	}
	if id <= 0 {
		return nil, &run.InvalidArgumentError{Field: "id", Description: "is required: a number above 0"}
	}
	var steps []run.Planner
	for _, name := range names {
		steps = append(steps, s.Kinds[name].Plan)
	}
	if kind != repo.KindGroup {
		// After the jobs the rest is the worker's.
		for _, w := range s.Workers {
			if w.Plan != nil {
				steps = append(steps, w.Plan)
			}
		}
	}
	return steps, nil
}

// plan goes through the steps. What would end a job ends the plan, too.
func (s *Service) plan(ctx context.Context, p *run.Plan, steps []run.Planner) (*run.Plan, error) {
	x := s.Planning(ctx, p)
	for _, step := range steps {
		err := run.RecoverPanic(func() error { return step(ctx, x, p) })
		if err := p.AddRefusal(ctx, err); err != nil {
			return nil, err
		}
		if err != nil {
			break
		}
	}
	if err := p.AddRefusal(ctx, p.Check(ctx)); err != nil {
		return nil, err
	}
	names, err := p.Main().Names(ctx, p.Kind, []int64{p.ID}, run.ReadLimits())
	if err != nil {
		return nil, err
	}
	p.Name = names[p.ID]
	if err := p.Finish(); err != nil {
		return nil, err
	}
	s.estimate(ctx, p)
	return p, nil
}

// estimate is by the speed last measured with about as many rows; without one there is none, nor where
// not all rows were counted.
func (s *Service) estimate(ctx context.Context, p *run.Plan) {
	if !p.Exact {
		return
	}
	rows, took, err := s.Main.Speed(ctx, p.Kind, p.Rows(), run.ReadLimits())
	if err == nil && rows > 0 {
		p.Estimate = time.Duration(float64(p.Rows()) / float64(rows) * float64(took))
	}
}
