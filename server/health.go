package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// liveService is the health service for liveness probes. It reports only on the process.
const liveService = "live"

// The server probes main every probeInterval, with the timeout probeTimeout. A ready server stays
// ready until main has failed for gracePeriod. Only GetStatus shows a shorter outage.
const (
	probeInterval = time.Second
	probeTimeout  = 2 * time.Second
	gracePeriod   = 10 * time.Second
)

// readiness sets the server's health by the state of main. Only one goroutine may use it.
type readiness struct {
	// healthy probes main.
	healthy func(context.Context) error
	logger  *slog.Logger
	health  *health.Server

	// failingSince is the start of the first failed probe, zero if the last probe succeeded.
	failingSince time.Time
	// ready is the last health that was set.
	ready bool
}

// newReadiness returns the health service. It reports NOT_SERVING until the first successful
// probe. Only the liveness service serves at once.
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
			r.logger.InfoContext(ctx, "health changed to SERVING")
		}
		r.failingSince = time.Time{}
		if !r.ready {
			r.set(true)
		}
	case r.failingSince.IsZero():
		r.failingSince = began
	case r.ready && time.Since(r.failingSince) >= gracePeriod:
		r.logger.ErrorContext(ctx, "health changed to NOT_SERVING",
			"error", err.Error())
		r.set(false)
	}
}

// set sets the health of all services except "live". It has no effect once the server is stopping.
func (r *readiness) set(ready bool) {
	r.ready = ready
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus("", state)
	r.health.SetServingStatus(pb.MaintenanceService_ServiceDesc.ServiceName, state)
}
