package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts telemetry for one test.
func start(t *testing.T, config Config) *Telemetry {
	t.Helper()
	telemetry := assert.Must(Start(t.Context(), config))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
		defer cancel()
		if err := telemetry.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return telemetry
}

func scrape(t *testing.T, telemetry *Telemetry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	telemetry.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	assert.Require(t, answer.Code == http.StatusOK, "got status %d", answer.Code)
	return answer.Body.String()
}

func TestHandler_LibrariesShowFewSeries(t *testing.T) {
	telemetry := start(t, Config{})
	calls, _ := otel.Meter("grpc").Float64Histogram("rpc.server.call.duration", metric.WithUnit("s"))
	for _, method := range []string{"GetStatus", "RunBatch", "ListRuns"} {
		with := metric.WithAttributes(attribute.String("rpc.method", method), attribute.String("rpc.response.status_code", "OK"))
		calls.Record(t.Context(), .5, with)
	}
	shown := scrape(t, telemetry)
	if n := strings.Count(shown, "\nrpc_server_call_duration_seconds_bucket{"); n != 5 || !strings.Contains(shown, `seconds_count{rpc_response_status_code="OK"} 3`) {
		t.Errorf("%d buckets of calls in %s", n, shown)
	}
	assert.That(t, !strings.Contains(shown, "go_memstats_heap"), "what nobody looks at: %s", shown)
}

func TestHandler_UsesTheNamesOfTheContract(t *testing.T) {
	telemetry := start(t, Config{Version: "v1"})
	meter := otel.Meter("maintenance")
	runs, _ := meter.Int64Counter("maintenance.runs", metric.WithUnit("{run}"))
	took, _ := meter.Float64Histogram("maintenance.run.duration", metric.WithUnit("s"))
	age, _ := meter.Float64Gauge("maintenance.backlog.oldest_age", metric.WithUnit("s"))
	worker := metric.WithAttributes(attribute.String("worker", "w"))
	runs.Add(t.Context(), 2, worker)
	took.Record(t.Context(), 1.5, worker)
	age.Record(t.Context(), 3, worker)
	got := scrape(t, telemetry)
	for _, want := range []string{
		`maintenance_runs_total{worker="w"} 2`, `maintenance_run_duration_seconds_sum{worker="w"} 1.5`,
		`maintenance_backlog_oldest_age_seconds{worker="w"} 3`, `service_name="caretaker"`, `service_version="v1"`, "go_goroutines",
	} {
		assert.That(t, strings.Contains(got, want), "%s is missing", want)
	}
	assert.That(t, !strings.Contains(got, "otel_scope"), "metrics bear labels of the scope")
}

func TestStart_TheServiceNameOfTheEnvironmentWins(t *testing.T) {
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	got := scrape(t, start(t, Config{}))
	assert.That(t, strings.Contains(got, `service_name="mine"`), "OTEL_SERVICE_NAME was ignored")
}

func TestStart_SendsTracesToTheEndpointOfTheEnvironment(t *testing.T) {
	received := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.URL.Path }))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	telemetry := assert.Must(Start(t.Context(), Config{Traces: true}))(t)
	_, span := otel.Tracer("test").Start(t.Context(), "maintenance.run")
	span.End()
	assert.NoError(t, telemetry.Shutdown(t.Context()))
	assert.Equal(t, <-received, "/v1/traces", "got a request for")
}

func TestStart_NamesTheVariableThatItDoesNotUnderstand(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "pigeon")
	if _, err := Start(t.Context(), Config{Traces: true}); err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_EXPORTER") {
		t.Errorf("got %v", err)
	}
}

func TestShutdown_DoesNotWaitForADeadCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "200")
	telemetry := assert.Must(Start(t.Context(), Config{Traces: true, Metrics: true}))(t)
	_, span := otel.Tracer("test").Start(t.Context(), "maintenance.run")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) //nolint:gocritic // elapses: the collector never answers
	defer cancel()
	if err := telemetry.Shutdown(ctx); err == nil {
		t.Error("got no error for what was lost")
	}
}

func TestStart_DisabledGivesNoTraces(t *testing.T) {
	telemetry := start(t, Config{Disabled: true})
	_, span := otel.Tracer("test").Start(t.Context(), "maintenance.run")
	span.End()
	assert.That(t, !span.SpanContext().IsValid(), "there is a trace")
	got := scrape(t, telemetry)
	assert.That(t, strings.Contains(got, "go_goroutines"), "the metrics of Go's runtime are missing")
}

// line logs one line and parses it.
func line(t *testing.T, log func(ctx context.Context, logger *slog.Logger)) map[string]any {
	t.Helper()
	ctx, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "span")
	defer span.End()
	var out bytes.Buffer
	log(ctx, NewLogger(&out, "info", ""))
	if out.Len() == 0 {
		return nil
	}
	got := map[string]any{}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	n := strings.Count(out.String(), "trace_id")
	assert.That(t, n <= 1, "trace_id stands %d times in %s", n, out.String())
	return got
}

