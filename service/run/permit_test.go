package run

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/semaphore"
)

// renewing is a run whose lease is being renewed.
func renewing(t *testing.T) *Execution {
	t.Helper()
	x := &Execution{leases: &leaseSet{permits: semaphore.NewWeighted(allPermits)}}
	x.stopRequested, x.requestStop = context.WithCancelCause(t.Context())
	if err := x.leases.permits.Acquire(t.Context(), allPermits); err != nil {
		t.Fatal(err)
	}
	return x
}

func TestPermit_WaitForARenewalEndsWhenTheRunIsToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := renewing(t)
		time.AfterFunc(time.Second, func() { x.RequestStop(ErrShutdown) }) //nolint:gocritic // elapses: by the clock of the bubble
		if err := x.waitForRenewal(t.Context()); !errors.Is(err, ErrShutdown) {
			t.Errorf("%v, want %v", err, ErrShutdown)
		}
	})
}

func TestPermit_WaitForARenewalIsInTheTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		x := renewing(t)
		x.Tracer = traces.Tracer("")
		time.AfterFunc(2*time.Second, func() { x.leases.permits.Release(allPermits) }) //nolint:gocritic // elapses: by the clock of the bubble
		if err := x.Batch(t.Context(), x.waitForRenewal); err != nil {
			t.Fatal(err)
		}
		for _, a := range spans.Ended()[0].Attributes() {
			if a.Key == waitedKey && a.Value.AsFloat64() == 2 && x.waited == 2*time.Second {
				return
			}
		}
		t.Errorf("%v, waited %s, want two seconds of both", spans.Ended()[0].Attributes(), x.waited)
	})
}
