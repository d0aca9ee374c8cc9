package service_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantTrips fails the test unless these are the statements that main was sent until a run had its
// lease, by their operations.
func wantTrips(t *testing.T, want []string, do func(context.Context) error) {
	t.Helper()
	spans := servicetest.Tracing(t)
	ctx, call := otel.Tracer("test").Start(t.Context(), "call")
	err := do(run.WithSpans(ctx))
	if call.End(); err != nil {
		t.Fatal(err)
	}
	leases := servicetest.Named(spans, "maintenance.lease.acquire")
	if len(leases) != 1 {
		t.Fatalf("%d leases", len(leases))
	}
	var trips []string
	for _, s := range spans.Ended() {
		if s.EndTime().After(leases[0].EndTime()) || strings.HasPrefix(s.Name(), "maintenance.") {
			continue
		}
		if slices.Contains(s.Attributes(), attribute.String("maintenance.database", "main")) {
			trips = append(trips, s.Name())
		}
	}
	if !slices.Equal(trips, want) {
		t.Errorf("statements %q, want %q", trips, want)
	}
}

func TestRunBatch_ARunStartsInThreeRoundTrips(t *testing.T) {
	e := servicetest.NewGhosts(t)
	s := e.Service()
	want := []string{"read pauses, flags and clock", "read the catalogue", "record the run"}
	wantTrips(t, want, func(ctx context.Context) error {
		_, err := s.RunBatch(ctx, service.RunRequest{Worker: servicetest.GhostUsers})
		return err
	})
}

func TestRunDue_AFireStartsInThreeRoundTrips(t *testing.T) {
	c := newClocked(t)
	s := c.replica("* * * * *")
	// Other workers are found to be used now, not then.
	c.at("11-20 12:00:50")
	c.due(s)
	c.at("11-20 12:01:00")
	// The worker's definitions are in a file: there is no catalogue to read. The ledger is that of
	// all workers, and is read whether a fire is due or not.
	want := []string{"read the ledger of fires", "read pauses, flags and clock", "claim the fire"}
	wantTrips(t, want, func(ctx context.Context) error {
		err := s.RunDue(ctx)
		c.settled()
		return err
	})
}
