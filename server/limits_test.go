package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// withLimits has a server keep the usual limits but for what is changed.
func withLimits(change func(*limits)) func(*Config) {
	return func(c *Config) {
		c.limits = usualLimits()
		change(&c.limits)
	}
}

// listening is the address of a server with these limits, which serves until stop.
func listening(t *testing.T, config Config, change func(*limits)) (address string, stop func()) {
	t.Helper()
	withLimits(change)(&config)
	server, listener := assert.Must(New(config))(t), assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return listener.Addr().String(), func() {
		server.Stop(t.Context())
		assert.NoError(t, <-served)
	}
}

func TestLimits_ARequestThatIsTooLargeIsRefused(t *testing.T) {
	f := start(t)
	pause := func(size int) error {
		return second(f.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: worker, Reason: strings.Repeat("x", size)}))
	}
	f.violates(pause(1<<20-100), "reason")
	for _, size := range []int{1 << 20, 8<<20 - 100} {
		info := detail[*errdetails.ErrorInfo](f.failure(pause(size), codes.ResourceExhausted, "MESSAGE_TOO_LARGE")).GetMetadata()
		assert.That(t, info["limit"] == "1048576" && len(info["bytes"]) >= 7, "%d: %v", size, info)
	}
	if err := pause(8 << 20); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beyond what is read: %v", err)
	}
	assert.Equal(t, f.count(`SELECT count(*) FROM maintenance.pauses`), 0, "pauses")
}

func TestLimits_AStreamReadsNoMoreThanACall(t *testing.T) {
	f := start(t, withTokens(t, ""))
	watch := func(id string) error {
		stream, err := f.WatchRun(as(t.Context(), "viewer-token"), &maintenancev1.WatchRunRequest{Id: id})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	f.failure(watch(strings.Repeat("x", 2<<20)), codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	f.violates(watch(strings.Repeat("x", 3000)), "id")
}

func TestLimits_ALongTextDoesNotComeBack(t *testing.T) {
	const many = maxText + 1
	long := strings.Repeat("x", many)
	f := start(t, withTokens(t, "- {name: bots, sha256: "+hashed("bots-token")+", role: operator, workers: [ghost_user_migration]}\n"))
	admin, bots := as(t.Context(), "admin-token"), as(t.Context(), "bots-token")
	for field, err := range map[string]error{
		"worker":     second(f.RunBatch(bots, &maintenancev1.RunBatchRequest{Worker: long})),
		"database":   second(f.RunBatch(admin, &maintenancev1.RunBatchRequest{Worker: worker, Database: long})),
		"id":         second(f.GetRun(admin, &maintenancev1.GetRunRequest{Id: long})),
		"name":       second(f.SetFeatureFlag(admin, &maintenancev1.SetFeatureFlagRequest{Name: long})),
		"kind":       second(f.PlanDeletion(admin, &maintenancev1.PlanDeletionRequest{Kind: long})),
		"page_token": second(f.ListRuns(admin, &maintenancev1.ListRunsRequest{PageToken: long})),
	} {
		f.violates(err, field)
	}
	// A text that is just short enough is cut where it comes back beside the message.
	s := f.failure(second(f.RunBatch(bots, &maintenancev1.RunBatchRequest{Worker: long[1:]})), codes.PermissionDenied, "WORKER_NOT_ALLOWED")
	if got := detail[*errdetails.ErrorInfo](s).GetMetadata()["worker"]; len(got) > maxTarget+len("…") || len(s.Message()) > 2*maxTarget {
		t.Errorf("%d bytes came back, and a message of %d", len(got), len(s.Message()))
	}
	assert.Lacks(t, f.log.String(), long)
	n := f.count(`SELECT coalesce(max(length(target)), 0) FROM maintenance.audit`)
	assert.That(t, n <= maxTarget+1, "the audit has %d characters", n)
}

func TestLimits_AnOldConnectionTakesNoMoreCalls(t *testing.T) {
	f := start(t, withLimits(func(l *limits) { l.age = 50 * time.Millisecond }))
	lift := f.gate()
	ended := make(chan error, 1)
	go func() { ended <- second(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker})) }()
	f.eventually("the run begins", func() bool { return f.count(`SELECT count(*) FROM maintenance.runs`) == 1 })
	f.eventually("the connection is closed for others", func() bool { return f.conn.GetState() == connectivity.Idle })
	// The call that is under way ends as usual, further ones go to a new connection.
	lift()
	assert.NoError(t, <-ended)
	assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
}

