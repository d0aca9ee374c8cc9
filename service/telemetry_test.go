package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// gauges are the values of a gauge, or counts of a histogram, of the worker's by their attributes.
func gauges(m *servicetest.Meter, name string) map[string]float64 {
	m.T.Helper()
	var collected metricdata.ResourceMetrics
	servicetest.NoError(m.T, m.Reader.Collect(context.Background(), &collected))
	out := map[string]float64{}
	for _, scope := range collected.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					out[p.Attributes.Encoded(attribute.DefaultEncoder())] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					out[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					out[p.Attributes.Encoded(attribute.DefaultEncoder())] = float64(p.Count)
				}
			}
		}
	}
	maps.DeleteFunc(out, func(attributes string, _ float64) bool {
		return !strings.Contains(attributes, servicetest.LooseForeignKeys)
	})
	return out
}

func TestMetrics_CountRunsAndRows(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE n (p_id bigint); INSERT INTO n SELECT generate_series(1, 5)`)
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 5 + 1 FROM generate_series(1, 10) i`)
	e.Deleted("main", "p", 1, 5)
	s := e.Service(servicetest.OneChild + "n: [{table: p, column: p_id, on_delete: async_nullify}]\n")
	servicetest.DryRun(t, s)
	servicetest.RunBatch(t, s, "main")
	servicetest.RunBatch(t, s, "ci")
	if _, _, err := e.Service("").RunScheduled(t.Context(), servicetest.LooseForeignKeys, minute(25772283)); err != nil {
		t.Fatal(err)
	}
	const on = "worker=loose_foreign_keys_cleanup database="
	for attributes, want := range map[string]int64{
		on + "main action=deleted": 10, on + "main action=updated": 5, on + "main action=processed": 5, on + "ci": 0, "": 20,
	} {
		if got := m.Counter("maintenance.rows", attributes); got != want {
			t.Errorf("rows %s: %d, want %d", attributes, got, want)
		}
	}
	for attributes, want := range map[string]int64{on + "main outcome=succeeded": 1, on + "ci outcome=succeeded": 1, on + "ci outcome=skipped": 1, "": 3} {
		if got := m.Counter("maintenance.runs", attributes); got != want {
			t.Errorf("runs %s: %d, want %d", attributes, got, want)
		}
	}
	if got := gauges(m, "maintenance.run.duration"); got["worker=loose_foreign_keys_cleanup"] != 2 {
		t.Errorf("durations %v, want those of two runs: the dry run does not count", got)
	}
}

