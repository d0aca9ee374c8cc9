package job_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestJobs_EveryKindCanBeWorkedAndOneThatThisVersionDoesNotKnowFailsAndWaits(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "", "main")
	s := e.Service("", e.WithQueue)
	for _, args := range []repo.JobArgs{
		repo.ContinueInactiveTokenDeletion{}, repo.DeletePlaceholderUser{}, repo.DeleteUser{}, repo.DestroyGroup{},
	} {
		works := s.JobKinds()
		assert.That(t, slices.Contains(works, args.Kind()), "works %v, without %s", works, args.Kind())
	}
	e.Insert(repo.Job{Args: unknownArgs{}})
	if n := e.Work(s, "unknown"); n != 1 {
		t.Fatalf("%d jobs worked, want 1", n)
	}
	e.Want("main", `SELECT concat_ws(': ', metadata ->> 'outcome', errors[1] ->> 'error') FROM maintenance.river_job`,
		`failed: this version of caretaker knows no kind "unknown"`)
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }

func TestJobs_RescuedJobSaysWhy(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "", "main")
	s := e.Service("", e.WithQueue)
	for name, c := range map[string]struct{ change, outcome, reason string }{
		"tried again":                     {`state = 'retryable'`, "failed", "PROCESS_GONE"},
		"given up":                        {`state = 'discarded', finalized_at = now()`, "discarded", "PROCESS_GONE"},
		"at work again, and nobody knows": {`state = 'running'`, "failed", "PROCESS_GONE"},
		"done after all": {`state = 'completed', finalized_at = now(),
			metadata = metadata || '{"rescues_reported": 1, "outcome": "succeeded", "reason": ""}'`, "succeeded", ""},
	} {
		e.Exec("main", `TRUNCATE maintenance.river_job`)
		e.Insert(servicetest.Placeholders(1)...)
		e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 25, attempted_at = now(),
			metadata = metadata || '{"outcome": "failed", "reason": "KEPT_BY_TRIGGER"}'`)
		e.Rescue()
		e.Exec("main", `UPDATE maintenance.river_job SET `+c.change)
		jobs, err := s.Jobs(context.Background(), service.JobFilter{Limit: 1})
		assert.Require(t, err == nil && len(jobs) == 1, "got %+v, %v", jobs, err)
		j := jobs[0]
		assert.That(t, j.Outcome == c.outcome && j.Reason == c.reason, "%s: %q, %q, want %q, %q", name, j.Outcome, j.Reason, c.outcome, c.reason)
		assert.That(t, len(j.Errors) == 1 && j.Errors[0].Attempt == 25 && j.Errors[0].Error == repo.ProcessGoneText,
			"%s: errors %+v", name, j.Errors)
	}
}

func TestWorkJob_AttemptWhoseProcessHasDiedIsReportedByTheNext(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	log := &bytes.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.TracedLogTo(log))
	ctx, run := otel.Tracer("test").Start(t.Context(), "maintenance.run")
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	run.End()
	e.Insert(repo.Job{Args: servicetest.Authorized(7), RunID: "a run", TraceParent: carrier["traceparent"]})
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 3, attempted_at = now() - interval '81 s' + interval '3 us'`)
	over := make(chan struct{})
	close(over)
	r := service.JobRequest{
		Kind: "delete_user", Name: "the third", Attempt: 3, MaxAttempts: 25, Stopping: over,
		RunID: "a run", TraceParent: carrier["traceparent"],
	}
	assert.NoError(t, e.SQL["main"].QueryRow(t.Context(), `SELECT id, args, attempted_at FROM maintenance.river_job`).Scan(&r.ID, &r.Args, &r.AttemptedAt))
	// What a process has begun before it was killed.
	assert.Must(s.WorkJob(t.Context(), r))(t)
	log.Reset()
	next := r
	next.Name, next.Attempt = "the fourth", 4
	next.Lost = &service.LostAttempt{Name: r.Name, Began: r.AttemptedAt, RescuedAt: r.AttemptedAt.Add(2 * time.Minute)}
	assert.Must(s.WorkJob(t.Context(), next))(t)
	jobs := servicetest.Named(spans, "maintenance.job")
	assert.Require(t, len(jobs) == 3, "%d spans", len(jobs))
	lost, told := jobs[0], jobs[1]
	assert.That(t, jobs[2].SpanContext().TraceID() != lost.SpanContext().TraceID(), "the next attempt is in the same trace")
	if !told.SpanContext().Equal(lost.SpanContext()) || !told.StartTime().Equal(r.AttemptedAt) || !told.EndTime().Equal(next.Lost.RescuedAt) {
		t.Errorf("the span %+v from %s to %s is not that of the attempt, %+v", told.SpanContext(), told.StartTime(), told.EndTime(), lost.SpanContext())
	}
	links := told.Links()
	assert.That(t, len(links) == 1 && links[0].SpanContext.SpanID() == run.SpanContext().SpanID() && told.Status().Code.String() == "Error",
		"links %v, status %+v", links, told.Status())
	servicetest.WantAttributes(t, told, map[string]string{
		"messaging.message.id": fmt.Sprint(r.ID), "messaging.system": "river", "maintenance.run_id": "a run", "maintenance.job.kind": "delete_user",
		"maintenance.user_id": "7", "maintenance.outcome": "failed", "maintenance.reason": "PROCESS_GONE", "error.type": "PROCESS_GONE",
	})
	trace := lost.SpanContext().TraceID().String()
	line := map[string]any{}
	first, _, _ := bytes.Cut(log.Bytes(), []byte("\n"))
	assert.NoError(t, json.Unmarshal(first, &line))
	for key, want := range map[string]any{
		"level": "ERROR", "kind": "delete_user", "job_id": float64(r.ID), "user_id": 7.0, "run_id": "a run", "attempt": 3.0, "outcome": "failed", "reason": "PROCESS_GONE", "trace_id": trace,
	} {
		assert.That(t, line[key] == want, "%s is %v, want %v", key, line[key], want)
	}
}

func TestDeleteUser_TheLogOfAFailureHasNoWordsOfTriggers(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret of %', NEW.email; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	log := &bytes.Buffer{}
	if _, err := e.AttemptOf(e.Service("", e.WithQueue, servicetest.TracedLogTo(log)), servicetest.Authorized(7), nil); err == nil {
		t.Fatal("the trigger has refused nothing")
	}
	text := log.String()
	assert.That(t, !strings.Contains(text, "secret") && strings.Contains(text, "on main: P0001 raise_exception, table users"), "logged %s", text)
}
