package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/caretaker-go/caretaker/access"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// tokensOf writes a file of tokens: each is called like its role, and its text is NAME-token. More are added as they are.
func tokensOf(t *testing.T, more string) string {
	t.Helper()
	content := ""
	for _, role := range access.Roles() {
		content += fmt.Sprintf("- {name: %s, sha256: %s, role: %s}\n", role, hashed(role.String()+"-token"), role)
	}
	content += fmt.Sprintf("- {name: late, sha256: %s, role: admin, expires: 2026-01-01}\n", hashed("late-token"))
	file := filepath.Join(t.TempDir(), "tokens.yml")
	assert.NoError(t, os.WriteFile(file, []byte(content+more), 0o600))
	return file
}

func hashed(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

// withTokens has a server take the tokens of tokensOf.
func withTokens(t *testing.T, more string) func(*Config) {
	t.Helper()
	known := keys(t, access.Config{TokensFile: tokensOf(t, more), Workers: servicetest.Workers()})
	return func(c *Config) { c.Access = known }
}

// as is a context with a token. "" stands for none.
func as(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// everyMethod are the RPCs of the API.
func everyMethod() (methods []protoreflect.MethodDescriptor) {
	all := maintenancev1.File_maintenance_v1_maintenance_proto.Services().ByName("MaintenanceService").Methods()
	for i := range all.Len() {
		methods = append(methods, all.Get(i))
	}
	return methods
}

func pathOf(method protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
}

// invoke calls an RPC, whatever it is, with a request of which these fields are set.
func invoke(ctx context.Context, conn *grpc.ClientConn, method protoreflect.MethodDescriptor, fields map[string]any) error {
	request := dynamicpb.NewMessage(method.Input())
	for name, value := range fields {
		if field := method.Input().Fields().ByName(protoreflect.Name(name)); field != nil {
			request.Set(field, protoreflect.ValueOf(value))
		}
	}
	answer := dynamicpb.NewMessage(method.Output())
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, pathOf(method), request, answer)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pathOf(method))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = stream.CloseSend()
	return stream.RecvMsg(answer)
}

func TestRoles_EveryRPCHasARowOrIsRefusedAndEveryRowAnRPC(t *testing.T) {
	f := start(t)
	rows := rules()
	for name, info := range f.server.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			path := "/" + name + "/" + method.Name
			r, known := rows[path]
			if name == healthv1.Health_ServiceDesc.ServiceName {
				continue
			}
			assert.That(t, known && r.role >= access.Viewer && r.role <= access.Admin, "%s: no role", path)
			looks := strings.HasPrefix(method.Name, "Get") || strings.HasPrefix(method.Name, "List") ||
				method.IsServerStream || method.Name == "PlanDeletion"
			assert.That(t, looks != r.changes, "%s: changes something: %t", path, r.changes)
			delete(rows, path)
		}
	}
	for path := range rows {
		t.Errorf("%s: there is no such RPC", path)
	}
	// Without credentials every client is an admin.
	for _, method := range everyMethod() {
		f.wantRole(string(method.Name()), invoke(as(t.Context(), "any"), f.conn, method, nil), access.Admin, access.Admin)
	}
	clear(f.server.rules)
	for _, method := range everyMethod() {
		f.failure(invoke(t.Context(), f.conn, method, nil), codes.PermissionDenied, "NO_ROLE_FOR_RPC")
	}
}

func TestRoles_AreThoseOfTheDocuments(t *testing.T) {
	content := assert.Must(os.ReadFile("../docs/guides/security.md"))(t)
	for _, method := range everyMethod() {
		r := rules()[pathOf(method)]
		role, audited := r.role.String(), ""
		if r.everything > 0 {
			role += " (" + r.everything.String() + " for `*`)"
		}
		if r.changes {
			audited = "yes "
		}
		if method.Name() == "RunBatch" {
			audited = "yes, except dry runs "
		}
		row := fmt.Sprintf("\n| `%s` | %s | %s|\n", method.Name(), role, audited)
		assert.That(t, strings.Contains(string(content), row), "docs/guides/security.md lacks the row%s", row)
	}
}

// wantRole fails the test unless a call is refused, or not, as a client with this role is.
func (f *fixture) wantRole(what string, err error, has, needed access.Role) {
	f.t.Helper()
	if has >= needed {
		if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.Unavailable {
			f.t.Errorf("%s: %v", what, err)
		}
		return
	}
	refused := f.failure(err, codes.PermissionDenied, "ROLE_TOO_LOW")
	assert.Equal(f.t, strings.Contains(refused.Message(), "auth.certificates"), (has == access.None), what, refused.Message())
	info := detail[*errdetails.ErrorInfo](refused).GetMetadata()
	assert.That(f.t, info["role"] == has.String() && info["needed"] == needed.String(),
		"%s: %v", what, info)
}

