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

func TestJobs_AreShownWhole(t *testing.T) {
	f := start(t)
	f.queued(1, "destroy_group", "retryable", `{"group_id": 12, "user_id": null}`)
	f.exec(`UPDATE maintenance.river_job SET attempt = 2, attempted_at = '2040-01-02', scheduled_at = '2040-01-03',
		metadata = '{"run_id": "r", "outcome": "failed"}',
		errors = ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 1, "error": "a database is unreachable", "trace": ""}'::jsonb]`)
	// Arguments that are no object hide no job.
	for _, args := range []string{`{"user_id": 1}`, `[]`, `5`, `null`} {
		f.queued(1, "delete_user", "discarded", args)
	}
	jobs := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{}))(t).GetJobs()
	assert.Require(t, len(jobs) == 5, "%v", jobs)
	for i, want := range []int{0, 0, 0, 1, 2} {
		assert.Equal(t, len(jobs[i].GetArgs().AsMap()), want, "arguments of", jobs[i])
	}
	j := jobs[4]
	assert.That(t, j.GetId() == 1 && j.GetKind() == "destroy_group" && j.GetState() == "retryable" &&
		j.GetAttempt() == 2 && j.GetMaxAttempts() == 25 && j.GetOutcome() == "failed" && j.GetRunId() == "r" &&
		j.GetScheduledAt().AsTime().Day() == 3 && j.GetAttemptedAt().AsTime().Day() == 2 &&
		j.GetCreatedAt() != nil && j.GetFinalizedAt() == nil, "got %v", j)
	args := j.GetArgs().AsMap()
	assert.That(t, args["group_id"] == 12.0 && args["user_id"] == nil && len(args) == 2, "args %v", args)
	e := j.GetErrors()
	assert.That(t, len(e) == 1 && e[0].GetAttempt() == 1 && e[0].GetError() == "a database is unreachable" &&
		e[0].GetAt().AsTime().Year() == 2040, "errors %v", e)

	long := strings.Repeat("e", 4000)
	f.exec(`UPDATE maintenance.river_job
		SET errors = ARRAY[jsonb_build_object('at', '2040-01-01T00:00:00Z', 'attempt', 1, 'error', $1::text)]`, long)
	one := assert.Must(f.GetJob(t.Context(), &maintenancev1.GetJobRequest{Id: 2}))(t).GetJob()
	assert.That(t, one.GetId() == 2 && one.GetState() == "discarded" &&
		one.GetJobState() == maintenancev1.JobState_JOB_STATE_DISCARDED && one.GetErrors()[0].GetError() == long, "got %v", one)
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

func TestListJobs_PagesThroughThoseOfAStateAndATime(t *testing.T) {
	f := start(t)
	f.queued(2, "delete_user", "completed", `{"user_id": 1}`)
	f.queued(2, "destroy_group", "cancelled", `{"group_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET created_at = '2040-01-01Z'::timestamptz + id * interval '1 day'`)
	f.queued(1, "delete_user", "available", `{"user_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET created_at = '2040-01-04 23:59:30Z' WHERE id = 5`) // its transaction started before that of job 4
	day := func(n int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2040, 1, 1+n, 0, 0, 0, 0, time.UTC))
	}
	for want, r := range map[string]*maintenancev1.ListJobsRequest{
		"5 4 3 2 1": {},
		"5 2 1":     {Kind: "delete_user"},
		"4 3":       {JobState: maintenancev1.JobState_JOB_STATE_CANCELLED},
		"2 1":       {State: "completed"},
		"5 4 3 2":   {Since: day(2)},
		"4":         {Since: day(4)},
		"1":         {Until: day(2)},
		"5 3 2":     {Since: day(2), Until: day(4)},
		"3":         {Kind: "destroy_group", Since: day(2), Until: day(4)},
		"":          {JobState: maintenancev1.JobState_JOB_STATE_COMPLETED, Since: day(3)},
	} {
		r.PageSize = 2
		assert.Equal(t, joined(entries(f, f.ListJobs, r, (*maintenancev1.ListJobsResponse).GetJobs), idOf), want, r)
	}
	answer := assert.Must(f.ListJobs(t.Context(), &maintenancev1.ListJobsRequest{Id: 2}))(t)
	assert.That(t, len(answer.GetJobs()) == 1 && answer.GetJobs()[0].GetId() == 2 &&
		answer.GetNextPageToken() == "", "got %v", answer)
}

// idOf is the id of what has a number for it.
func idOf[E interface{ GetId() int64 }](e E) string { return strconv.FormatInt(e.GetId(), 10) }

const aRun = "0190a1b2-0000-7000-8000-000000000001"

