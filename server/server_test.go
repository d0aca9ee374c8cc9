package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func (f *fixture) health(name string) healthv1.HealthCheckResponse_ServingStatus {
	f.t.Helper()
	answer, err := healthv1.NewHealthClient(f.conn).Check(context.Background(), &healthv1.HealthCheckRequest{Service: name})
	if err != nil {
		f.t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestHealth_IsServedUntilTheServerDrains(t *testing.T) {
	f := start(t)
	for _, name := range []string{"", "maintenance.v1.MaintenanceService"} {
		assert.Equal(t, f.health(name), healthv1.HealthCheckResponse_SERVING, name)
	}
	f.server.Drain()
	for _, name := range []string{"", "maintenance.v1.MaintenanceService"} {
		assert.Equal(t, f.health(name), healthv1.HealthCheckResponse_NOT_SERVING, name)
	}
	if _, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}); err != nil {
		t.Errorf("a draining server answers: %v", err)
	}
}

func TestDatabaseDown_IsUnavailableWithoutTheDriversText(t *testing.T) {
	f, ctx := start(t, withTokens(t, "")), as(t.Context(), "operator-token")
	f.main.Close()
	for _, err := range []error{
		second(f.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker})),
		second(f.ListFeatureFlags(ctx, &maintenancev1.ListFeatureFlagsRequest{})),
		second(f.PauseWorker(ctx, &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: "outage"})),
	} {
		f.failure(err, codes.Unavailable, "DATABASE_UNREACHABLE")
	}
	// Audit entries that main does not take are in the log.
	assert.Contains(t, f.log.String(), `"msg":"audit entry not stored"`, `"by":"operator"`,
		`"action":"PauseWorker"`, `"reason":"outage"`, `"outcome":"UNAVAILABLE DATABASE_UNREACHABLE"`)
	answer := assert.Must(f.GetStatus(ctx, &maintenancev1.GetStatusRequest{}))(t)
	assert.Equal(t, answer.GetWorkers()[0].GetCondition(), maintenancev1.Condition_CONDITION_FAILING)
}

func TestErrors_UnexpectedOnesAndMissingTablesAreInTheLog(t *testing.T) {
	f := start(t)
	f.exec(`ALTER TABLE maintenance.feature_flags RENAME TO moved`)
	f.exec(`CREATE VIEW maintenance.feature_flags AS SELECT 'a'::text AS name, 1 / (random() * 0)::integer = 1 AS enabled`)
	f.failure(second(f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{})), codes.Internal, "INTERNAL")
	f.exec(`DROP VIEW maintenance.feature_flags`)
	_, err := f.ListFeatureFlags(t.Context(), &maintenancev1.ListFeatureFlagsRequest{})
	s := f.failure(err, codes.FailedPrecondition, "NOT_MIGRATED")
	if want := "database main is not migrated to this version: run `caretaker migrate`"; s.Message() != want {
		t.Errorf("got %q, want %q", s.Message(), want)
	}
	assert.Contains(t, f.log.String(), "22012", "42P01")
}

func TestRecovered_APanicEndsOneCall(t *testing.T) {
	f := start(t)
	_, err := f.server.unary()[2](t.Context(), nil, nil, func(context.Context, any) (any, error) { panic("broken") })
	s := status.Convert(clientError(t.Context(), err))
	assert.That(t, s.Code() == codes.Internal && !strings.Contains(s.Message(), "broken"), "got %v", s)
}

func TestStop_EndsStreamsAndRefusesRuns(t *testing.T) {
	f := start(t)
	f.slow(400)
	run := f.run(&maintenancev1.RunBatchRequest{Async: true})
	stream := assert.Must(f.WatchRun(t.Context(), &maintenancev1.WatchRunRequest{Id: run.GetId()}))(t)
	watch, err := healthv1.NewHealthClient(f.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	assert.NoError(t, err)
	for _, receive := range []func() error{
		func() error { _, err := stream.Recv(); return err }, func() error { _, err := watch.Recv(); return err },
	} {
		assert.NoError(t, receive())
	}
	f.server.Stop(t.Context())
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	f.failure(err, codes.Unavailable, "SERVER_STOPPING")
}

func TestShutdown_OfTheServiceRefusesRuns(t *testing.T) {
	f := start(t)
	assert.NoError(t, f.service.Shutdown(t.Context()))
	f.failure(second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})), codes.Unavailable, "SERVER_STOPPING")
}

