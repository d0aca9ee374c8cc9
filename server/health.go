package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// liveService is the service whose health is that of the process alone, for liveness probes.
const liveService = "live"

// main is probed every probeInterval and has probeTimeout to answer. A server that has been ready
// stays so until main has failed for gracePeriod: a shorter restart shows in GetStatus only.
const (
	probeInterval = time.Second
	probeTimeout  = 2 * time.Second
	gracePeriod   = 10 * time.Second
)

// readiness sets the health of the server by whether main can work. It is for one goroutine.
type readiness struct {
	// healthy probes main.
	healthy func(context.Context) error
	logger  *slog.Logger
	health  *health.Server

	// failingSince is when the first failed probe began, zero if the last one succeeded.
	failingSince time.Time
	// ready is the health that was set last.
	ready bool
}

func newReadiness(healthy func(context.Context) error, logger *slog.Logger) *readiness {
	r := &readiness{
		healthy: healthy, logger: logger, health: health.NewServer(),
	}
	r.set(false)
	r.health.SetServingStatus(liveService, healthv1.HealthCheckResponse_SERVING)
	return r
}

// watch probes until ctx ends.
func (r *readiness) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeInterval):
		}
		r.check(ctx)
	}
}

// check probes main once and sets the health accordingly.
func (r *readiness) check(ctx context.Context) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := r.healthy(bounded)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if !r.ready && !r.failingSince.IsZero() {
			r.logger.InfoContext(ctx, "ready: main can work, health is SERVING")
		}
		r.failingSince = time.Time{}
		if !r.ready {
			r.set(true)
		}
	case r.failingSince.IsZero():
		r.failingSince = began
	case r.ready && time.Since(r.failingSince) >= gracePeriod:
		r.logger.ErrorContext(ctx, "not ready: health is NOT_SERVING until main can work again",
			"error", err.Error())
		r.set(false)
	}
}

// set sets the health of all services but "live". Once the server is stopping it has no effect.
func (r *readiness) set(ready bool) {
	r.ready = ready
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus("", state)
	r.health.SetServingStatus(pb.MaintenanceService_ServiceDesc.ServiceName, state)
}
