package service_test

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantTrips fails the test unless these are the statements that main was sent until a run had its
// lease, by their operations.
func wantTrips(t *testing.T, spans *tracetest.SpanRecorder, do func(context.Context) error, want ...string) {
	t.Helper()
	ctx, call := otel.Tracer("test").Start(t.Context(), "call")
	err := do(run.WithSpans(ctx))
	if call.End(); err != nil {
		t.Fatal(err)
	}
	leases := servicetest.Named(spans, "maintenance.lease.acquire")
	require(t, len(leases) == 1, "%d leases", len(leases))
	var trips []string
	for _, s := range spans.Ended() {
		if s.EndTime().After(leases[0].EndTime()) || strings.HasPrefix(s.Name(), "maintenance.") {
			continue
		}
		if slices.Contains(s.Attributes(), attribute.String("maintenance.database", "main")) {
			trips = append(trips, s.Name())
		}
	}
	check(t, slices.Equal(trips, want), "statements %q, want %q", trips, want)
}

func TestRunBatch_ARunStartsInThreeRoundTrips(t *testing.T) {
	spans := servicetest.Tracing(t)
	s := servicetest.NewGhosts(t).Service()
	// The third is the catalogue, of which no trace tells.
	wantTrips(t, spans, func(ctx context.Context) error {
		_, err := s.RunBatch(ctx, service.RunRequest{Worker: servicetest.GhostUsers})
		return err
	}, "read pauses, flags and clock", "record the run")
}

func TestRunDue_AFireStartsInThreeRoundTrips(t *testing.T) {
	spans := servicetest.Tracing(t)
	c := newClocked(t)
	s := c.scheduled("* * * * *")
	// Other workers are found to be used now, not then.
	c.at("11-20 12:00:50")
	c.due(s)
	c.at("11-20 12:01:00")
	// The ledger is that of all workers, and is read whether a fire is due or not.
	wantTrips(t, spans, func(ctx context.Context) error {
		err := s.RunDue(ctx)
		c.settled() //nolint:contextcheck // the test's
		return err
	}, "read the ledger of fires", "read pauses, flags and clock", "claim the fire")
}

// A run that finds nothing sends few statements to each database: the settings of a read are one of
// them. The fewest of some runs count: a connection prepares its statements when it first sends
// them, and a run on a busy machine has more than one heartbeat.
func TestRunBatch_ARunThatFindsNothingSendsFewStatements(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci", "sec")
	e.Exec("main", `CREATE EXTENSION pg_stat_statements;
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	s := e.Service(servicetest.OneChild)
	// Without their texts, which are those of the whole cluster.
	statements := func(database string) int {
		n, err := strconv.Atoi(e.Value(database, `SELECT coalesce(sum(calls), 0) FROM pg_stat_statements(false) s
			JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()`))
		servicetest.NoError(t, err)
		return n
	}
	// How often the cluster has forgotten statements for want of room: then nothing can be said.
	forgotten := func() string { return e.Value("main", `SELECT dealloc FROM pg_stat_statements_info`) }
	e.Exec("ci", `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	for _, c := range []struct {
		database  string
		main, own int
	}{{"main", 8, 0}, {"ci", 4, 5}} {
		most := map[string]int{"main": c.main, "ci": c.own}
		fewest := map[string]int{"main": math.MaxInt, "ci": math.MaxInt}
		rounds := 0
		devdb.Eventually(t, "a dozen runs to be counted", func() bool {
			known := forgotten()
			before := map[string]int{"ci": statements("ci"), "main": statements("main")}
			servicetest.WantState(t, servicetest.RunBatch(t, s, c.database), "succeeded")
			// The question of before the run is one of them.
			after := map[string]int{"main": statements("main") - 1, "ci": statements("ci") - 1}
			if forgotten() == known {
				rounds++
				for name := range most {
					fewest[name] = min(fewest[name], after[name]-before[name])
				}
			}
			return rounds == 12
		})
		for name, n := range fewest {
			check(t, n <= most[name], "a run on %s sends %d statements to %s, want at most %d", c.database, n, name, most[name])
		}
	}
}