func TestReflection_IsServedInBothVersions(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v1 := assert.Must(reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(ctx))(t)
	list := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
	assert.NoError(t, v1.Send(list))
	answer := assert.Must(v1.Recv())(t)
	assert.Contains(t, answer.String(), "maintenance.v1.MaintenanceService")
	alpha := assert.Must(reflectionv1alpha.NewServerReflectionClient(f.conn).ServerReflectionInfo(ctx))(t)
	//nolint:staticcheck // deprecated, and still what many clients speak
	assert.NoError(t,
		alpha.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}}))
	if answer, err := alpha.Recv(); err != nil || !strings.Contains(answer.String(), "grpc.health.v1.Health") {
		t.Errorf("got %v, %v", answer, err)
	}
}

func TestLog_HasOneLineACall(t *testing.T) {
	f := start(t)
	f.run(&maintenancev1.RunBatchRequest{RequestId: "mine"})
	lines := strings.Split(strings.TrimSpace(f.log.String()), "\n")
	assert.Require(t, len(lines) == 1, "got %d lines: %s", len(lines), f.log.String())
	line := map[string]any{}
	assert.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
	for key, want := range map[string]string{"grpc.method": "RunBatch", "grpc.code": "OK", "worker": worker, "request_id": "mine", "outcome": "succeeded"} {
		assert.Equal(t, line[key], any(want), key, lines[0])
	}
}

func TestLog_HasHealthChecksAndGetStatusAtDebugOnly(t *testing.T) {
	var debug servicetest.Buffer
	f := start(t, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&debug, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	f.health("")
	assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
	_, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{Worker: "nobody"})
	assert.That(t, err != nil, "an unknown worker has a status")
	devdb.Eventually(t, "all calls are logged", func() bool { return strings.Count(debug.String(), "\n") == 3 })
	for _, call := range []string{
		`"DEBUG".*"Check"`, `"DEBUG".*"GetStatus".*"grpc.code":"OK"`, `"INFO".*"GetStatus".*"grpc.code":"NotFound"`,
	} {
		assert.That(t, regexp.MustCompile(call).MatchString(debug.String()), "no %s in %s", call, &debug)
	}
}

// certificate makes a certificate for localhost that is its own authority, and writes it and its key.
func certificate(t *testing.T, name string) (certFile, keyFile string, pair tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	key := assert.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	keyDER, keyErr := x509.MarshalPKCS8PrivateKey(key)
	assert.NoError(t, errors.Join(err, keyErr))
	folder := t.TempDir()
	certFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	assert.NoError(t, errors.Join(err, os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, pair, pool
}

// clientOf is a client's side: plain without a pool, else TLS, with a certificate where there is one.
func clientOf(pool *x509.CertPool, pair *tls.Certificate) credentials.TransportCredentials {
	if pool == nil {
		return insecure.NewCredentials()
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: "localhost"}
	if pair != nil {
		config.Certificates = []tls.Certificate{*pair}
	}
	return credentials.NewTLS(config)
}

func TestTLS_ClientsShowTheirCertificate(t *testing.T) {
	serverCert, serverKey, _, serverPool := certificate(t, "server")
	clientCert, _, client, _ := certificate(t, "alice")
	protect := func(c *Config) { c.CertFile, c.KeyFile, c.ClientCAFile = serverCert, serverKey, clientCert }
	f := startWith(t, definitions, clientOf(serverPool, &client), protect)
	run := f.run(&maintenancev1.RunBatchRequest{})
	assert.That(t, strings.HasPrefix(run.GetRequestedBy(), "alice at "), "got %v", run)
	f.serve(clientOf(serverPool, nil), []func(*Config){protect})
	if _, err := f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: got %v", err)
	}
}

func TestNew_NamesFilesThatCannotBeUsed(t *testing.T) {
	cert, key, _, _ := certificate(t, "server")
	for want, config := range map[string]Config{
		"tls.cert_file":                      {CertFile: "none.pem", KeyFile: key},
		"tls.client_ca_file":                 {CertFile: cert, KeyFile: key, ClientCAFile: "none.pem"},
		key + " contains no PEM certificate": {CertFile: cert, KeyFile: key, ClientCAFile: key},
		"tls.cert_file, tls.key_file: tls":   {CertFile: key, KeyFile: cert},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestStop_LetsThoseWhoWatchARunHearOfItsEnd(t *testing.T) {
	f := start(t)
	f.slow(200)
	started := assert.Must(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, Async: true}))(t)
	stream := assert.Must(f.WatchRun(t.Context(), &maintenancev1.WatchRunRequest{Id: started.GetRun().GetId()}))(t)
	last, err := stream.Recv()
	assert.NoError(t, err)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
		defer cancel()
		_ = f.service.Shutdown(ctx)
		f.server.Stop(ctx)
	}()
	for err == nil {
		var event *maintenancev1.RunEvent
		if event, err = stream.Recv(); err == nil {
			last = event
		}
	}
	<-stopped
	if run := last.GetRun(); !errors.Is(err, io.EOF) || run.GetState() != maintenancev1.RunState_RUN_STATE_CANCELLED || run.GetReason() != "SHUTDOWN" {
		t.Errorf("the last that was heard is %v, %v", run, err)
	}
}

