package server

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// queued puts jobs into the queue as River has them, in a state.
func (f *fixture) queued(n int, kind, state, args string) {
	f.t.Helper()
	f.exec(`INSERT INTO maintenance.river_job (kind, state, args, max_attempts, finalized_at)
		SELECT $2, $3::text::maintenance.river_job_state, $4::text::jsonb, 25,
		       CASE WHEN $3 IN ('completed', 'cancelled', 'discarded') THEN now() END
		FROM generate_series(1, $1)`, n, kind, state, args)
}

func TestListJobs_ShowsTheWholeJob(t *testing.T) {
	f := start(t)
	f.queued(1, "destroy_group", "retryable", `{"group_id": 12, "user_id": null}`)
	f.exec(`UPDATE maintenance.river_job SET attempt = 2, attempted_at = '2040-01-02', scheduled_at = '2040-01-03',
		metadata = '{"run_id": "r", "outcome": "failed"}',
		errors = ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 1, "error": "a database is unreachable", "trace": ""}'::jsonb]`)
	answer := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{}))(t)
	assert.Require(t, len(answer.GetJobs()) == 1, "%v", answer)
	j := answer.GetJobs()[0]
	if j.GetId() != 1 || j.GetKind() != "destroy_group" || j.GetState() != "retryable" || j.GetAttempt() != 2 || j.GetMaxAttempts() != 25 ||
		j.GetOutcome() != "failed" || j.GetRunId() != "r" || j.GetScheduledAt().AsTime().Day() != 3 || j.GetAttemptedAt().AsTime().Day() != 2 ||
		j.GetCreatedAt() == nil || j.GetFinalizedAt() != nil {
		t.Errorf("got %v", j)
	}
	args := j.GetArgs().AsMap()
	assert.That(t, args["group_id"] == 12.0 && args["user_id"] == nil && len(args) == 2, "args %v", args)
	if e := j.GetErrors(); len(e) != 1 || e[0].GetAttempt() != 1 || e[0].GetError() != "a database is unreachable" || e[0].GetAt().AsTime().Year() != 2040 {
		t.Errorf("errors %v", e)
	}
}

func TestListJobs_ArgumentsThatAreNoObjectHideNoJob(t *testing.T) {
	f := start(t)
	for _, args := range []string{`[]`, `5`, `null`, `{"user_id": 1}`} {
		f.queued(1, "delete_user", "completed", args)
	}
	answer := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{}))(t)
	assert.Require(t, len(answer.GetJobs()) == 4, "%v", answer)
	for i, want := range []int{1, 0, 0, 0} {
		if args := answer.GetJobs()[i].GetArgs().AsMap(); len(args) != want {
			t.Errorf("job %d: %v", answer.GetJobs()[i].GetId(), args)
		}
	}
}

func TestRetryJob_MakesItAvailableUnlessThereIsAnother(t *testing.T) {
	f := start(t)
	f.queued(1, "delete_user", "discarded", `{"user_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET attempt = 25`)
	answer := assert.Must(f.RetryJob(t.Context(), &maintenancev1.RetryJobRequest{Id: 1}))(t)
	assert.Equal(t, answer.GetJob().GetState(), "available")
	assert.Equal(t, answer.GetJob().GetMaxAttempts(), 26)
	f.exec(`TRUNCATE maintenance.river_job RESTART IDENTITY`)
	f.queued(1, "delete_user", "discarded", `{"user_id": 1}`)
	f.queued(1, "delete_user", "scheduled", `{"user_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET unique_key = '\x01', unique_states = B'11110101'`)
	s := f.failure(second(f.RetryJob(t.Context(), &maintenancev1.RetryJobRequest{Id: 1})), codes.FailedPrecondition, "DUPLICATE_JOB")
	assert.Contains(t, s.Message(), "job 2")
}

func TestGetJob_IsTheWholeJob(t *testing.T) {
	f := start(t)
	f.queued(2, "delete_user", "discarded", `{"user_id": 1}`)
	long := strings.Repeat("e", 4000)
	f.exec(`UPDATE maintenance.river_job
		SET errors = ARRAY[jsonb_build_object('at', '2040-01-01T00:00:00Z', 'attempt', 1, 'error', $1::text)]`, long)
	answer, err := f.GetJob(t.Context(), &maintenancev1.GetJobRequest{Id: 1})
	j := answer.GetJob()
	if err != nil || j.GetId() != 1 || j.GetState() != "discarded" ||
		j.GetJobState() != maintenancev1.JobState_JOB_STATE_DISCARDED || j.GetErrors()[0].GetError() != long {
		t.Errorf("got %v, %v", answer, err)
	}
}

func TestListJobs_PagesThroughThoseOfAStateAndATime(t *testing.T) {
	f := start(t)
	f.queued(2, "delete_user", "completed", `{"user_id": 1}`)
	f.queued(2, "destroy_group", "cancelled", `{"group_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET created_at = '2040-01-01'::timestamptz + id * interval '1 day'`)
	f.queued(1, "delete_user", "available", `{"user_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET created_at = '2040-01-01' WHERE id = 5`)
	day := func(n int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2040, 1, 1+n, 0, 0, 0, 0, time.UTC))
	}
	for want, r := range map[string]*maintenancev1.ListJobsRequest{
		"5 4 3 2 1": {},
		"5 2 1":     {Kind: "delete_user"},
		"4 3":       {JobState: maintenancev1.JobState_JOB_STATE_CANCELLED},
		"2 1":       {State: "completed"},
		"4 3 2":     {Since: day(2)},
		"5 1":       {Until: day(2)},
		"3 2":       {Since: day(2), Until: day(4)},
		"3":         {Kind: "destroy_group", Since: day(2), Until: day(4)},
		"":          {JobState: maintenancev1.JobState_JOB_STATE_COMPLETED, Since: day(3)},
	} {
		r.PageSize = 2
		assert.Equal(t, joined(entries(f, f.ListJobs, r, (*maintenancev1.ListJobsResponse).GetJobs), idOf), want, r)
	}
	answer, err := f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{Id: 2})
	if err != nil || len(answer.GetJobs()) != 1 || answer.GetJobs()[0].GetId() != 2 || answer.GetNextPageToken() != "" {
		t.Errorf("got %v, %v", answer, err)
	}
}

// idOf is the id of what has a number for it.
func idOf[E interface{ GetId() int64 }](e E) string { return strconv.FormatInt(e.GetId(), 10) }
