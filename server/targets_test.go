package server

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/run/fault"
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
	assert.That(t, err == nil && len(list.GetRuns()) == 1 && list.GetRuns()[0].GetCandidates() == nil,
		"a list has %v, %v", list, err)
	f.exec(`DELETE FROM ghost_user_migrations WHERE user_id = 4`)
	for _, async := range []bool{false, true} {
		request := &maintenancev1.RunBatchRequest{ExpectedDigest: dry.GetCandidatesDigest(), Async: async, RequestId: fmt.Sprint(async)}
		_, err = run(request)
		f.failure(err, codes.FailedPrecondition, "PLAN_CHANGED")
		_, err = run(request)
		f.failure(err, codes.FailedPrecondition, "PLAN_CHANGED")
	}
	dry = assert.Must(run(&maintenancev1.RunBatchRequest{DryRun: true}))(t)
	done := assert.Must(run(&maintenancev1.RunBatchRequest{ExpectedDigest: dry.GetCandidatesDigest(), RequestId: "held"}))(t)
	assert.That(t, done.GetRequestId() == "held" && done.GetCounts()["migrated_users"] == 1 &&
		len(done.GetCandidates()) == 0, "got %v", done)
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
	// A run of one row in two seconds reports nothing about the time of 8 rows.
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
	s := f.failure(clientError(t.Context(), &fault.RefusedError{Reason: "PLANS_BUSY", Retry: 3 * time.Second}), codes.ResourceExhausted, "PLANS_BUSY")
	assert.Equal(t, detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(), 3*time.Second, "retry delay")
}

// protect protects a target permanently.
func (f *fixture) protect(kind string, id int64) *maintenancev1.Protection {
	f.t.Helper()
	answer := assert.Must(f.ProtectTarget(f.t.Context(),
		&maintenancev1.ProtectTargetRequest{Kind: kind, Id: id, Reason: "evidence"}))(f.t)
	return answer.GetProtection()
}

// protections lists them all, page by page.
func (f *fixture) protections(kind string) string {
	f.t.Helper()
	request := &maintenancev1.ListProtectedRequest{Kind: kind, PageSize: 2}
	return joined(entries(f, f.ListProtected, request, (*maintenancev1.ListProtectedResponse).GetProtections), func(p *maintenancev1.Protection) string {
		return fmt.Sprint(p.GetKind(), " ", p.GetId())
	})
}

func TestProtectTarget_HoldsUntilItIsUnprotectedOrItsTimeIsOver(t *testing.T) {
	f := start(t)
	p := f.protect("user", 7)
	assert.That(t, p.GetKind() == "user" && p.GetId() == 7 && p.GetReason() == "evidence" &&
		p.GetBy() != "" && p.GetSince() != nil && p.GetUntil() == nil, "got %v", p)
	for _, id := range []int64{30, 9, 1 << 40} {
		f.protect("group", id)
	}
	assert.Equal(t, f.protections(""), "group 9 group 30 group 1099511627776 user 7")
	assert.Equal(t, f.protections("user"), "user 7")
	shorter, err := f.ProtectTarget(t.Context(), &maintenancev1.ProtectTargetRequest{
		Kind: "group", Id: 30, Reason: "shorter", Ttl: durationpb.New(time.Second),
	})
	if p := shorter.GetProtection(); err != nil || p.GetReason() != "evidence" || p.GetUntil() != nil {
		t.Errorf("a protection for good was shortened: %v, %v", p, err)
	}
	assert.Must(f.UnprotectTarget(t.Context(), &maintenancev1.UnprotectTargetRequest{Kind: "group", Id: 9}))(t)
	again, err := f.ProtectTarget(t.Context(), &maintenancev1.ProtectTargetRequest{
		Kind: "group", Id: 9, Reason: "for a while", Ttl: durationpb.New(time.Hour),
	})
	if p := again.GetProtection(); err != nil || p.GetReason() != "for a while" ||
		p.GetUntil().AsTime().Sub(p.GetSince().AsTime()).Round(time.Minute) != time.Hour {
		t.Errorf("got %v, %v", again, err)
	}
	f.exec(`UPDATE maintenance.protected_targets SET until = clock_timestamp() WHERE id = 9`)
	ended := assert.Must(f.UnprotectTarget(t.Context(), &maintenancev1.UnprotectTargetRequest{Kind: "group", Id: 30}))(t)
	assert.Equal(t, ended.GetProtection().GetId(), 30)
	assert.Equal(t, ended.GetProtection().GetReason(), "evidence")
	assert.Equal(t, f.protections(""), "group 1099511627776 user 7")
	for _, id := range []int64{9, 30, 7} {
		_, err := f.UnprotectTarget(t.Context(), &maintenancev1.UnprotectTargetRequest{Kind: "group", Id: id})
		f.failure(err, codes.NotFound, "UNKNOWN_PROTECTION")
	}
}

func TestProtectTarget_IsTooLateOnceTheDeletionHasBegun(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE users (id bigint PRIMARY KEY)`)
	f.exec(`CREATE TABLE namespaces (id bigint PRIMARY KEY, parent_id bigint, type text DEFAULT 'Group', owner_id bigint)`)
	f.exec(`INSERT INTO users VALUES (7); INSERT INTO namespaces VALUES (1, NULL), (2, 1), (3, 2), (4, 3)`)
	f.exec(`INSERT INTO maintenance.user_removals (user_id, reason) VALUES (7, 'x')`)
	f.exec(`INSERT INTO maintenance.group_removals (group_id) VALUES (2)`)
	for kind, ids := range map[string][]int64{"user": {7}, "group": {2, 3, 4}} {
		for _, id := range ids {
			_, err := f.ProtectTarget(t.Context(),
				&maintenancev1.ProtectTargetRequest{Kind: kind, Id: id, Reason: "too late"})
			s := f.failure(err, codes.FailedPrecondition, "DELETION_BEGUN")
			assert.Contains(t, s.Message(), fmt.Sprint(kind, " ", id))
		}
	}
	f.protect("group", 1)
	f.protect("user", 8)
	assert.Equal(t, f.protections(""), "group 1 user 8")
}

func TestProtectTarget_WaitsForWhoeverDecidesAboutTheTarget(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE namespaces (id bigint PRIMARY KEY, parent_id bigint, type text DEFAULT 'Group', owner_id bigint)`)
	f.exec(`INSERT INTO namespaces VALUES (1, NULL), (2, 1)`)
	f.exec(`BEGIN`)
	f.exec(`SELECT FROM namespaces WHERE id = 1 FOR NO KEY UPDATE`)
	answer := make(chan error, 1)
	go func() {
		_, err := f.ProtectTarget(t.Context(),
			&maintenancev1.ProtectTargetRequest{Kind: "group", Id: 2, Reason: "too late"})
		answer <- err
	}()
	f.eventually("the protection to wait", func() bool {
		var waits bool
		err := f.sql.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			OR NOT granted AND locktype = 'transactionid')`).Scan(&waits)
		return err == nil && waits
	})
	f.exec(`INSERT INTO maintenance.group_removals (group_id) VALUES (1)`)
	f.exec(`COMMIT`)
	f.failure(<-answer, codes.FailedPrecondition, "DELETION_BEGUN")
	assert.Equal(t, f.protections(""), "", "protected all the same")
}
