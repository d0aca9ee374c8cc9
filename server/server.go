// Package server is the gRPC API. A handler validates the request, calls package service, and
// converts the result.
//
// It guarantees:
//
//   - Every error of caretaker carries google.rpc.ErrorInfo with the domain "caretaker" and a
//     stable reason from the table in status.go. No driver text and no SQL reaches a client. The
//     log has them, under the trace_id that the client gets.
//   - A panic ends one call, not the process.
//   - The health of the server as a whole and of maintenance.v1.MaintenanceService is SERVING after
//     main has answered. It is NOT_SERVING after main has failed for 10 s, and when the server stops.
//     The service "live" is SERVING until the server stops, because an outage of main must not fail
//     a liveness probe.
//   - Each call writes one log line, except for health checks.
//   - Each call requires the role in the table in roles.go. Unlisted calls are refused. Health
//     checks require no role, reflection requires a viewer. A stream ends when its client loses
//     access.
//   - Every call that changes something, except a dry run, is in maintenance.audit before it starts,
//     and later with its outcome. The audit has a limited number of calls refused for their role.
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
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Config has the settings of a Server. Service is required.
type Config struct {
	Service *service.Service
	Logger  *slog.Logger
	// CertFile and KeyFile, if set, enable TLS. ClientCAFile requires client certificates. They are
	// PEM files that each connection reads again, so that they can be renewed.
	CertFile, KeyFile, ClientCAFile string
	// Access has the clients' roles. With nil, every client is an admin. Health checks need none.
	Access *access.Keys
	// Identity distinguishes servers of different configurations. Clients without a token can read it.
	Identity string
	// limits are the usual limits, unless a test sets others.
	limits limits
}

// streamGrace is how long streams may continue when the server stops: twice the delay of the last
// event of a run.
const streamGrace = time.Second

// Server serves the API on one listener.
type Server struct {
	config    Config
	limits    limits
	rules     map[string]rule
	rates     *rates
	grpc      *grpc.Server
	readiness *readiness
	// stopping ends the remaining streams when the server stops.
	stopping context.Context //nolint:containedctx // ends with the server, not with a call
	stop     context.CancelCauseFunc
	// checks waits for the probes of readiness.
	checks sync.WaitGroup
}

// New prepares a server. Its error names an unusable file.
func New(config Config) (*Server, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.limits == (limits{}) {
		config.limits = usualLimits()
	}
	s := &Server{
		config: config, limits: config.limits, rules: rules(),
		rates:     &rates{limits: config.limits},
		readiness: newReadiness(config.Service.Healthy, config.Logger),
	}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	transport, err := config.credentials()
	if err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(append(s.limits.options(),
		grpc.Creds(transport),
		grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithFilter(filters.None(filters.HealthCheck(), isReflection())))),
		grpc.ChainUnaryInterceptor(s.unary()...), grpc.ChainStreamInterceptor(s.stream()...),
	)...)
	pb.RegisterMaintenanceServiceServer(s.grpc, &maintenance{service: config.Service})
	healthv1.RegisterHealthServer(s.grpc, s.readiness.health)
	reflection.Register(s.grpc)
	return s, nil
}

func isReflection() otelgrpc.Filter {
	return filters.Any(filters.ServiceName(reflectionv1.ServerReflection_ServiceDesc.ServiceName),
		filters.ServiceName(reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName))
}

// ReadOnlyMethods returns the full names of the methods that change nothing, as in their spans:
// Get…, List… and all streams.
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
	err := s.grpc.Serve(netutil.LimitListener(listener, s.limits.connections))
	s.stop(fault.ErrStopping)
	s.checks.Wait()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("cannot serve gRPC on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Drain sets all health to NOT_SERVING permanently. The server still answers calls.
func (s *Server) Drain() { s.readiness.health.Shutdown() }

// Stop waits for open calls to end, and ends streams after a second. When ctx ends, it aborts the
// remaining calls.
func (s *Server) Stop(ctx context.Context) {
	s.Drain()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	// Clients that watch a run that has just ended get its last event.
	select {
	case <-graceful:
	case <-ctx.Done():
	case <-time.After(streamGrace):
	}
	s.stop(fault.ErrStopping)
	select {
	case <-graceful:
	case <-ctx.Done():
		s.grpc.Stop()
		<-graceful
	}
}
