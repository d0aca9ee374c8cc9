// Package server is the API: gRPC in, gRPC out. A handler validates, calls package service, and
// converts.
//
// What it guarantees:
//
//   - Every error of caretaker carries google.rpc.ErrorInfo with the domain "caretaker" and a
//     stable reason; the one table is in status.go. No driver text and no SQL reaches a client: the
//     log has them, under the trace_id that the client gets.
//   - A panic ends one call, not the process.
//   - Health: the server as a whole and maintenance.v1.MaintenanceService are SERVING from main's
//     first answer until the server stops, except while main has been unusable for 10 s. The
//     service "live" is SERVING until the server stops: an outage of main must not fail a liveness
//     probe.
//   - One log line a call, except for health checks.
//   - Every call needs the role that the one table in roles.go gives it; one that is not in the
//     table is refused. Health checks need none, reflection that of a viewer. A stream ends when its
//     client may not have it any more.
//   - Every call that changes something, and was not a dry run, is in maintenance.audit before it
//     does anything, and then with its outcome. Of calls refused for want of a role so many are.
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
	"golang.org/x/time/rate"
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

// Config is what a Server needs. Service is required.
type Config struct {
	Service *service.Service
	Logger  *slog.Logger
	// CertFile and KeyFile, if set, enable TLS; ClientCAFile requires client certificates. They are
	// PEM files, read again for every connection, so that they can be renewed.
	CertFile, KeyFile, ClientCAFile string
	// Access knows the clients and their roles; nil: everybody is an admin. Health checks need none.
	Access *access.Keys
	// limits are the usual ones unless a test has others.
	limits limits
}

// streamGrace is how long streams may go on when the server stops: twice what it takes until the
// end of a run has been sent.
const streamGrace = time.Second

// Server serves the API on one listener.
type Server struct {
	config    Config
	limits    limits
	rules     map[string]rule
	rates     *rates
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
	if config.limits == (limits{}) {
		config.limits = usualLimits()
	}
	s := &Server{
		config: config, limits: config.limits, rules: rules(),
		rates:     &rates{limits: config.limits, buckets: map[string]*rate.Limiter{}},
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

// ReadOnlyMethods are the full names of the methods that change nothing, as in their spans: Get…,
// List… and all streams.
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
		return fmt.Errorf("serve gRPC on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Drain sets all health to NOT_SERVING for good; calls are still answered.
func (s *Server) Drain() { s.readiness.health.Shutdown() }

// Stop waits for the calls in flight to end, and ends streams after a second. When ctx ends it
// aborts what is left.
func (s *Server) Stop(ctx context.Context) {
	s.Drain()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	// Clients that watch a run that has just ended here get its last event.
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
