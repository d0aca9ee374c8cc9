package servicetest

import (
	"slices"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/service/run"
)

// Tracing records the spans of what is opened and made after it. Its test must not run in parallel with others: the
// provider is the process's.
func Tracing(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithIDGenerator(run.SpanIDs{})))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return spans
}

// Named are the ended spans of a name, without those that are not sent.
func Named(spans *tracetest.SpanRecorder, name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool {
		return s.Name() != name || HasAttribute(s, "maintenance.withheld")
	})
}

// WantAttributes fails the test unless a span has these attributes.
func WantAttributes(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]string) {
	t.Helper()
	for key, value := range want {
		i := slices.IndexFunc(span.Attributes(), func(a attribute.KeyValue) bool { return string(a.Key) == key })
		if i < 0 || span.Attributes()[i].Value.String() != value {
			t.Errorf("span %s: %v, want %s = %s", span.Name(), span.Attributes(), key, value)
		}
	}
}

// HasAttribute is whether a span has an attribute.
func HasAttribute(s sdktrace.ReadOnlySpan, key string) bool { return Attribute(s, key) != "" }

// Attribute is the value of an attribute of a span, "" if it has none.
func Attribute(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}
