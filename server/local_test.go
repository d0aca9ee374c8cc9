package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/access"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestCall_HasTheRolesTheLimitsAndTheAuditOfTheAPI(t *testing.T) {
	f := start(t, withTokens(t, ""))
	from := func(name string, role access.Role, workers ...string) access.Caller {
		return access.Caller{
			Client: access.Client{Name: name, Role: role, Workers: workers}, Address: "192.0.2.7:1234", Source: "page",
		}
	}
	pause := &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "repairs"}
	call := func(who access.Caller) error {
		return second(f.server.Call(t.Context(), who, pause, nil))
	}
	f.failure(call(from("vera", access.Viewer)), codes.PermissionDenied, "ROLE_TOO_LOW")
	f.failure(call(from("bob", access.Operator, "ghost_user_migration")), codes.PermissionDenied, "WORKER_NOT_ALLOWED")
	assert.NoError(t, call(from("ann", access.Operator)))
	f.violates(second(f.server.Call(t.Context(), from("ann", access.Operator),
		&maintenancev1.PauseWorkerRequest{Worker: worker, Reason: strings.Repeat("x", maxText+1)}, nil)), "reason")
	err := second(f.server.Call(t.Context(), from("ann", access.Admin), &healthv1.HealthCheckRequest{}, nil))
	assert.That(t, err != nil, "a method of another service was called")
	answer := assert.Must(f.ListAudit(as(t.Context(), "viewer-token"), &maintenancev1.ListAuditRequest{}))(t)
	var lines []string
	for _, e := range answer.GetEntries() {
		lines = append(lines, strings.Join([]string{e.GetBy(), e.GetAddress(), e.GetAction(), e.GetReason(), e.GetOutcome()}, "|"))
	}
	assert.Equal(t, strings.Join(lines, "\n"), strings.Join([]string{
		"ann|192.0.2.7:1234|PauseWorker|repairs source=page|OK",
		"bob|192.0.2.7:1234|PauseWorker|repairs source=page|PERMISSION_DENIED WORKER_NOT_ALLOWED",
		"vera|192.0.2.7:1234|PauseWorker|repairs source=page|PERMISSION_DENIED ROLE_TOO_LOW",
	}, "\n"))
	assert.That(t, strings.Contains(f.log.String(), `"source":"page"`), "the log does not have the source: %s", f.log)
}

func TestAcceptAbsent_AcceptsATableThatNoDatabaseHasAndNoOther(t *testing.T) {
	f := start(t)
	accept := func(children ...string) (*maintenancev1.AcceptAbsentResponse, error) {
		return f.AcceptAbsent(t.Context(), &maintenancev1.AcceptAbsentRequest{Children: children})
	}
	f.violates(second(accept()), "children")
	f.failure(second(accept("nothing")), codes.NotFound, "UNKNOWN_CHILD")
	f.failure(second(accept("c")), codes.FailedPrecondition, "CHILD_NOT_ABSENT")
	f.exec(`DROP TABLE c`)
	f.failure(second(accept("c", "nothing")), codes.NotFound, "UNKNOWN_CHILD")
	for _, before := range []bool{false, true} {
		done := assert.Must(accept("c"))(t).GetChildren()
		assert.That(t, len(done) == 1 && done[0].GetChild() == "c" && len(done[0].GetDefinitions()) == 1 && done[0].GetAcceptedBefore() == before, "got %v", done)
	}
	f.newService("")
	f.server.config.Service = f.service
	f.failure(second(f.server.Call(t.Context(), access.Caller{Client: access.Client{Role: access.Admin}},
		&maintenancev1.AcceptAbsentRequest{Children: []string{"c"}}, nil)),
		codes.FailedPrecondition, "WORKER_NOT_CONFIGURED")
}

func TestCall_SetsFieldsByTheirTexts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request proto.Message
		fields  map[string][]string
		want    proto.Message
	}{
		"lists, and no such field": {&maintenancev1.AckOutsideRequest{}, map[string][]string{"ids": {"1", "3"}, "other": {"x"}}, &maintenancev1.AckOutsideRequest{Ids: []int64{1, 3}}},
		"enums": {
			&maintenancev1.ListRecordsRequest{PageSize: 7},
			map[string][]string{"state": {"reused"}, "table": {""}},
			&maintenancev1.ListRecordsRequest{PageSize: 7, State: maintenancev1.RecordState_RECORD_STATE_REUSED},
		},
		"times":          {&maintenancev1.ListAuditRequest{}, map[string][]string{"since": {"2026-11-01T15:04:00Z"}}, &maintenancev1.ListAuditRequest{Since: timestamppb.New(time.Date(2026, 11, 1, 15, 4, 0, 0, time.UTC))}},
		"durations":      {&maintenancev1.PauseWorkerRequest{}, map[string][]string{"ttl": {"3600s"}}, &maintenancev1.PauseWorkerRequest{Ttl: durationpb.New(time.Hour)}},
		"a wrong number": {&maintenancev1.RetryJobRequest{}, map[string][]string{"id": {"x"}}, nil},
		"a wrong state":  {&maintenancev1.ListRecordsRequest{}, map[string][]string{"state": {"nothing"}}, nil},
		"no UTF-8":       {&maintenancev1.PauseWorkerRequest{}, map[string][]string{"reason": {"\xff"}}, nil},
	} {
		err := setFields(c.request, c.fields)
		assert.That(t, (err != nil) == (c.want == nil) && (err != nil || proto.Equal(c.request, c.want)), "%s: got %v, %v", name, c.request, err)
	}
}
