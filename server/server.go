// Package server is the API: gRPC in, gRPC out. A handler validates, calls package service, converts.
//
// What it guarantees:
//
//   - Every error of ours carries google.rpc.ErrorInfo with the domain "caretaker" and a stable reason; status.go has the
//     one table. No driver text and no SQL reaches a client: the log has them, under the trace_id the client gets.
//   - A panic ends one call, not the process.
//   - Health: the whole server and maintenance.v1.MaintenanceService are SERVING from main's first answer on, unless main
//     cannot work for 10 s, until the server stops. The service "live" is SERVING all the time until then, so that a probe
//     does not kill the server for its database's sake.
//   - One log line a call, health checks excepted.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// Config is what a Server needs. Service is required.
type Config struct {
	Service *service.Service
	Logger  *slog.Logger
	// CertFile and KeyFile, if set, turn TLS on; ClientCAFile demands client certificates. PEM files, read again for
	// every new connection, so that they can be renewed.
	CertFile, KeyFile, ClientCAFile string
	// Token, if set, is the bearer token that every call needs, health checks excepted.
	Token string
}

// Limits of a connection.
const (
	// maxRequest is far beyond the largest valid request.
	maxRequest = 1 << 20
	maxStreams = 250
	// pingEvery finds out about clients that vanished while they waited for a run.
	pingEvery, pingTimeout = time.Minute, 20 * time.Second
	// lastEvents is how long streams may go on when the server stops: twice as long as a run's end takes to be noticed.
	lastEvents = time.Second
	// clientPing is how often clients may ping.
	clientPing = 10 * time.Second
)

// Server serves the API on one listener.
type Server struct {
	config    Config
	grpc      *grpc.Server
	readiness *readiness
	// stopping ends the streams that are left when the server stops.
	stopping context.Context //nolint:containedctx // ends with the server, not with a call
	stop     context.CancelCauseFunc
	checks   sync.WaitGroup
}

// New prepares a server. The error names a file that cannot be used.
func New(config Config) (*Server, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: config, readiness: newReadiness(config.Service.Healthy, config.Logger)}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	transport, err := config.credentials()
	if err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(transport),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPing, PermitWithoutStream: true}),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(filters.None(filters.HealthCheck(), reflected())))),
		grpc.ChainUnaryInterceptor(s.unary()...), grpc.ChainStreamInterceptor(s.stream()...),
	)
	pb.RegisterMaintenanceServiceServer(s.grpc, &maintenance{service: config.Service})
	healthv1.RegisterHealthServer(s.grpc, s.readiness.health)
	reflection.Register(s.grpc)
	return s, nil
}

// reflected are the calls by which clients learn of the service.
func reflected() otelgrpc.Filter {
	return filters.Any(filters.ServiceName(reflectionv1.ServerReflection_ServiceDesc.ServiceName),
		filters.ServiceName(reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName))
}

// ReadOnlyMethods are the names of the spans of calls that only look, and are made again and again: Get…, List… and all streams.
func ReadOnlyMethods() (names []string) {
	of := pb.MaintenanceService_ServiceDesc
	for _, method := range of.Methods {
		if name := method.MethodName; strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") {
			names = append(names, of.ServiceName+"/"+name)
		}
	}
	for _, stream := range of.Streams {
		names = append(names, of.ServiceName+"/"+stream.StreamName)
	}
	return names
}

// Serve answers calls until Stop. It closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	s.readiness.check(s.stopping)
	s.checks.Go(func() { s.readiness.watch(s.stopping) })
	err := s.grpc.Serve(listener)
	s.stop(service.ErrStopping)
	s.checks.Wait()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Drain says NOT_SERVING from now on; calls are still answered.
func (s *Server) Drain() { s.readiness.health.Shutdown() }

// Stop lets the calls at work end, streams after a second, and waits for them until ctx ends; then it breaks them off.
func (s *Server) Stop(ctx context.Context) {
	s.Drain()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	// Those who watch a run that has just ended here hear of it.
	select {
	case <-graceful:
	case <-ctx.Done():
	case <-time.After(lastEvents):
	}
	s.stop(service.ErrStopping)
	select {
	case <-graceful:
	case <-ctx.Done():
		s.grpc.Stop()
		<-graceful
	}
}