func TestReadOnlyMethods_AreAllCallsThatOnlyRead(t *testing.T) {
	changes := []string{
		"RunBatch", "CancelRun", "PauseWorker", "ResumeWorker", "RetryJob", "CancelJob", "AckOutside", "SetFeatureFlag",
		"ProtectTarget", "UnprotectTarget", "AcceptAbsent", "DecideRecords",
		// It only reads, but much, and no client polls it.
		"PlanDeletion",
	}
	methods := maintenancev1.File_maintenance_v1_maintenance_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		polled := slices.Contains(ReadOnlyMethods(), "maintenance.v1.MaintenanceService/"+name)
		assert.That(t, polled != slices.Contains(changes, name), "%s is polled: %t", name, polled)
	}
}

func TestClientError_OfAFailedCallItsSpanHasTheClass(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx           context.Context
		err           error
		class, reason string
	}{
		{t.Context(), fault.ErrUnreachable, "UNAVAILABLE", "DATABASE_UNREACHABLE"},
		{t.Context(), errors.New("unexpected"), "INTERNAL", "INTERNAL"},
		{t.Context(), fault.Unknown(fault.ErrUnknownRun, "run_id", "1", "not found"), "", "UNKNOWN_RUN"},
		{t.Context(), fmt.Errorf("table users on main: %w", dberr.ErrForbidden), "", "PRIVILEGE_MISSING"},
		{t.Context(), &dberr.Error{Database: "main", SQLState: "42P01"}, "", "NOT_MIGRATED"},
		{gone, context.Canceled, "", "CLIENT_GONE"},
	} {
		spans := tracetest.NewSpanRecorder()
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(c.ctx, "call")
		_ = clientError(ctx, c.err)
		span.End()
		said := attribute.NewSet(spans.Ended()[0].Attributes()...)
		class, _ := said.Value("error.type")
		reason, _ := said.Value("maintenance.reason")
		if class.AsString() != c.class || reason.AsString() != c.reason {
			t.Errorf("%v: error.type %q, reason %q", c.err, class.AsString(), reason.AsString())
		}
	}
}

func TestErrors_WhatIsNotUsedHereSaysSo(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t}
	s := &Server{rules: rules(), config: Config{Service: &service.Service{LooseForeignKeysOnly: true}}}
	var refused []string
	for method := range s.rules {
		if err := s.allowed(t.Context(), access.Client{Role: access.Admin}, method, nil); err != nil {
			refused = append(refused, path.Base(method))
			said := f.failure(clientError(t.Context(), err), codes.FailedPrecondition, "NOT_IN_USE")
			assert.Contains(t, said.Message(), "not available with `use: ", "set `use: gitlab` in the configuration, run `caretaker migrate`")
		}
	}
	slices.Sort(refused)
	assert.Equal(t, strings.Join(refused, " "), "AckOutside CancelJob GetJob ListJobs ListOutside ListProtected "+
		"PlanDeletion ProtectTarget RetryJob UnprotectTarget", "calls that are not in use")
}

func TestGRPCErrors_AreLinesOfTheLog(t *testing.T) {
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&said, nil)))
	defer slog.SetDefault(before)
	assert.Must((grpcErrors{}).Write([]byte("2026/11/22 04:05:06 ERROR: [transport] it broke\n")))(t)
	assert.Contains(t, said.String(), `"level":"WARN","msg":"gRPC error outside a call","error":"[transport] it broke"}`)
}
