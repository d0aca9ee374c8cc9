package server

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/caretaker-go/caretaker/internal/assert"
)

const (
	serving    = healthv1.HealthCheckResponse_SERVING
	notServing = healthv1.HealthCheckResponse_NOT_SERVING
)

// fakeMain is up, down, or silent.
type fakeMain struct{ state atomic.Value }

const up, down, silent = "up", "down", "silent"

func newMain(state string) *fakeMain {
	m := &fakeMain{}
	m.is(state)
	return m
}

func (m *fakeMain) is(state string) { m.state.Store(state) }

func (m *fakeMain) healthy(ctx context.Context) error {
	switch m.state.Load() {
	case silent:
		<-ctx.Done()
		return ctx.Err()
	case down:
		return errors.New("down")
	}
	return nil
}

// watched runs do beside a watch over main.
func watched(t *testing.T, m *fakeMain, do func(r *readiness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newReadiness(m.healthy, slog.New(slog.DiscardHandler))
		r.check(t.Context())
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.watch(ctx)
		do(r)
	})
}

// sleep waits in the bubble, and for what is to happen at its end.
func sleep(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a synctest bubble
	synctest.Wait()
}

func wantHealth(t *testing.T, r *readiness, want healthv1.HealthCheckResponse_ServingStatus, when string) {
	t.Helper()
	for _, name := range []string{"", "maintenance.v1.MaintenanceService"} {
		answer := assert.Must(r.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name}))(t)
		assert.Equal(t, answer.GetStatus(), want, when, name, want)
	}
	answer := assert.Must(r.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "live"}))(t)
	assert.Equal(t, answer.GetStatus(), serving, when)
}

func TestReadiness_EndsAfterTenSecondsWithoutMainAndComesBackInTwo(t *testing.T) {
	for _, trouble := range []string{down, silent} {
		t.Run(trouble, func(t *testing.T) {
			m := newMain(up)
			watched(t, m, func(r *readiness) {
				wantHealth(t, r, serving, "at the start")
				for range 2 {
					m.is(trouble)
					sleep(gracePeriod - 10*time.Millisecond)
					wantHealth(t, r, serving, "before 10 s")
					sleep(3 * time.Second)
					wantHealth(t, r, notServing, "after 13 s")
					m.is(up)
					sleep(2*probeInterval + probeTimeout)
					wantHealth(t, r, serving, "once main is back")
				}
			})
		})
	}
}

func TestReadiness_AShortOutageDoesNotShow(t *testing.T) {
	m := newMain(up)
	watched(t, m, func(r *readiness) {
		for range 5 {
			m.is(down)
			sleep(7 * time.Second)
			wantHealth(t, r, serving, "after 7 s")
			m.is(up)
			sleep(2 * probeInterval)
		}
		wantHealth(t, r, serving, "after five of them")
	})
}

func TestReadiness_BeginsWithMain(t *testing.T) {
	m := newMain(down)
	watched(t, m, func(r *readiness) {
		wantHealth(t, r, notServing, "at the start")
		sleep(time.Minute)
		wantHealth(t, r, notServing, "after a minute")
		m.is(up)
		sleep(2 * probeInterval)
		wantHealth(t, r, serving, "once main is there")
	})
}