func TestLimits_AConnectionHasSoManyCallsAtOnce(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	last, endLast := context.WithCancel(ctx)
	for i := range usualLimits().calls {
		call := ctx
		if i == 0 {
			call = last
		}
		watch, err := healthv1.NewHealthClient(f.conn).Watch(call, &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		assert.Require(t, err == nil, "call %d: %v", i, err)
	}
	brief, end := context.WithTimeout(ctx, 100*time.Millisecond) //nolint:gocritic // elapses: the call waits for another one to end
	defer end()
	if _, err := f.GetStatus(brief, &maintenancev1.GetStatusRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one more: %v", err)
	}
	endLast()
	if _, err := f.GetStatus(ctx, &maintenancev1.GetStatusRequest{}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestLimits_AServerHasSoManyStreamsAtOnce(t *testing.T) {
	f := start(t, withLimits(func(l *limits) { l.streams = 2 }))
	lift := f.gate()
	defer lift()
	run := assert.Must(f.RunBatch(t.Context(), &maintenancev1.RunBatchRequest{Worker: worker, Async: true}))(t).GetRun()
	open := map[string]func(context.Context) error{
		"WatchRun": func(ctx context.Context) error {
			stream, err := f.WatchRun(ctx, &maintenancev1.WatchRunRequest{Id: run.GetId()})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"health checks": func(ctx context.Context) error {
			stream, err := healthv1.NewHealthClient(f.conn).Watch(ctx, &healthv1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	for name, open := range open {
		first, end := context.WithCancel(t.Context())
		assert.NoError(t, open(first))
		assert.NoError(t, open(t.Context()))
		s := f.failure(open(t.Context()), codes.ResourceExhausted, "STREAMS_BUSY")
		assert.Contains(t, s.Message(), "2 streams are open")
		end()
		f.eventually("one of "+name+" can be opened again", func() bool { return open(t.Context()) == nil })
	}
	assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
}

func TestLimits_AServerHasSoManyConnectionsAtOnce(t *testing.T) {
	address, stop := listening(t, Config{Service: start(t).service}, func(l *limits) { l.connections = 1 })
	var clients [2]maintenancev1.MaintenanceServiceClient
	var connections [2]*grpc.ClientConn
	for i := range clients {
		connections[i] = assert.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		clients[i] = maintenancev1.NewMaintenanceServiceClient(connections[i])
	}
	assert.Must(clients[0].GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
	brief, end := context.WithTimeout(t.Context(), 100*time.Millisecond) //nolint:gocritic // elapses: the connection waits for the other one to end
	defer end()
	if _, err := clients[1].GetStatus(brief, &maintenancev1.GetStatusRequest{}, grpc.WaitForReady(true)); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a second connection: %v", err)
	}
	assert.NoError(t, connections[0].Close())
	assert.Must(clients[1].GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}, grpc.WaitForReady(true)))(t)
	assert.NoError(t, connections[1].Close())
	stop()
}

func TestLimits_WhoDoesNotFinishTheHandshakeIsCutOff(t *testing.T) {
	cert, key, _, _ := certificate(t, "server")
	f := start(t)
	for name, files := range map[string][2]string{"plain": {}, "TLS": {cert, key}} {
		config := Config{Service: f.service, CertFile: files[0], KeyFile: files[1]}
		address, stop := listening(t, config, func(l *limits) { l.handshake = 50 * time.Millisecond })
		conn := assert.Must(net.Dial("tcp", address))(t)
		// The first answer of the server does not matter: it closes the connection.
		_ = conn.SetReadDeadline(time.Now().Add(devdb.WaitTimeout))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%s: the connection stays open: %v", name, err)
		}
		_ = conn.Close()
		stop()
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func TestLimits_AConnectionWithoutCallsIsClosedAndComesBack(t *testing.T) {
	f := start(t, withLimits(func(l *limits) { l.idle = 50 * time.Millisecond }))
	for range 2 {
		assert.Must(f.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
		f.eventually("the connection is closed", func() bool { return f.conn.GetState() == connectivity.Idle })
	}
	// One with a call stays.
	f.slow(4)
	run := f.run(&maintenancev1.RunBatchRequest{})
	assert.That(t, run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED, "got %v", run)
}

func TestLimits_CallsThatDoMuchAreRationedByClient(t *testing.T) {
	f := start(t, withTokens(t, ""), withLimits(func(l *limits) { l.rate, l.burst = 1e-4, 3 }))
	run := func(token string) error {
		return second(f.RunBatch(as(t.Context(), token), &maintenancev1.RunBatchRequest{Worker: "nobody"}))
	}
	plan := func(token string) error {
		return second(f.PlanDeletion(as(t.Context(), token), &maintenancev1.PlanDeletionRequest{}))
	}
	const interval = 10_000 * time.Second // of the rate
	for _, call := range []func(string) error{run, plan} {
		began := time.Now()
		for range 3 {
			if err := call("operator-token"); status.Code(err) == codes.ResourceExhausted {
				t.Fatal(err)
			}
		}
		s := f.failure(call("operator-token"), codes.ResourceExhausted, "RATE_LIMITED")
		wait := detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration()
		assert.That(t, wait >= interval-time.Since(began) && wait <= interval, "try again in %s", wait)
		if err := call("admin-token"); status.Code(err) == codes.ResourceExhausted {
			t.Errorf("another client: %v", err)
		}
	}
	for range 5 {
		assert.Must(f.GetStatus(as(t.Context(), "operator-token"), &maintenancev1.GetStatusRequest{}))(t)
	}
	assert.Equal(t, f.count(`SELECT count(*) FROM maintenance.audit`), 4, "entries of the audit, those of the 4 calls that were let through")
	t.Run("by default", func(t *testing.T) {
		usual := start(t).server.rates.limits
		assert.That(t, usual == usualLimits() && usual.rate == 20 && usual.burst == 200, "got %+v", usual)
	})
}
