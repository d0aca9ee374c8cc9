package server

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
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
	dry = assert.Must(run(&maintenancev1.RunBatchRequest{DryRun: true}))(t)
	done, err := run(&maintenancev1.RunBatchRequest{ExpectedDigest: dry.GetCandidatesDigest(), RequestId: "held"})
	if err != nil || done.GetRequestId() != "held" || done.GetCounts()["migrated_users"] != 1 || len(done.GetCandidates()) != 0 {
		t.Errorf("got %v, %v", done, err)
	}
}

func TestPlanDeletion_SaysWhatWouldGo(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE users (id bigint PRIMARY KEY, user_type smallint, state text NOT NULL, username text);
		CREATE TABLE ghost_user_migrations (id bigserial PRIMARY KEY, user_id bigint, hard_delete boolean NOT NULL DEFAULT false,
			consume_after timestamptz NOT NULL DEFAULT now(), created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz);
		CREATE TABLE things (id bigint PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE);
		INSERT INTO users VALUES (2, 5, 'active', 'ghost'), (3, 0, 'active', 'sam'), (4, 1, 'active', 'bot');
		INSERT INTO things SELECT i, 3 FROM generate_series(1, 7) i`)
	plan := func(kind string, id int64) (*maintenancev1.Plan, error) {
		answer, err := f.PlanDeletion(t.Context(), &maintenancev1.PlanDeletionRequest{Kind: kind, Id: id})
		return answer.GetPlan(), err
	}
	p, err := plan("user", 3)
	if err != nil || p.GetName() != "sam" || !p.GetExact() || p.GetRefused() != nil || len(p.GetTables()) != 2 ||
		p.GetTables()[0].GetTable() != "things" || p.GetTables()[0].GetDeleted() != 7 || p.GetEstimate() != nil || len(p.GetDigest()) != 64 {
		t.Errorf("got %v, %v", p, err)
	}
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, started_at, finished_at, counts)
		VALUES ('00000000-0000-7000-8000-000000000001', 'ghost_user_migration', 'schedule', 'succeeded', interval '1 minute', now() - interval '10 seconds', now(), '{"deleted_rows": 5}')`)
	if p, err := plan("user", 3); err != nil || p.GetEstimate().AsDuration() != 16*time.Second {
		t.Errorf("8 rows at one in 2 seconds: got %v, %v", p, err)
	}
	// A run of one row in two seconds says nothing about the time of 8 rows.
	f.exec(`UPDATE maintenance.runs SET counts = '{"deleted_rows": 1}'`)
	if p, err := plan("user", 3); err != nil || p.GetEstimate() != nil {
		t.Errorf("got %v, %v", p, err)
	}
	if p, err := plan("user", 4); err != nil || p.GetRefused().GetReason() != "INTERNAL_USER" {
		t.Errorf("got %v, %v", p, err)
	}
	_, err = plan("user", 5)
	f.failure(err, codes.NotFound, "UNKNOWN_TARGET")
	_, err = plan("group", 5)
	f.failure(err, codes.FailedPrecondition, "WORKER_NOT_CONFIGURED")
	s := f.failure(clientError(t.Context(), &service.PlansBusyError{}), codes.ResourceExhausted, "PLANS_BUSY")
	assert.Equal(t, detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(), 3*time.Second, "retry delay")
}
