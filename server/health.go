package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// liveService is the name under which health is that of the process alone, for probes that kill it.
const liveService = "live"

// Main is asked every healthEvery whether it can work, and has healthTimeout to answer. A server that has worked is ready
// until main has failed for healthPatience: a restart of main that is shorter than that shows in GetStatus only.
const (
	healthEvery    = time.Second
	healthTimeout  = 3 * time.Second
	healthPatience = 10 * time.Second
)

// readiness is whether the server can work. It is for one goroutine.
type readiness struct {
	// healthy asks main.
	healthy func(context.Context) error
	logger  *slog.Logger
	health  *health.Server

	pace service.Backoff
	// failingSince is when the first check began that failed; zero: the last one did not.
	failingSince time.Time
	// ready is what was said last.
	ready bool
}

func newReadiness(healthy func(context.Context) error, logger *slog.Logger) *readiness {
	r := &readiness{
		healthy: healthy, logger: logger, health: health.NewServer(),
		pace: service.Backoff{First: healthEvery / 2, Most: 2 * healthEvery},
	}
	r.say(false)
	r.health.SetServingStatus(liveService, healthv1.HealthCheckResponse_SERVING)
	return r
}

// watch checks until ctx ends.
func (r *readiness) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.wait()):
		}
		r.check(ctx)
	}
}

// wait is the time until the next check: never later than the end of the patience.
func (r *readiness) wait() time.Duration {
	if r.failingSince.IsZero() {
		return healthEvery
	}
	wait, _ := r.pace.After(context.DeadlineExceeded)
	if left := r.left(); r.ready {
		wait = min(wait, max(left, 0))
	}
	return wait
}

// left is the rest of the patience.
func (r *readiness) left() time.Duration { return healthPatience - time.Since(r.failingSince) }

// check asks main, and says what follows from the answer.
func (r *readiness) check(ctx context.Context) {
	began, patience := time.Now(), healthTimeout
	if r.ready && !r.failingSince.IsZero() {
		patience = min(patience, max(r.left(), healthEvery/2))
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := r.healthy(bounded)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if !r.ready && !r.failingSince.IsZero() {
			r.logger.InfoContext(ctx, "ready: main can work, health is SERVING")
		}
		r.failingSince = time.Time{}
		r.pace.After(nil)
		if !r.ready {
			r.say(true)
		}
	case r.failingSince.IsZero():
		r.failingSince = began
	case r.ready && r.left() <= 0:
		r.logger.ErrorContext(ctx, "not ready: health is NOT_SERVING until main can work again", "error", err.Error())
		r.say(false)
	}
}

// say sets the health of all but the process. After the server has begun to stop this changes nothing.
func (r *readiness) say(ready bool) {
	r.ready = ready
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus("", state)
	r.health.SetServingStatus(pb.MaintenanceService_ServiceDesc.ServiceName, state)
}
