package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// run runs the worker and fails the test if that is not possible.
func (f *fixture) run(request *maintenancev1.RunBatchRequest) *maintenancev1.Run {
	f.t.Helper()
	request.Worker = worker
	return assert.Must(f.RunBatch(f.t.Context(), request))(f.t).GetRun()
}

func TestRunBatch_AnswersWithTheRunAtItsEnd(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO c (p_id) VALUES (1), (1), (2)`)
	f.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	run := f.run(&maintenancev1.RunBatchRequest{Database: "main"})
	assert.That(t, run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED &&
		run.GetTrigger() == maintenancev1.Trigger_TRIGGER_REQUEST, "got %v", run)
	assert.That(t, run.GetCounts()["deleted_rows"] == 2 && run.GetCounts()["processed_records"] == 1 &&
		run.GetLeaseEpoch() == 1, "got %v", run)
	assert.That(t, run.GetRequestedBy() != "" && run.GetReplica() != "" &&
		run.GetFinishedAt() != nil && len(run.GetTables()) == 1, "got %v", run)
	got := assert.Must(f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: run.GetId()}))(t)
	assert.Equal(t, got.GetRun().GetState(), run.GetState())
	// Its lease has expired.
	answer := assert.Must(f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{PageSize: 1, Worker: worker}))(t)
	assert.Require(t, len(answer.GetLeases()) == 1 && answer.GetNextPageToken() == "", "%v", answer)
	l := answer.GetLeases()[0]
	assert.That(t, l.GetName() == worker+"/main" && l.GetWorker() == worker &&
		l.GetDatabase() == "main" && l.GetEpoch() == 1 && l.GetExpired(), "got %v", l)
}

func TestRunBatch_TheSameRequestIDIsTheSameRun(t *testing.T) {
	f := start(t)
	id := strings.Repeat("ä", 128)
	first, second := f.run(&maintenancev1.RunBatchRequest{RequestId: id}), f.run(&maintenancev1.RunBatchRequest{RequestId: id})
	assert.Equal(t, first.GetId(), second.GetId(), "runs")
	_, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, RequestId: id, DryRun: true})
	info := detail[*errdetails.ErrorInfo](f.failure(err, codes.AlreadyExists, "REQUEST_ID_REUSED")).GetMetadata()
	assert.That(t, info["run_id"] == first.GetId() && info["worker"] == worker &&
		info["dry_run"] == "false", "got the metadata %v", info)
}

func TestRunBatch_SaysWhoHoldsTheLease(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ('loose_foreign_keys_cleanup/main', 'somebody', 7, now(), now(), now() + interval '30 s')`)
	s := f.failure(second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})), codes.Aborted, "LEASE_HELD")
	info, retry := detail[*errdetails.ErrorInfo](s).GetMetadata(), detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration()
	if _, err := time.Parse(time.RFC3339Nano, info["expires_at"]); err != nil || info["holder"] != "somebody" {
		t.Errorf("got the metadata %v", info)
	}
	assert.That(t, retry > 0 && retry <= 30*time.Second, "got the delay %s", retry)
	// One that never expires is shown until the last time there is.
	const last = "9999-12-31T23:59:59.999999999Z"
	f.exec(`DELETE FROM maintenance.leases`)
	f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at) VALUES
		('loose_foreign_keys_cleanup/main', 'somebody', 7, '-infinity', 'infinity', 'infinity'),
		('ghost_user_migration', 'somebody', 7, now(), now(), '294276-12-31')`)
	s = f.failure(second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})), codes.Aborted, "LEASE_HELD")
	if info := detail[*errdetails.ErrorInfo](s).GetMetadata(); info["expires_at"] != last {
		t.Errorf("got the metadata %v", info)
	}
	if retry := detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(); retry > 24*time.Hour || retry < 23*time.Hour {
		t.Errorf("got the delay %s", retry)
	}
	listed := assert.Must(f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{}))(t)
	assert.Require(t, len(listed.GetLeases()) == 2, "%v", listed)
	for _, l := range listed.GetLeases() {
		got := l.GetExpiresAt().AsTime().Format(time.RFC3339Nano)
		assert.That(t, got == last && !l.GetExpired(), "%s: expires %s", l.GetName(), got)
		assert.Must(protojson.Marshal(l))(t)
	}
	status := assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker}))(t)
	assert.Equal(t, status.GetWorkers()[0].GetCondition(), maintenancev1.Condition_CONDITION_LEASE_HELD_ELSEWHERE)
}

func TestRunBatch_SaysThatTheWorkerIsPausedOrNotConfigured(t *testing.T) {
	f := start(t)
	assert.Must(f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs"}))(t)
	_, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	info := detail[*errdetails.ErrorInfo](f.failure(err, codes.FailedPrecondition, "WORKER_PAUSED"))
	assert.That(t, info.GetMetadata()["reason"] == "repairs", "got %v", info)
	f.newService("")
	f.serve(clientOf(nil, nil), nil)
	assert.Must(f.ResumeWorker(t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: worker}))(t)
	_, err = f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	f.failure(err, codes.FailedPrecondition, "WORKER_NOT_CONFIGURED")
}

func TestCancelRun_StopsTheRun(t *testing.T) {
	f := start(t)
	f.slow(400)
	run := f.run(&maintenancev1.RunBatchRequest{Async: true})
	assert.Require(t, run.GetState() == maintenancev1.RunState_RUN_STATE_RUNNING, "got %v", run)
	assert.Must(f.CancelRun(t.Context(), &maintenancev1.CancelRunRequest{Id: run.GetId()}))(t)
	stream := assert.Must(f.WatchRun(t.Context(), &maintenancev1.WatchRunRequest{Id: run.GetId()}))(t)
	for sequence := int64(1); ; sequence++ {
		event := assert.Must(stream.Recv())(t)
		assert.Equal(t, event.GetSequence(), sequence, "sequence")
		if event.GetRun().GetState() == maintenancev1.RunState_RUN_STATE_CANCELLED {
			assert.That(t, strings.HasPrefix(event.GetRun().GetError(), "cancelled by bufconn, "),
				"the run does not say who cancelled it: %q", event.GetRun().GetError())
			break
		}
	}
	if _, err := stream.Recv(); err == nil || status.Code(err) != codes.Unknown && err.Error() != "EOF" {
		t.Errorf("got %v, want the end of the stream", err)
	}
}

func TestListRuns_PagesThroughThoseOfATime(t *testing.T) {
	f := start(t)
	var ids []string
	started := map[int]*timestamppb.Timestamp{}
	for i := range 5 {
		run := f.run(&maintenancev1.RunBatchRequest{})
		ids, started[i] = append([]string{run.GetId()}, ids...), run.GetStartedAt()
	}
	const done, failed = maintenancev1.RunState_RUN_STATE_SUCCEEDED, maintenancev1.RunState_RUN_STATE_FAILED
	for _, c := range []struct {
		request *maintenancev1.ListRunsRequest
		want    []string
	}{
		{&maintenancev1.ListRunsRequest{Worker: worker, State: done}, ids},
		{&maintenancev1.ListRunsRequest{State: failed}, nil},
		{&maintenancev1.ListRunsRequest{Since: started[1]}, ids[:4]},
		{&maintenancev1.ListRunsRequest{Until: started[1]}, ids[4:]},
		{&maintenancev1.ListRunsRequest{Since: started[1], Until: started[3]}, ids[2:4]},
		{&maintenancev1.ListRunsRequest{Since: started[1], Until: started[1]}, nil},
	} {
		c.request.PageSize = 2
		got := joined(entries(f, f.ListRuns, c.request, (*maintenancev1.ListRunsResponse).GetRuns), (*maintenancev1.Run).GetId)
		want := strings.Join(c.want, " ")
		assert.That(t, got == want, "%v: got %s, want %s", c.request, got, want)
	}
}

func TestGetStatus_TellsTheConditionAndBacklog(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	all, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{})
	if want := servicetest.Workers(); err != nil || len(all.GetWorkers()) != len(want) {
		t.Fatalf("got %v, %v, want %v", all, err, want)
	}
	answer := assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker}))(t)
	assert.Require(t, len(answer.GetWorkers()) == 1, "%v", answer)
	w := answer.GetWorkers()[0]
	if w.GetWorker() != worker || w.GetCondition() != maintenancev1.Condition_CONDITION_IDLE || w.GetSchedule() != "* * * * *" {
		t.Errorf("got %v", w)
	}
	assert.That(t, w.GetNextRunAt() != nil && w.GetBacklog().GetDue() == 1 &&
		w.GetBacklog().GetOldestAt() != nil && w.GetConditionDetail() != "", "got %v", w)
}

func TestPauseWorker_PausesUntilItIsResumed(t *testing.T) {
	f := start(t)
	paused := assert.Must(f.PauseWorker(t.Context(),
		&maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs", Ttl: durationpb.New(time.Hour)}))(t)
	p := paused.GetWorker().GetPaused()
	assert.That(t, p.GetReason() == "repairs" && p.GetBy() != "" &&
		p.GetUntil().AsTime().Sub(p.GetSince().AsTime()).Round(time.Minute) == time.Hour, "got %v", p)
	assert.Equal(t, paused.GetWorker().GetCondition(), maintenancev1.Condition_CONDITION_PAUSED, paused)
	for range 2 {
		resumed, err := f.ResumeWorker(t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: worker})
		assert.That(t, err == nil && resumed.GetWorker().GetPaused() == nil, "got %v, %v", resumed, err)
	}
}

func TestPauseWorker_SaysWhoHasPaused(t *testing.T) {
	f := start(t)
	for said, want := range map[string]string{
		"":                       "",
		"alice":                  "alice at ",
		" alice <a@b> ":          "alice <a@b> at ",
		strings.Repeat("a", 300): strings.Repeat("a", 100) + " at ",
		"  ":                     "",
	} {
		ctx := t.Context()
		if said != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, UserHeader, said)
		}
		paused := assert.Must(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs"}))(t)
		name, _, _ := strings.Cut(paused.GetWorker().GetPaused().GetBy(), "bufconn")
		assert.Equal(t, name, want, said)
	}
}

func TestPauseWorker_OfAllIsNamedInTheErrorsOfEach(t *testing.T) {
	f := start(t)
	paused, err := f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: "*", Reason: "incident"})
	if err != nil || paused.GetWorker().GetWorker() != "*" || paused.GetWorker().GetPaused().GetReason() != "incident" ||
		paused.GetWorker().GetCondition() != maintenancev1.Condition_CONDITION_PAUSED {
		t.Fatalf("got %v, %v", paused, err)
	}
	_, err = f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	s := f.failure(err, codes.FailedPrecondition, "WORKER_PAUSED")
	info, _ := s.Details()[0].(*errdetails.ErrorInfo)
	assert.That(t, info.GetMetadata()["worker"] == worker && info.GetMetadata()["paused"] == "*" &&
		strings.Contains(s.Message(), "resume --all"), "got %v, %v", err, info)
	resumed := assert.Must(f.ResumeWorker(t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: "*"}))(t)
	assert.That(t, resumed.GetWorker().GetPaused() == nil &&
		resumed.GetWorker().GetCondition() == maintenancev1.Condition_CONDITION_IDLE, "got %v", resumed)
	f.run(&maintenancev1.RunBatchRequest{})
}
