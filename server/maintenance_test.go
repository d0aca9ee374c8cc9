package server

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// run runs the worker and fails the test if that is not possible.
func (f *fixture) run(request *maintenancev1.RunBatchRequest) *maintenancev1.Run {
	f.t.Helper()
	request.Worker = worker
	answer, err := f.RunBatch(f.t.Context(), request)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer.GetRun()
}

func TestRunBatch_AnswersWithTheRunAtItsEnd(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO c (p_id) VALUES (1), (1), (2)`)
	f.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	run := f.run(&maintenancev1.RunBatchRequest{Database: "main"})
	if run.GetState() != maintenancev1.RunState_RUN_STATE_SUCCEEDED || run.GetTrigger() != maintenancev1.Trigger_TRIGGER_REQUEST {
		t.Errorf("got %v", run)
	}
	if run.GetCounts()["deleted_rows"] != 2 || run.GetCounts()["processed_records"] != 1 || run.GetLeaseEpoch() != 1 {
		t.Errorf("got %v", run)
	}
	if run.GetRequestedBy() == "" || run.GetReplica() == "" || run.GetFinishedAt() == nil || len(run.GetTables()) != 1 {
		t.Errorf("got %v", run)
	}
	got, err := f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: run.GetId()})
	if err != nil || got.GetRun().GetState() != run.GetState() {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestRunBatch_TheSameRequestIDIsTheSameRun(t *testing.T) {
	f := start(t)
	first := f.run(&maintenancev1.RunBatchRequest{RequestId: strings.Repeat("ä", 128)})
	second := f.run(&maintenancev1.RunBatchRequest{RequestId: strings.Repeat("ä", 128)})
	if first.GetId() != second.GetId() {
		t.Errorf("got runs %s and %s", first.GetId(), second.GetId())
	}
}

func TestRunBatch_RefusesBadRequests(t *testing.T) {
	f := start(t)
	call := func(r *maintenancev1.RunBatchRequest) error {
		_, err := f.RunBatch(t.Context(), r)
		return err
	}
	f.violates(call(&maintenancev1.RunBatchRequest{}), "worker")
	f.violates(call(&maintenancev1.RunBatchRequest{Worker: worker, RequestId: strings.Repeat("a", 129)}), "request_id")
	f.violates(call(&maintenancev1.RunBatchRequest{Worker: worker, RequestId: "a\x00b"}), "request_id")
	f.violates(call(&maintenancev1.RunBatchRequest{Worker: worker, Database: "a\nb"}), "database")
	f.failure(call(&maintenancev1.RunBatchRequest{Worker: "nobody"}), codes.NotFound, "UNKNOWN_WORKER")
	f.failure(call(&maintenancev1.RunBatchRequest{Worker: worker, Database: "nowhere"}), codes.NotFound, "UNKNOWN_DATABASE")
}

func TestRunBatch_SaysWhoHoldsTheLease(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ('loose_foreign_keys_cleanup/main', 'somebody', 7, now(), now(), now() + interval '30 s')`)
	_, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	s := f.failure(err, codes.Aborted, "LEASE_HELD")
	info, retry := detail[*errdetails.ErrorInfo](s).GetMetadata(), detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration()
	if _, err := time.Parse(time.RFC3339Nano, info["expires_at"]); err != nil || info["holder"] != "somebody" {
		t.Errorf("got the metadata %v", info)
	}
	if retry <= 0 || retry > 30*time.Second {
		t.Errorf("got the delay %s", retry)
	}
}

func TestLeases_OneThatNeverExpiresIsShownUntilTheLastTimeThereIs(t *testing.T) {
	const last = "9999-12-31T23:59:59.999999999Z"
	f := start(t)
	f.exec(`INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at) VALUES
		('loose_foreign_keys_cleanup/main', 'somebody', 7, '-infinity', 'infinity', 'infinity'),
		('ghost_user_migration', 'somebody', 7, now(), now(), '294276-12-31')`)
	_, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	s := f.failure(err, codes.Aborted, "LEASE_HELD")
	if info := detail[*errdetails.ErrorInfo](s).GetMetadata(); info["expires_at"] != last {
		t.Errorf("got the metadata %v", info)
	}
	if retry := detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(); retry > 24*time.Hour || retry < 23*time.Hour {
		t.Errorf("got the delay %s", retry)
	}
	listed, err := f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{})
	if err != nil || len(listed.GetLeases()) != 2 {
		t.Fatal(listed, err)
	}
	for _, l := range listed.GetLeases() {
		if got := l.GetExpiresAt().AsTime().Format(time.RFC3339Nano); got != last || l.GetExpired() {
			t.Errorf("%s: expires %s", l.GetName(), got)
		}
		if _, err := protojson.Marshal(l); err != nil {
			t.Error(err)
		}
	}
	status, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker})
	if err != nil || status.GetWorkers()[0].GetCondition() != maintenancev1.Condition_CONDITION_LEASE_HELD_ELSEWHERE {
		t.Error(status, err)
	}
}