func TestOutside_IsListedByJobAndRunAndMarkedAsDone(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.outside_paths (run_id, job_id, kind, path)
		SELECT CASE WHEN i % 3 = 0 THEN '` + aRun + `'::uuid END, CASE WHEN i % 3 > 0 THEN 1 END, 'project_repository', '@hashed/' || i FROM generate_series(1, 9) i`)
	f.queued(1, "destroy_group", "completed", `{"group_id": 1}`)
	f.exec(`UPDATE maintenance.river_job SET metadata = '{"worked_ms": 61500}'`)
	done, err := f.AckOutside(t.Context(), &maintenancev1.AckOutsideRequest{Ids: []int64{4, 2, 9}})
	if p := done.GetPaths(); err != nil || len(p) != 3 || p[0].GetId() != 2 || p[0].GetDoneAt() == nil || p[0].GetDoneBy() == "" || p[0].GetJobId() != 1 ||
		p[2].GetRunId() != aRun || p[2].GetPath() != "@hashed/9" || p[2].GetKind() != "project_repository" || p[2].GetCreatedAt() == nil {
		t.Errorf("%v, %v", done, err)
	}
	again, err := f.AckOutside(t.Context(), &maintenancev1.AckOutsideRequest{Ids: []int64{2, 1}})
	if p := again.GetPaths(); err != nil || len(p) != 2 || !p[1].GetDoneAt().AsTime().Equal(done.GetPaths()[0].GetDoneAt().AsTime()) {
		t.Errorf("%v, %v", again, err)
	}
	for _, c := range []struct {
		request *maintenancev1.ListOutsideRequest
		want    string
	}{
		{&maintenancev1.ListOutsideRequest{}, "1 2 3 4 5 6 7 8 9"},
		{&maintenancev1.ListOutsideRequest{JobId: 1}, "1 2 4 5 7 8"},
		{&maintenancev1.ListOutsideRequest{JobId: 1, PendingOnly: true}, "5 7 8"},
		{&maintenancev1.ListOutsideRequest{RunId: aRun}, "3 6 9"},
		{&maintenancev1.ListOutsideRequest{PendingOnly: true}, "3 5 6 7 8"},
		{&maintenancev1.ListOutsideRequest{JobId: 77}, ""},
	} {
		c.request.PageSize = 2
		assert.Equal(t, joined(entries(f, f.ListOutside, c.request, (*maintenancev1.ListOutsideResponse).GetPaths), idOf), c.want, c.request)
	}
	job, err := f.GetJob(t.Context(), &maintenancev1.GetJobRequest{Id: 1})
	if o := job.GetJob().GetOutside(); err != nil || o.GetAll() != 6 || o.GetPending() != 3 || job.GetJob().GetDuration().AsDuration().Seconds() != 61.5 {
		t.Errorf("%v, %v", job, err)
	}
	audit := assert.Must(f.ListAudit(t.Context(), &maintenancev1.ListAuditRequest{PageSize: 10}))(t)
	assert.Contains(t, audit.GetEntries()[len(audit.GetEntries())-1].GetReason(), `ids="4 2 9"`)
}

func TestCancelJob_SaysWhatIsWrongAndLeavesWhatHasEnded(t *testing.T) {
	f := start(t)
	f.queued(1, "delete_user", "completed", `{"user_id": 1}`)
	ended, err := f.CancelJob(t.Context(), &maintenancev1.CancelJobRequest{Id: 1, Reason: "too late"})
	if j := ended.GetJob(); err != nil || j.GetJobState() != maintenancev1.JobState_JOB_STATE_COMPLETED || j.GetCancellation() != nil {
		t.Errorf("%v, %v", ended, err)
	}
	for i, kind := range []string{"delete_user", "destroy_group", "delete_placeholder_user", "continue_inactive_token_deletion"} {
		f.queued(1, kind, "available", `{"user_id": 1, "group_id": 2, "placeholder_user_id": 3, "pass_id": "x"}`)
		id := int64(2 + i)
		for _, reason := range []string{"mistaken", "twice"} {
			got, err := f.CancelJob(t.Context(), &maintenancev1.CancelJobRequest{Id: id, Reason: reason})
			j := got.GetJob()
			if err != nil || j.GetJobState() != maintenancev1.JobState_JOB_STATE_CANCELLED || j.GetOutcome() != "cancelled" || j.GetReason() != "CANCELLED" ||
				j.GetCancellation().GetReason() != "mistaken" || j.GetFinalizedAt() == nil {
				t.Errorf("%s: %v, %v", kind, got, err)
			}
		}
		retried := assert.Must(f.RetryJob(t.Context(), &maintenancev1.RetryJobRequest{Id: id}))(t)
		assert.Equal(t, retried.GetJob().GetJobState(), maintenancev1.JobState_JOB_STATE_AVAILABLE, kind)
		assert.Equal(t, retried.GetJob().GetOutcome(), "", kind)
	}
}
