package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

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
		return second(f.server.Call(t.Context(), who, maintenancev1.MaintenanceService_PauseWorker_FullMethodName, pause))
	}
	f.failure(call(from("vera", access.Viewer)), codes.PermissionDenied, "ROLE_TOO_LOW")
	f.failure(call(from("bob", access.Operator, "ghost_user_migration")), codes.PermissionDenied, "WORKER_NOT_ALLOWED")
	assert.NoError(t, call(from("ann", access.Operator)))
	f.violates(second(f.server.Call(t.Context(), from("ann", access.Operator), maintenancev1.MaintenanceService_PauseWorker_FullMethodName,
		&maintenancev1.PauseWorkerRequest{Worker: worker, Reason: strings.Repeat("x", maxText+1)})), "reason")
	err := second(f.server.Call(t.Context(), from("ann", access.Admin), "/grpc.health.v1.Health/Check", pause))
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
		maintenancev1.MaintenanceService_AcceptAbsent_FullMethodName, &maintenancev1.AcceptAbsentRequest{Children: []string{"c"}})),
		codes.FailedPrecondition, "WORKER_NOT_CONFIGURED")
}
