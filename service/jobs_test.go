package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestJobs_KindThatThisVersionDoesNotKnowFailsAndWaits(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	s := e.service("", e.withQueue)
	e.insert(repo.Job{Args: unknownArgs{}})
	if n := e.work(s, "unknown"); n != 1 {
		t.Fatalf("%d jobs worked, want 1", n)
	}
	e.want("main", `SELECT metadata ->> 'outcome' FROM maintenance.river_job`, "failed")
	e.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, `this version of caretaker knows no kind "unknown"`)
}

func TestJobs_EveryKindCanBeWorked(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	if got, want := e.service("", e.withQueue).JobKinds(), slices.Sorted(slices.Values(repo.JobKinds())); !slices.Equal(got, want) {
		t.Errorf("works %v, of %v", got, want)
	}
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }

// Jobs of dead processes: an attempt that began longer ago than any lasts is over.
func TestRescueJobs_TriesAgainWhatADeadProcessHadAtWork(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "", "main")
	s := e.service("", e.withQueue)
	e.insert(placeholders(6)...)
	for id, c := range map[int64]struct {
		state, age string
		attempt    int
	}{
		1: {"running", "79 s", 1}, 2: {"running", "81 s", 1}, 3: {"running", "81 s", 4}, 4: {"running", "2 h", 25},
		5: {"running", "2 h", 4}, 6: {"retryable", "2 h", 1},
	} {
		e.exec("main", `UPDATE maintenance.river_job SET state = $2::text::maintenance.river_job_state, attempt = $4,
			attempted_at = now() - $3::text::interval WHERE id = $1`, id, c.state, c.age, c.attempt)
	}
	if err := s.RescueJobs(context.Background(), 80*time.Second); err != nil {
		t.Fatal(err)
	}
	e.want("main", `SELECT string_agg(state::text, ' ' ORDER BY id) FROM maintenance.river_job`,
		"running available available discarded available retryable")
	e.want("main", `SELECT string_agg(id || ' ' || (metadata ->> 'outcome'), ', ' ORDER BY id) FROM maintenance.river_job WHERE errors IS NOT NULL`,
		"2 failed, 3 failed, 4 discarded, 5 failed")
	e.want("main", `SELECT string_agg(DISTINCT metadata ->> 'reason', ', ') FROM maintenance.river_job`, "PROCESS_GONE")
	e.want("main", `SELECT finalized_at IS NOT NULL FROM maintenance.river_job WHERE id = 4`, "true")
	// A killed process is no failure of its jobs: they do not wait n⁴ seconds.
	e.want("main", `SELECT bool_and(scheduled_at <= now()) FROM maintenance.river_job WHERE id IN (2, 3, 5)`, "true")
	jobs, err := s.Jobs(context.Background(), service.JobFilter{State: "discarded", Limit: 1})
	if err != nil || len(jobs) != 1 || jobs[0].Errors[0].Attempt != 25 {
		t.Fatalf("got %+v, %v", jobs, err)
	}
}

func TestRescueJobs_WhatADeadProcessHadAtWorkIsToldInItsPlace(t *testing.T) {
	spans := tracing(t)
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701)
	log := &bytes.Buffer{}
	s := e.service("", e.withQueue, tracedLogTo(log))
	ctx, run := otel.Tracer("test").Start(t.Context(), "maintenance.run")
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	run.End()
	e.insert(repo.Job{Args: authorized(7), RunID: "a run", TraceParent: carrier["traceparent"]})
	e.exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 3, attempted_at = now() - interval '81 s' + interval '3 us'`)
	over := make(chan struct{})
	close(over)
	r := service.JobRequest{Kind: "delete_user", Attempt: 3, MaxAttempts: 25, Stopping: over}
	if err := e.sql["main"].QueryRow(t.Context(), `SELECT id, args, attempted_at FROM maintenance.river_job`).Scan(&r.ID, &r.Args, &r.AttemptedAt); err != nil {
		t.Fatal(err)
	}
	// What a process has begun before it was killed.
	if _, err := s.WorkJob(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	log.Reset()
	if err := s.RescueJobs(t.Context(), 80*time.Second); err != nil {
		t.Fatal(err)
	}
	jobs := named(spans, "maintenance.job")
	if len(jobs) != 2 {
		t.Fatalf("%d spans", len(jobs))
	}
	lost, told := jobs[0], jobs[1]
	if !told.SpanContext().Equal(lost.SpanContext()) || !told.StartTime().Equal(r.AttemptedAt) || told.EndTime().Sub(told.StartTime()) < 81*time.Second-time.Millisecond {
		t.Errorf("the span %+v from %s to %s is not that of the attempt, %+v", told.SpanContext(), told.StartTime(), told.EndTime(), lost.SpanContext())
	}
	if links := told.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != run.SpanContext().SpanID() || told.Status().Code.String() != "Error" {
		t.Errorf("links %v, status %+v", links, told.Status())
	}
	wantAttributes(t, told, map[string]string{
		"messaging.message.id": fmt.Sprint(r.ID), "messaging.system": "river", "maintenance.run_id": "a run", "maintenance.job.kind": "delete_user",
		"maintenance.user_id": "7", "maintenance.outcome": "failed", "maintenance.reason": "PROCESS_GONE", "error.type": "PROCESS_GONE",
	})
	trace := lost.SpanContext().TraceID().String()
	line := map[string]any{}
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"level": "ERROR", "kind": "delete_user", "job_id": float64(r.ID), "user_id": 7.0, "run_id": "a run", "attempt": 3.0, "outcome": "failed", "reason": "PROCESS_GONE", "trace_id": trace,
	} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v", key, line[key], want)
		}
	}
	e.want("main", `SELECT metadata ->> 'trace_id' FROM maintenance.river_job`, trace)
}
