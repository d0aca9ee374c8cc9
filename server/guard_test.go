package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/access"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRoles_AStreamEndsWhenItsTokenDoes(t *testing.T) {
	expires := time.Now().Add(4 * time.Second).UTC().Truncate(time.Second)
	entry := fmt.Sprintf("- {name: brief, sha256: %s, role: viewer, expires: %s}\n", hashed("brief-token"), expires.Format(time.RFC3339))
	entry += fmt.Sprintf("- {name: leaver, sha256: %s, role: viewer}\n", hashed("leaver-token"))
	file := tokensOf(t, entry)
	f := start(t, func(c *Config) { c.Access = keys(t, access.Config{TokensFile: file}) })
	// A run without a heartbeat to change it: nothing is sent after the first event.
	const id = "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4"
	f.exec(`INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl, lease_epoch) VALUES ('` + id + `', '` + worker + `', 'request', 'running', '1 hour', 1)`)
	watch := func(token string) grpc.ServerStreamingClient[maintenancev1.RunEvent] {
		stream, err := f.WatchRun(as(t.Context(), token), &maintenancev1.WatchRunRequest{Id: id})
		if err == nil {
			_, err = stream.Recv()
		}
		assert.NoError(t, err)
		return stream
	}
	streams := map[string]grpc.ServerStreamingClient[maintenancev1.RunEvent]{
		"expired": watch("brief-token"), "unknown": watch("leaver-token"),
	}
	stays := watch("viewer-token")
	reflected := assert.Must(reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(as(t.Context(), "leaver-token")))(t)
	ask := func() error {
		list := &reflectionv1.ServerReflectionRequest_ListServices{}
		if err := reflected.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list}); err != nil {
			return err
		}
		return second(reflected.Recv())
	}
	assert.NoError(t, ask())
	content, err := os.ReadFile(file)
	assert.NoError(t, err)
	assert.NoError(t,
		os.WriteFile(file, []byte(strings.ReplaceAll(string(content), "name: leaver, sha256: "+hashed("leaver-token"), "name: other, sha256: "+hashed("other-token"))), 0o600))
	for problem, stream := range streams {
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		info := detail[*errdetails.ErrorInfo](f.failure(err, codes.Unauthenticated, "UNAUTHENTICATED"))
		assert.Equal(t, info.GetMetadata()["token"], problem, err)
	}
	if err := ask(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection goes on: %v", err)
	}
	f.exec(`UPDATE maintenance.runs SET state = 'succeeded', finished_at = now()`)
	for err = nil; err == nil; {
		_, err = stays.Recv()
	}
	assert.That(t, errors.Is(err, io.EOF), "the stream of another token: %v", err)
}

func TestRoles_ReflectionWantsAViewerAndHealthNobody(t *testing.T) {
	f := start(t, withTokens(t, ""))
	for token, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "forged": codes.Unauthenticated, "late-token": codes.Unauthenticated, "viewer-token": codes.OK,
	} {
		stream, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(as(t.Context(), token))
		if err == nil {
			list := &reflectionv1.ServerReflectionRequest_ListServices{}
			_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list})
			_, err = stream.Recv()
		}
		assert.Equal(t, status.Code(err), want, "reflection with", token, err)
		health := healthv1.NewHealthClient(f.conn)
		answer := assert.Must(health.Check(as(t.Context(), token), &healthv1.HealthCheckRequest{}))(t)
		assert.Equal(t, answer.GetStatus(), healthv1.HealthCheckResponse_SERVING, token)
	}
}

func TestRoles_APanicInTheGuardEndsTheCallAlone(t *testing.T) {
	f := start(t)
	rates := f.server.rates
	f.server.rates = nil
	f.failure(second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})), codes.Internal, "INTERNAL")
	f.server.rates = rates
	if run := f.run(&maintenancev1.RunBatchRequest{}); run.GetState() != maintenancev1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("got %v", run)
	}
}
