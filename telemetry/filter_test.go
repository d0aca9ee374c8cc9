package telemetry

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// filtered is a tracer whose spans go through a filter.
func filtered(t *testing.T, quiet ...string) (trace.Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(filter{spans, quiet}))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return provider.Tracer("test"), spans
}

func TestFilter_AWithheldSpanIsNotSent(t *testing.T) {
	t.Parallel()
	tracer, spans := filtered(t)
	ctx, run := tracer.Start(t.Context(), "maintenance.run")
	for i := range 3 {
		_, batch := tracer.Start(ctx, "maintenance.batch")
		batch.SetAttributes(attribute.Bool("maintenance.withheld", i == 1))
		batch.End()
	}
	run.End()
	if sent := spans.Ended(); len(sent) != 3 || sent[2].Name() != "maintenance.run" {
		t.Errorf("got %v", sent)
	}
}

func TestFilter_QuietRootsAreLeftOutUnlessTheyFail(t *testing.T) {
	t.Parallel()
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	for name, test := range map[string]struct {
		ctx  context.Context
		fail bool
		want int
	}{
		"left out":                {ctx: context.Background()},
		"failed":                  {ctx: context.Background(), fail: true, want: 1},
		"part of another's trace": {ctx: trace.ContextWithSpanContext(context.Background(), remote), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, spans := filtered(t, "GetStatus")
			_, call := tracer.Start(test.ctx, "GetStatus")
			if test.fail {
				call.SetStatus(codes.Error, "UNAVAILABLE")
			}
			call.End()
			if got := spans.Ended(); len(got) != test.want {
				t.Errorf("got %v, want %d", got, test.want)
			}
		})
	}
}

func TestStart_WithoutAnExporterSpansHaveIdsAndCostNothing(t *testing.T) {
	start(t, Config{})
	_, span := otel.Tracer("test").Start(t.Context(), "span")
	if !span.SpanContext().IsValid() || span.IsRecording() {
		t.Errorf("valid %v, recording %v", span.SpanContext().IsValid(), span.IsRecording())
	}
}