func TestRoles_EveryRPCByEveryToken(t *testing.T) {
	f := start(t, withTokens(t, ""))
	for _, method := range everyMethod() {
		needed := rules()[pathOf(method)]
		for token, problem := range map[string]string{"": "missing", "forged": "unknown", "late-token": "expired"} {
			s := f.failure(invoke(as(t.Context(), token), f.conn, method, nil), codes.Unauthenticated, "UNAUTHENTICATED")
			if info := detail[*errdetails.ErrorInfo](s); info.GetMetadata()["token"] != problem {
				t.Errorf("%s, %q: %v", method.Name(), token, info)
			}
			for _, name := range []string{"viewer", "operator", "late", "2f"} {
				assert.Lacks(t, s.Message(), name+" ")
			}
		}
		for _, role := range access.Roles() {
			ctx := as(t.Context(), role.String()+"-token")
			f.wantRole(fmt.Sprint(method.Name(), " by ", role), invoke(ctx, f.conn, method, nil), role, needed.role)
			if needed.everything > 0 {
				for _, all := range []string{"*", " *", "*\t"} {
					f.wantRole(fmt.Sprint(method.Name(), " all by ", role),
						invoke(ctx, f.conn, method, map[string]any{"worker": all, "reason": "r"}), role, needed.everything)
				}
			}
		}
	}
	f.health("")
}

func TestRoles_EveryRPCByEveryCertificate(t *testing.T) {
	serverCert, serverKey, _, serverPool := certificate(t, "server")
	_, _, foreign, _ := certificate(t, "admin")
	pairs, authorities := map[string]tls.Certificate{}, ""
	for _, name := range []string{"viewer", "operator", "admin", "guest"} {
		file, _, pair, _ := certificate(t, name)
		content := assert.Must(os.ReadFile(file))(t)
		pairs[name], authorities = pair, authorities+string(content)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	assert.NoError(t, os.WriteFile(ca, []byte(authorities), 0o600))
	roles := map[string]string{"viewer": "viewer", "operator": "operator", "admin": "admin"}
	protect := func(c *Config) {
		c.CertFile, c.KeyFile, c.ClientCAFile = serverCert, serverKey, ca
		c.Access = keys(t, access.Config{Certificates: roles})
	}
	f := startWith(t, definitions, clientOf(serverPool, &foreign), protect)
	for _, method := range everyMethod() {
		if err := invoke(t.Context(), f.conn, method, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("%s by a certificate of another authority: %v", method.Name(), err)
		}
	}
	for name, pair := range pairs {
		f.serve(clientOf(serverPool, &pair), []func(*Config){protect})
		var role access.Role
		_ = role.UnmarshalText([]byte(name))
		for _, method := range everyMethod() {
			f.wantRole(fmt.Sprint(method.Name(), " by ", name), invoke(t.Context(), f.conn, method, nil), role, rules()[pathOf(method)].role)
		}
	}
	// All these certificates are for localhost, too: the highest role of its names counts.
	roles["localhost"] = "operator"
	for name, want := range map[string]access.Role{"guest": access.Operator, "viewer": access.Operator, "admin": access.Admin} {
		pair := pairs[name]
		f.serve(clientOf(serverPool, &pair), []func(*Config){protect})
		_, err := f.SetFeatureFlag(t.Context(), &maintenancev1.SetFeatureFlagRequest{})
		f.wantRole("SetFeatureFlag by "+name, err, want, access.Admin)
	}
}

func TestRoles_AnOperatorOfSomeWorkersTouchesNoOther(t *testing.T) {
	const ghosts = "ghost_user_migration"
	const entry = "- {name: %s, sha256: %s, role: operator, workers: [%s]}\n"
	f := start(t, withTokens(t, fmt.Sprintf(entry, "bots", hashed("bots-token"), ghosts)+
		fmt.Sprintf(entry, "expirer", hashed("expirer-token"), "inactive_token_deletion")))
	mine, admin := as(t.Context(), "bots-token"), as(t.Context(), "admin-token")
	run := assert.Must(f.RunBatch(admin, &maintenancev1.RunBatchRequest{Worker: worker}))(t)
	f.queued(1, "delete_user", "discarded", `{"user_id": 1, "reason": "because"}`)
	f.queued(1, "destroy_group", "discarded", `{"group_id": 1}`)
	for what, err := range map[string]error{
		"run":       second(f.RunBatch(mine, &maintenancev1.RunBatchRequest{Worker: worker})),
		"dry run":   second(f.RunBatch(mine, &maintenancev1.RunBatchRequest{Worker: worker, DryRun: true})),
		"pause":     second(f.PauseWorker(mine, &maintenancev1.PauseWorkerRequest{Worker: " " + worker, Reason: "r"})),
		"resume":    second(f.ResumeWorker(mine, &maintenancev1.ResumeWorkerRequest{Worker: worker})),
		"cancel":    second(f.CancelRun(mine, &maintenancev1.CancelRunRequest{Id: run.GetRun().GetId()})),
		"retry":     second(f.RetryJob(mine, &maintenancev1.RetryJobRequest{Id: 1})),
		"retry 2":   second(f.RetryJob(mine, &maintenancev1.RetryJobRequest{Id: 2})),
		"cancel 2":  second(f.CancelJob(mine, &maintenancev1.CancelJobRequest{Id: 2, Reason: "r"})),
		"protect":   second(f.ProtectTarget(mine, &maintenancev1.ProtectTargetRequest{Kind: "user", Id: 1, Reason: "r"})),
		"no worker": second(f.RunBatch(mine, &maintenancev1.RunBatchRequest{})),
	} {
		s := f.failure(err, codes.PermissionDenied, "WORKER_NOT_ALLOWED")
		info := detail[*errdetails.ErrorInfo](s).GetMetadata()
		assert.That(t, info["workers"] == ghosts, "%s: %v", what, info)
	}
	f.failure(second(f.CancelRun(mine, &maintenancev1.CancelRunRequest{Id: "x"})), codes.NotFound, "UNKNOWN_RUN")
	f.failure(second(f.RetryJob(mine, &maintenancev1.RetryJobRequest{Id: 99})), codes.NotFound, "UNKNOWN_JOB")
	assert.Must(f.PauseWorker(mine, &maintenancev1.PauseWorkerRequest{Worker: ghosts, Reason: "r"}))(t)
	assert.Must(f.GetStatus(mine, &maintenancev1.GetStatusRequest{Worker: worker}))(t)
	// The operator of the tokens' deletion has its continuation.
	f.queued(1, "continue_inactive_token_deletion", "discarded", `{"pass_id": "1"}`)
	expirer := as(t.Context(), "expirer-token")
	assert.Must(f.RetryJob(expirer, &maintenancev1.RetryJobRequest{Id: 3}))(t)
	f.failure(second(f.RetryJob(expirer, &maintenancev1.RetryJobRequest{Id: 2})), codes.PermissionDenied, "WORKER_NOT_ALLOWED")
}

func TestRoles_TheNameOfTheTokenIsWhoAsked(t *testing.T) {
	f := start(t, withTokens(t, ""))
	ctx := metadata.AppendToOutgoingContext(as(t.Context(), "operator-token"), UserHeader, "somebody-else")
	run, err := f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker})
	assert.That(t, err == nil && strings.HasPrefix(run.GetRun().GetRequestedBy(), "operator at "), "got %v, %v", run, err)
	f.serve(insecure.NewCredentials(), []func(*Config){func(c *Config) { c.Access = keys(t, access.Config{Token: "only"}) }})
	f.failure(second(f.RunBatch(as(t.Context(), "onlyx"), &maintenancev1.RunBatchRequest{Worker: worker})), codes.Unauthenticated, "UNAUTHENTICATED")
	ctx = metadata.AppendToOutgoingContext(as(t.Context(), "only"), UserHeader, "alice")
	run, err = f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker})
	assert.That(t, err == nil && strings.HasPrefix(run.GetRun().GetRequestedBy(), "alice at "), "got %v, %v", run, err)
}

