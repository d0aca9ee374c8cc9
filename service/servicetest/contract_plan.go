package servicetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// planned lets a run work on the candidates that a dry run has found, and on no others.
func (c *contract) planned() {
	c.begin(3)
	s := c.service(nil, "")
	dry := c.run(s, true)
	if dry.CandidatesDigest == "" {
		c.noCandidates(s, dry)
		return
	}
	if again := c.run(s, true); again.CandidatesDigest != dry.CandidatesDigest ||
		!slices.Equal(again.Candidates, dry.Candidates) {
		c.t.Errorf("nothing has changed, but the second dry run is %+v", again)
	}
	stored, err := s.Run(context.Background(), dry.ID)
	if err != nil || len(stored.Candidates) < 3 || !slices.Equal(stored.Candidates, dry.Candidates) {
		c.t.Errorf("stored run: %+v, %v; want %v", stored.Candidates, err, dry.Candidates)
	}
	c.otherPlan(s, strings.Repeat("0", 64), dry)
	r, err := s.RunBatch(context.Background(), run.Request{
		Worker: c.Worker, ExpectedDigest: dry.CandidatesDigest, Async: true,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	WantState(c.t, Ended(c.t, s, r.ID), control.RunSucceeded)
	if n := c.done(); n != c.n {
		c.t.Errorf("%d of %d items are done", n, c.n)
	}
	if c.Unseen || c.StayDue {
		return // the things are still there, with jobs now
	}
	c.otherPlan(s, dry.CandidatesDigest, c.run(s, true))
}

// otherPlan fails the test unless a run that expects this digest is refused, and finds what dry has.
func (c *contract) otherPlan(s *service.Service, expected string, dry run.Run) {
	c.t.Helper()
	before := c.rows()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: c.Worker, ExpectedDigest: expected})
	changed, ok := errors.AsType[*fault.RefusedError](err)
	if !ok || changed.Reason != fault.ReasonPlanChanged {
		c.t.Fatalf("got the run %+v and the error %v, want PLAN_CHANGED", r, err)
	}
	stored, err := s.Run(context.Background(), changed.Metadata["run_id"])
	WantState(c.t, stored, control.RunSkipped)
	if err != nil || stored.Reason != fault.ReasonPlanChanged || stored.DryRun ||
		stored.CandidatesDigest != dry.CandidatesDigest || !slices.Equal(stored.Candidates, dry.Candidates) {
		c.t.Errorf("stored run: %+v, %v; want the candidates of %+v", stored, err, dry)
	}
	for table, rows := range c.rows() {
		if rows != before[table] {
			c.t.Errorf("%s has changed", table)
		}
	}
	c.e.Want("main", `SELECT count(*) FROM maintenance.leases WHERE expires_at > clock_timestamp()`, "0")
}

// noCandidates: a worker without them refuses a digest.
func (c *contract) noCandidates(s *service.Service, dry run.Run) {
	c.t.Helper()
	_, err := s.RunBatch(context.Background(),
		run.Request{Worker: c.Worker, ExpectedDigest: strings.Repeat("0", 64)})
	if _, ok := errors.AsType[*fault.InvalidArgumentError](err); !ok || len(dry.Candidates) > 0 {
		c.t.Errorf("want an error and no candidates, got %v, %v", dry.Candidates, err)
	}
	if n := c.done(); n != 0 {
		c.t.Errorf("%d items are done, want 0", n)
	}
}

// RunPlanned runs a worker with the digest of a dry run. When the run stands before a gate of main
// something is done meanwhile. The run must succeed.
func RunPlanned(e *Estate, s *service.Service, worker string, meanwhile func()) run.Run {
	e.T.Helper()
	dry, err := s.RunBatch(context.Background(), run.Request{Worker: worker, DryRun: true})
	if err != nil || dry.CandidatesDigest == "" {
		e.T.Fatalf("%+v, %v", dry, err)
	}
	e.Shut("main", App)
	var r run.Run
	ended := make(chan error, 1)
	go func() {
		var err error
		r, err = s.RunBatch(context.Background(), run.Request{
			Worker: worker, ExpectedDigest: dry.CandidatesDigest,
		})
		ended <- err
	}()
	e.AtGate("main", App)
	meanwhile()
	e.Lift("main", App)
	if err := <-ended; err != nil {
		e.T.Fatal(err)
	}
	WantState(e.T, r, control.RunSucceeded)
	return r
}

// WantCandidates fails the test unless a dry run has found these: "kind id name action reason".
func WantCandidates(t *testing.T, r run.Run, want ...string) {
	t.Helper()
	var got []string
	for _, found := range r.Candidates {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d %s %s %s",
			found.Kind, found.ID, found.Name, found.Action, found.Reason)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("candidates\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