func TestMetrics_ShowBacklogsAndLeases(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Deleted("main", "p", 1, 5)
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET created_at = now() - interval '1 hour', consume_after = now() + interval '1 hour' WHERE primary_key_value = 2`)
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/ci", "1 hour")
	// A fence row is no lease of its own.
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/main", "1 hour")
	s := e.Service(servicetest.OneChild)
	if got, want := gauges(m, "maintenance.lease.held"), (map[string]float64{"name=" + servicetest.LooseForeignKeys + "/ci": 1, "name=" + servicetest.MainLease: 0}); !maps.Equal(got, want) {
		t.Errorf("leases %v, want %v", got, want)
	}
	const of = "worker=loose_foreign_keys_cleanup"
	if got, want := gauges(m, "maintenance.backlog.pending"), (map[string]float64{"database=main," + of: 5, "database=ci," + of: 0}); !maps.Equal(got, want) {
		t.Errorf("backlog %v, want %v", got, want)
	}
	age := gauges(m, "maintenance.backlog.oldest.age")
	if main := age["database=main,"+of]; main < 3600 || main > 3700 || age["database=ci,"+of] != 0 || len(age) != 2 {
		t.Errorf("ages %v", age)
	}
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	e.Exec("ci", `UPDATE maintenance.leases SET expires_at = now()`)
	if got, want := gauges(m, "maintenance.lease.held"), (map[string]float64{"name=" + servicetest.LooseForeignKeys + "/ci": 0, "name=" + servicetest.MainLease: 1}); !maps.Equal(got, want) {
		t.Errorf("leases %v, want %v", got, want)
	}
	servicetest.NoError(t, s.Shutdown(t.Context()))
	if got := gauges(m, "maintenance.backlog.pending"); len(got) != 0 {
		t.Errorf("backlog %v after the shutdown, want none", got)
	}
}

func TestTrace_OfARun(t *testing.T) {
	spans := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 5)
	s := e.Service(servicetest.OneChild, servicetest.Batches(3, 0))
	ctx, client := otel.Tracer("test").Start(t.Context(), "client")
	r := servicetest.Must(s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"}))(t)
	client.End()
	if r.TraceID != client.SpanContext().TraceID().String() {
		t.Errorf("trace %s, want the client's, %s", r.TraceID, client.SpanContext().TraceID())
	}
	var root sdktrace.ReadOnlySpan
	for _, span := range spans.Ended() {
		if span.Name() == "maintenance.run" {
			root = span
		}
	}
	if root == nil || root.Parent().SpanID() != client.SpanContext().SpanID() {
		t.Fatal("no span of the run below the client's")
	}
	servicetest.WantAttributes(t, root, map[string]string{
		"maintenance.worker": servicetest.LooseForeignKeys, "maintenance.run_id": r.ID, "maintenance.database": "main",
		"maintenance.trigger": "request", "maintenance.outcome": repo.RunSucceeded, "maintenance.lease_epoch": "1",
	})
	var names []string
	batches := map[trace.SpanID]bool{}
	for _, span := range spans.Ended() {
		if span.Parent().SpanID() == root.SpanContext().SpanID() && strings.HasPrefix(span.Name(), "maintenance.") {
			names = append(names, span.Name())
			if span.Name() == "maintenance.batch" {
				batches[span.SpanContext().SpanID()] = true
				servicetest.WantAttributes(t, span, map[string]string{"maintenance.database": "main", "maintenance.parent": "public.p"})
			}
		}
	}
	slices.Sort(names)
	if want := []string{"maintenance.batch", "maintenance.batch", "maintenance.lease.acquire"}; !slices.Equal(names, want) {
		t.Errorf("spans %v, want %v", names, want)
	}
	if !slices.ContainsFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return batches[s.Parent().SpanID()] }) {
		t.Error("no span of a statement below a batch")
	}
}

func TestLog_HasTheBeginningAndTheEndOfARun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 5)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	var said bytes.Buffer
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&said, nil)) })
	r := servicetest.RunBatch(t, s, "main")
	lines := map[string][]map[string]any{}
	for line := range strings.Lines(said.String()) {
		var fields map[string]any
		servicetest.NoError(t, json.Unmarshal([]byte(line), &fields))
		message, _ := fields["msg"].(string)
		lines[message] = append(lines[message], fields)
		if fields["worker"] != servicetest.LooseForeignKeys || fields["run_id"] != r.ID || fields["database"] != "main" {
			t.Errorf("line %s lacks worker, run_id or database", line)
		}
		if strings.Count(line, `"time":`) != 1 {
			t.Errorf("line %s does not have the time once", line)
		}
	}
	for message, want := range map[string]map[string]any{
		"run started":  {"level": "INFO", "trigger": "request"},
		"run finished": {"level": "ERROR", "outcome": "failed", "processed_records": 4.0, "deleted_rows": 12.0, "rescheduled_records": 1.0, "dead_records": 0.0, "over_limit": false, "turbo_mode": false, "lease_epoch": 1.0},
	} {
		if len(lines[message]) != 1 {
			t.Errorf("%d lines %q, want one", len(lines[message]), message)
			continue
		}
		for key, value := range want {
			if got := lines[message][0][key]; got != value {
				t.Errorf("%s: %s is %v, want %v", message, key, got, value)
			}
		}
	}
	// The driver's text is for the log, and there once.
	if n := strings.Count(said.String(), "secret of 2"); n != 1 {
		t.Errorf("the cause is logged %d times: %s", n, said.String())
	}
}
