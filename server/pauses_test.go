package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestPauseWorker_PausesUntilItIsResumed(t *testing.T) {
	f := start(t)
	paused := assert.Must(f.PauseWorker(t.Context(),
		&maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs", Ttl: durationpb.New(time.Hour)}))(t)
	p := paused.GetWorker().GetPaused()
	if p.GetReason() != "repairs" || p.GetBy() == "" || p.GetUntil().AsTime().Sub(p.GetSince().AsTime()).Round(time.Minute) != time.Hour {
		t.Errorf("got %v", p)
	}
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
	if info.GetMetadata()["worker"] != worker || info.GetMetadata()["paused"] != "*" || !strings.Contains(s.Message(), "resume --all") {
		t.Errorf("got %v, %v", err, info)
	}
	resumed, err := f.ResumeWorker(t.Context(), &maintenancev1.ResumeWorkerRequest{Worker: "*"})
	if err != nil || resumed.GetWorker().GetPaused() != nil || resumed.GetWorker().GetCondition() != maintenancev1.Condition_CONDITION_IDLE {
		t.Errorf("got %v, %v", resumed, err)
	}
	f.run(&maintenancev1.RunBatchRequest{})
}
