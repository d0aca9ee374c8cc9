package server

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

func TestRunBatch_RefusesOtherCandidatesThanThoseOfTheDigest(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE users (id bigint PRIMARY KEY, user_type smallint, state text NOT NULL);
		CREATE TABLE ghost_user_migrations (id bigserial PRIMARY KEY, user_id bigint, hard_delete boolean NOT NULL DEFAULT false,
			consume_after timestamptz NOT NULL DEFAULT now(), created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz);
		INSERT INTO users VALUES (2, 5, 'active'), (3, 0, 'blocked');
		INSERT INTO ghost_user_migrations (user_id) VALUES (3), (4)`)
	run := func(request *maintenancev1.RunBatchRequest) (*maintenancev1.Run, error) {
		request.Worker = "ghost_user_migration"
		answer, err := f.RunBatch(t.Context(), request)
		return answer.GetRun(), err
	}
	for field, request := range map[string]*maintenancev1.RunBatchRequest{
		"dry run": {ExpectedDigest: strings.Repeat("0", 64), DryRun: true},
		"form":    {ExpectedDigest: strings.Repeat("A", 64)},
	} {
		_, err := run(request)
		t.Log(field)
		f.violates(err, "expected_digest")
	}
	_, err := f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, ExpectedDigest: strings.Repeat("0", 64)})
	f.violates(err, "expected_digest")
	dry, err := run(&maintenancev1.RunBatchRequest{DryRun: true})
	if err != nil || len(dry.GetCandidates()) != 2 || dry.GetCandidates()[0].GetId() != 3 || dry.GetCandidates()[1].GetReason() == "" {
		t.Fatalf("%v, %v", dry, err)
	}
	list, err := f.ListRuns(t.Context(), &maintenancev1.ListRunsRequest{})
	if err != nil || len(list.GetRuns()) != 1 || list.GetRuns()[0].GetCandidates() != nil {
		t.Errorf("a list has %v, %v", list, err)
	}
	f.exec(`DELETE FROM ghost_user_migrations WHERE user_id = 4`)
	for _, async := range []bool{false, true} {
		request := &maintenancev1.RunBatchRequest{ExpectedDigest: dry.GetCandidatesDigest(), Async: async, RequestId: fmt.Sprint(async)}
		_, err = run(request)
		f.failure(err, codes.FailedPrecondition, "PLAN_CHANGED")
		_, err = run(request)
		f.failure(err, codes.FailedPrecondition, "PLAN_CHANGED")
	}
	dry, err = run(&maintenancev1.RunBatchRequest{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	done, err := run(&maintenancev1.RunBatchRequest{ExpectedDigest: dry.GetCandidatesDigest()})
	if err != nil || done.GetCounts()["migrated_users"] != 1 || len(done.GetCandidates()) != 0 {
		t.Errorf("got %v, %v", done, err)
	}
}