func TestRunBatch_SaysThatTheWorkerIsPausedOrNotConfigured(t *testing.T) {
	f := start(t)
	_, err := f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	if info := detail[*errdetails.ErrorInfo](f.failure(err, codes.FailedPrecondition, "WORKER_PAUSED")); info.GetMetadata()["reason"] != "repairs" {
		t.Errorf("got %v", info)
	}
	f.newService("")
	f.serve(clientOf(nil, nil), nil)
	if _, err = f.ResumeWorker(t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: worker}); err != nil {
		t.Fatal(err)
	}
	_, err = f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})
	f.failure(err, codes.FailedPrecondition, "WORKER_NOT_CONFIGURED")
}

func TestRunBatch_GoesOnWithoutItsCaller(t *testing.T) {
	f := start(t)
	f.slow(40)
	ctx, leave := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() {
		_, err := f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker})
		called <- err
	}()
	f.eventually("the run begins", func() bool { return f.count(`SELECT count(*) FROM maintenance.runs`) == 1 })
	leave()
	if err := <-called; status.Code(err) != codes.Canceled {
		t.Fatalf("got %v", err)
	}
	var run *maintenancev1.Run
	f.eventually("the run ends", func() bool {
		list, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{})
		if err != nil || len(list.GetRuns()) != 1 {
			t.Fatalf("got %v, %v", list, err)
		}
		run = list.GetRuns()[0]
		return run.GetState() != maintenancev1.RunState_RUN_STATE_RUNNING
	})
	if run.GetState() != maintenancev1.RunState_RUN_STATE_SUCCEEDED || run.GetCounts()["deleted_rows"] != 40 {
		t.Errorf("got %v", run)
	}
}

func TestCancelRun_StopsTheRun(t *testing.T) {
	f := start(t)
	f.slow(400)
	run := f.run(&maintenancev1.RunBatchRequest{Async: true})
	if run.GetState() != maintenancev1.RunState_RUN_STATE_RUNNING {
		t.Fatalf("got %v", run)
	}
	if _, err := f.CancelRun(t.Context(), &maintenancev1.CancelRunRequest{Id: run.GetId()}); err != nil {
		t.Fatal(err)
	}
	stream, err := f.WatchRun(t.Context(), &maintenancev1.WatchRunRequest{Id: run.GetId()})
	if err != nil {
		t.Fatal(err)
	}
	for sequence := int64(1); ; sequence++ {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetSequence() != sequence {
			t.Errorf("got the sequence %d, want %d", event.GetSequence(), sequence)
		}
		if event.GetRun().GetState() == maintenancev1.RunState_RUN_STATE_CANCELLED {
			if !strings.HasPrefix(event.GetRun().GetError(), "cancelled by bufconn, ") {
				t.Errorf("the run does not say who cancelled it: %q", event.GetRun().GetError())
			}
			break
		}
	}
	if _, err := stream.Recv(); err == nil || status.Code(err) != codes.Unknown && err.Error() != "EOF" {
		t.Errorf("got %v, want the end of the stream", err)
	}
}

func TestRuns_UnknownOnesAreNotFound(t *testing.T) {
	f := start(t)
	for _, id := range []string{"nope", "01a1fb95-115b-7cb0-aef9-11b7f5ce21cd", "a\x00"} {
		_, err := f.GetRun(t.Context(), &maintenancev1.GetRunRequest{Id: id})
		f.failure(err, codes.NotFound, "UNKNOWN_RUN")
		_, err = f.CancelRun(t.Context(), &maintenancev1.CancelRunRequest{Id: id})
		f.failure(err, codes.NotFound, "UNKNOWN_RUN")
		stream, err := f.WatchRun(t.Context(), &maintenancev1.WatchRunRequest{Id: id})
		if err == nil {
			_, err = stream.Recv()
		}
		f.failure(err, codes.NotFound, "UNKNOWN_RUN")
	}
	_, err := f.GetRun(t.Context(), &maintenancev1.GetRunRequest{})
	f.violates(err, "id")
}