func TestRoles_WhoHasTheSharedTokenTakesNoNameOfOthers(t *testing.T) {
	file := tokensOf(t, "")
	f := start(t, func(c *Config) { c.Access = keys(t, access.Config{Token: "shared", TokensFile: file}) })
	shared := as(t.Context(), "shared")
	for says, want := range map[string]string{
		"operator":                   `shared token (unverified name "operator") at bufconn`,
		`viewer") at 10.0.0.1:1 (":`: `shared token (unverified name "viewer\") at 10.0.0.1:1 (\":") at bufconn`,
		"":                           "shared token at bufconn",
	} {
		ctx := shared
		if says != "" {
			ctx = metadata.AppendToOutgoingContext(shared, UserHeader, says)
		}
		paused := assert.Must(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "r"}))(t)
		assert.Equal(t, paused.GetWorker().GetPaused().GetBy(), want, says)
	}
	for _, line := range f.audited() {
		assert.That(t, strings.HasPrefix(line, "shared token"), "the audit has %s", line)
	}
}

func TestRoles_AreCheckedBeforeTheRequest(t *testing.T) {
	f := start(t, withTokens(t, ""))
	viewer := as(t.Context(), "viewer-token")
	for _, size := range []int{0, maxText + 1, 2 << 20} {
		request := &maintenancev1.PauseWorkerRequest{Reason: strings.Repeat("x", size)}
		f.failure(second(f.PauseWorker(t.Context(), request)), codes.Unauthenticated, "UNAUTHENTICATED")
		f.failure(second(f.PauseWorker(viewer, request)), codes.PermissionDenied, "ROLE_TOO_LOW")
	}
}

func TestRoles_AStreamEndsWhenItsTokenDoes(t *testing.T) {
	brief, leaver := "name: brief, sha256: "+hashed("brief-token"), "name: leaver, sha256: "+hashed("leaver-token")
	file := tokensOf(t, fmt.Sprintf("- {%s, role: viewer}\n- {%s, role: viewer}\n", brief, leaver))
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
	expires := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	changes := strings.NewReplacer(brief, brief+", expires: "+expires, leaver, "name: other, sha256: "+hashed("other-token"))
	assert.NoError(t, os.WriteFile(file, []byte(changes.Replace(string(content))), 0o600))
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
	run := f.run(&maintenancev1.RunBatchRequest{})
	assert.That(t, run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED, "got %v", run)
}