func TestNewLogger_AddsTheTraceOfTheContext(t *testing.T) {
	t.Parallel()
	got := line(t, func(ctx context.Context, logger *slog.Logger) {
		logger.With("worker", "w").InfoContext(ctx, "run finished", "duration", 1500*time.Millisecond)
	})
	if id, _ := got["trace_id"].(string); len(id) != 32 || got["worker"] != "w" || got["duration"] != "1.5s" {
		t.Errorf("got %v", got)
	}
}

func TestNewLogger_KeepsATraceThatIsThere(t *testing.T) {
	t.Parallel()
	for _, got := range []map[string]any{
		line(t, func(ctx context.Context, logger *slog.Logger) { logger.InfoContext(ctx, "a", "trace_id", "mine") }),
		line(t, func(ctx context.Context, logger *slog.Logger) { logger.With("trace_id", "mine").InfoContext(ctx, "a") }),
	} {
		assert.That(t, got["trace_id"] == "mine", "got %v", got)
	}
}

func TestNewLogger_HasLevels(t *testing.T) {
	t.Parallel()
	got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.DebugContext(ctx, "a") })
	assert.That(t, got == nil, "got %v", got)
}

func TestIdentity_TellsReplicasApart(t *testing.T) {
	t.Parallel()
	who := assert.Must(identity(t.Context(), Config{Version: "v1", Instance: "host/1/abc"}))(t)
	for key, want := range map[attribute.Key]string{"service.name": "caretaker", "service.version": "v1", "service.instance.id": "host/1/abc"} {
		if got, _ := who.Set().Value(key); got.AsString() != want {
			t.Errorf("%s is %q, want %q", key, got.AsString(), want)
		}
	}
	assert.That(t, who.SchemaURL() != "", "no schema URL")
}

func TestStart_TakesThePropagatorsThatAreAskedFor(t *testing.T) {
	const w3c, b3 = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"
	for names, want := range map[string]string{
		"": w3c[3:35], "none": "", "b3": b3[:32], "b3, pigeon": b3[:32], "tracecontext,baggage": w3c[3:35], "pigeon": w3c[3:35], "baggage": "",
	} {
		var out bytes.Buffer
		start(t, Config{Disabled: true, Propagators: names, Logger: NewLogger(&out, "info", "")})
		ctx := otel.GetTextMapPropagator().Extract(t.Context(), propagation.MapCarrier{"traceparent": w3c, "b3": b3})
		got := ""
		if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
			got = span.TraceID().String()
		}
		assert.That(t, got == want, "%q: trace %q, want %q", names, got, want)
		if warned := strings.Contains(out.String(), "OTEL_PROPAGATORS: unknown propagator: pigeon"); warned != strings.Contains(names, "pigeon") {
			t.Errorf("%q: the log is %q", names, out.String())
		}
	}
}

func TestHandler_AScraperThatHangsUpIsNoTrouble(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := errorLog{NewLogger(&out, "info", "")}
	log.Println("error encoding and sending metric family:", &net.OpError{Op: "write", Err: syscall.EPIPE})
	assert.That(t, out.Len() == 0, "got %s", out.String())
	log.Println("error gathering metrics:", errors.New("two of a name"))
	assert.That(t, strings.Contains(out.String(), "two of a name"), "got %s", out.String())
}

func TestFilter_LeavesOutWithheldSpansAndQuietRootsThatHaveNotFailed(t *testing.T) {
	t.Parallel()
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	for name, test := range map[string]struct {
		span           string
		ctx            context.Context
		fail, withheld bool
		sent           int
	}{
		"quiet":                          {span: "GetStatus", ctx: t.Context()},
		"quiet, failed":                  {span: "GetStatus", ctx: t.Context(), fail: true, sent: 1},
		"quiet, part of another's trace": {span: "GetStatus", ctx: trace.ContextWithSpanContext(t.Context(), remote), sent: 1},
		"batch":                          {span: "maintenance.batch", ctx: t.Context(), sent: 1},
		"withheld":                       {span: "maintenance.batch", ctx: t.Context(), fail: true, withheld: true},
	} {
		spans := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(filter{spans, []string{"GetStatus"}}))
		_, span := provider.Tracer("test").Start(test.ctx, test.span)
		if test.fail {
			span.SetStatus(codes.Error, "UNAVAILABLE")
		}
		span.SetAttributes(attribute.Bool(dropSpanKey, test.withheld))
		span.End()
		assert.Equal(t, len(spans.Ended()), test.sent, name)
	}
}

func TestStart_WithoutAnExporterSpansHaveIdsAndCostNothing(t *testing.T) {
	start(t, Config{})
	_, span := otel.Tracer("test").Start(t.Context(), "span")
	if !span.SpanContext().IsValid() || span.IsRecording() {
		t.Errorf("valid %v, recording %v", span.SpanContext().IsValid(), span.IsRecording())
	}
}
