package server

import (
	"testing"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

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
