// Package telemetry sets up OpenTelemetry, Prometheus and the log for the process.
//
// It guarantees:
//
//   - Nothing is exported, and no connection is tried, unless the standard OTEL variables ask for
//     it. The SDK reads the destination and the amount from them.
//   - Traces always have IDs, so that the log can be searched for a run's trace_id.
//   - Some spans are not exported: see filter. Without an exporter tracing costs nothing.
//   - Names of metrics follow Prometheus's conventions, with units and _total, without scope
//     labels.
//   - Telemetry never stops the service: export failures are logged, and their data is dropped.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	metricsnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Config has the settings of Start. The zero value traces and counts without exporting.
type Config struct {
	// The program's version, and this process's name among its replicas, "" for none.
	Version, Instance string
	// Disabled switches tracing and metrics off, but not the log.
	Disabled bool
	// Traces and Metrics are exported as the OTEL variables say, by default with OTLP.
	Traces, Metrics bool
	// Propagators are names as in OTEL_PROPAGATORS. "" means those of W3C.
	Propagators string
	// Quiet are the names of spans that are exported as roots of traces only if they fail. They
	// belong to calls that clients poll.
	Quiet []string
	// IDs generates the IDs of traces and spans, nil for the SDK's generator.
	IDs trace.IDGenerator
	// Logger gets export failures, nil for none.
	Logger *slog.Logger
}

// Telemetry is the process's telemetry. OpenTelemetry's global providers have its tracers and
// meters.
type Telemetry struct {
	registry *prometheus.Registry
	logger   *slog.Logger
	stops    []stop
}

// stop shuts down a signal's provider, which sends the remaining data.
type stop struct {
	signal string
	do     func(context.Context) error
}

// Start sets up the process's tracing and metrics. It does not wait for exporters to connect. Its
// error names the OTEL variable with the invalid value.
func Start(ctx context.Context, config Config) (*Telemetry, error) {
	t := &Telemetry{registry: prometheus.NewRegistry(), logger: config.Logger}
	if t.logger == nil {
		t.logger = slog.New(slog.DiscardHandler)
	}
	t.registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := newLost(t.logger)
	otel.SetErrorHandler(handler)
	otel.SetLogger(logr.New(sdkLog{handler}))
	otel.SetTextMapPropagator(t.propagator(ctx, config.Propagators))
	if config.Disabled {
		otel.SetTracerProvider(tracenoop.NewTracerProvider())
		otel.SetMeterProvider(metricsnoop.NewMeterProvider())
		return t, nil
	}
	who, err := identity(ctx, config)
	if err != nil {
		return nil, err
	}
	err = errors.Join(t.trace(ctx, config, who), t.count(ctx, config, who))
	if err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	return t, nil
}

// propagator returns the named propagators, W3C's by default. It ignores unknown names.
func (t *Telemetry) propagator(ctx context.Context, named string) propagation.TextMapPropagator {
	w3c := propagation.NewCompositeTextMapPropagator(
		propagation.TraceContext{}, propagation.Baggage{})
	names := strings.FieldsFunc(named, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		return w3c
	}
	propagator, err := autoprop.TextMapPropagator(names...)
	if err != nil {
		t.logger.WarnContext(ctx, "OpenTelemetry variable ignored",
			"error", "OTEL_PROPAGATORS: "+err.Error())
	}
	if propagator == nil {
		return w3c
	}
	return propagator
}

// identity returns the resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override its
// defaults.
func identity(ctx context.Context, config Config) (*resource.Resource, error) {
	own := []attribute.KeyValue{
		semconv.ServiceName("caretaker"), semconv.ServiceVersion(config.Version),
	}
	if config.Instance != "" {
		own = append(own, semconv.ServiceInstanceID(config.Instance))
	}
	who, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(own...), resource.WithFromEnv(),
		resource.WithSchemaURL(semconv.SchemaURL))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("cannot set up the OpenTelemetry resource (check OTEL_RESOURCE_ATTRIBUTES): %w", err)
	}
	return who, nil
}

func (t *Telemetry) trace(ctx context.Context, config Config, who *resource.Resource) error {
	options := []trace.TracerProviderOption{trace.WithResource(who)}
	if config.IDs != nil {
		options = append(options, trace.WithIDGenerator(config.IDs))
	}
	exported := false
	if config.Traces {
		spans, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return fmt.Errorf("cannot set up tracing (check OTEL_TRACES_EXPORTER and "+
				"OTEL_EXPORTER_OTLP_PROTOCOL): %w", err)
		}
		if !autoexport.IsNoneSpanExporter(spans) {
			processor := filter{trace.NewBatchSpanProcessor(spans), config.Quiet}
			options = append(options, trace.WithSpanProcessor(processor))
			exported = true
		}
	}
	if !exported {
		// Only the ID of a trace is used, so record nothing.
		options = append(options, trace.WithSampler(trace.NeverSample()))
	}
	provider := trace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	t.stops = append(t.stops, stop{"traces", provider.Shutdown})
	return nil
}

func (t *Telemetry) count(ctx context.Context, config Config, who *resource.Resource) error {
	pull, err := exporter.New(exporter.WithRegisterer(t.registry), exporter.WithoutScopeInfo(),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return fmt.Errorf("cannot set up Prometheus metrics: %w", err)
	}
	options := []metric.Option{
		metric.WithResource(who), metric.WithReader(pull), metric.WithView(callView()),
	}
	if config.Metrics {
		push, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return fmt.Errorf("cannot set up metrics (check OTEL_METRICS_EXPORTER and "+
				"OTEL_EXPORTER_OTLP_PROTOCOL): %w", err)
		}
		if !autoexport.IsNoneMetricReader(push) {
			options = append(options, metric.WithReader(push))
		}
	}
	provider := metric.NewMeterProvider(options...)
	otel.SetMeterProvider(provider)
	t.stops = append(t.stops, stop{"metrics", provider.Shutdown})
	return nil
}

// callView limits the number of series of calls: by status, and in four buckets. The log has the
// methods.
func callView() metric.View {
	return metric.NewView(metric.Instrument{Name: "rpc.server.*"}, metric.Stream{
		AttributeFilter: attribute.NewAllowKeysFilter("rpc.response.status_code"),
		Aggregation: metric.AggregationExplicitBucketHistogram{
			Boundaries: []float64{.01, .1, 1, 10},
		},
	})
}

// Handler serves the metrics to Prometheus, below /metrics.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{t.logger}, ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 10,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "caretaker: metrics are at /metrics\n")
	})
	return mux
}

// Shutdown sends the remaining data until ctx ends. Its error names the lost signals.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stops {
		if err := stop.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", stop.signal, err))
		}
	}
	return errors.Join(errs...)
}

// errorLog is promhttp's logger.
type errorLog struct{ logger *slog.Logger }

// Println logs metrics that cannot be collected. It ignores disconnected clients.
func (c errorLog) Println(v ...any) {
	for _, part := range v {
		err, _ := part.(error)
		if _, gone := errors.AsType[*net.OpError](err); gone {
			return
		}
	}
	c.logger.Warn("metrics not collected", "error", fmt.Sprint(v...))
}