func TestListRuns_Pages(t *testing.T) {
	f := start(t)
	var want []string
	for range 5 {
		want = append([]string{f.run(&maintenancev1.RunBatchRequest{}).GetId()}, want...)
	}
	var got []string
	request := &maintenancev1.ListRunsRequest{Worker: worker, State: maintenancev1.RunState_RUN_STATE_SUCCEEDED, PageSize: 2}
	for pages := 0; ; pages++ {
		answer, err := f.ListRuns(t.Context(), request)
		if err != nil || pages > 3 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, r := range answer.GetRuns() {
			got = append(got, r.GetId())
		}
		request.PageToken = answer.GetNextPageToken()
		if request.GetPageToken() == "" {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
	list, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{State: maintenancev1.RunState_RUN_STATE_FAILED})
	if err != nil || len(list.GetRuns()) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
}

func TestListRuns_OfATime(t *testing.T) {
	f := start(t)
	var started []*timestamppb.Timestamp
	for range 3 {
		started = append(started, f.run(&maintenancev1.RunBatchRequest{}).GetStartedAt())
	}
	count := func(since, until *timestamppb.Timestamp) (n int) {
		list, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{Since: since, Until: until})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.GetRuns())
	}
	got := []int{
		count(nil, nil), count(started[1], nil), count(nil, started[1]),
		count(started[1], started[2]), count(started[2], started[1]),
	}
	if want := []int{3, 2, 1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	page := &maintenancev1.ListRunsRequest{Since: started[1], PageSize: 1}
	first, err := f.ListRuns(t.Context(), page)
	if err != nil {
		t.Fatal(err)
	}
	page.PageToken, page.Since = first.GetNextPageToken(), started[0]
	_, err = f.ListRuns(t.Context(), page)
	f.violates(err, "page_token")
}

func TestListRuns_RefusesBadRequests(t *testing.T) {
	f := start(t)
	f.run(&maintenancev1.RunBatchRequest{})
	f.run(&maintenancev1.RunBatchRequest{})
	first, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{PageSize: 1})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatalf("got %v, %v", first, err)
	}
	call := func(r *maintenancev1.ListRunsRequest) error {
		_, err := f.ListRuns(t.Context(), r)
		return err
	}
	f.violates(call(&maintenancev1.ListRunsRequest{PageSize: -1}), "page_size")
	f.violates(call(&maintenancev1.ListRunsRequest{PageSize: math.MinInt32}), "page_size")
	f.violates(call(&maintenancev1.ListRunsRequest{PageToken: "x"}), "page_token")
	f.violates(call(&maintenancev1.ListRunsRequest{State: 99}), "state")
	f.violates(call(&maintenancev1.ListRunsRequest{Worker: worker, PageToken: first.GetNextPageToken()}), "page_token")
	f.failure(call(&maintenancev1.ListRunsRequest{Worker: "nobody"}), codes.NotFound, "UNKNOWN_WORKER")
	_, err = f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{PageToken: first.GetNextPageToken()})
	f.violates(err, "page_token")
}

func TestListLeases_ListsThem(t *testing.T) {
	f := start(t)
	f.run(&maintenancev1.RunBatchRequest{})
	answer, err := f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{PageSize: 1, Worker: worker})
	if err != nil || len(answer.GetLeases()) != 1 || answer.GetNextPageToken() != "" {
		t.Fatalf("got %v, %v", answer, err)
	}
	l := answer.GetLeases()[0]
	if l.GetName() != worker+"/main" || l.GetWorker() != worker || l.GetDatabase() != "main" || l.GetEpoch() != 1 || !l.GetExpired() {
		t.Errorf("got %v", l)
	}
	_, err = f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{Worker: "nobody"})
	f.failure(err, codes.NotFound, "UNKNOWN_WORKER")
	_, err = f.ListLeases(t.Context(), &maintenancev1.ListLeasesRequest{PageSize: -1})
	f.violates(err, "page_size")
}

func TestGetStatus_TellsTheConditionAndBacklog(t *testing.T) {
	f := start(t)
	f.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	all, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{})
	if want := servicetest.Workers(); err != nil || len(all.GetWorkers()) != len(want) {
		t.Fatalf("got %v, %v, want %v", all, err, want)
	}
	answer, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: worker})
	if err != nil || len(answer.GetWorkers()) != 1 {
		t.Fatalf("got %v, %v", answer, err)
	}
	w := answer.GetWorkers()[0]
	if w.GetWorker() != worker || w.GetCondition() != maintenancev1.Condition_CONDITION_IDLE || w.GetSchedule() != "* * * * *" {
		t.Errorf("got %v", w)
	}
	if w.GetNextRunAt() == nil || w.GetBacklog().GetDue() != 1 || w.GetBacklog().GetOldestAt() == nil || w.GetConditionDetail() == "" {
		t.Errorf("got %v", w)
	}
	_, err = f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: "nobody"})
	f.failure(err, codes.NotFound, "UNKNOWN_WORKER")
}
