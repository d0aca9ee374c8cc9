package servicetest

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// Tracing records the spans of what is opened and made after it. Its test must not run in parallel with others: the
// provider is the process's.
func Tracing(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithIDGenerator(spans.IDs{})))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return recorder
}

// Named returns the ended spans of a name, without those that are not sent.
func Named(spans *tracetest.SpanRecorder, name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool {
		return s.Name() != name || HasAttribute(s, "maintenance.withheld")
	})
}

// WantSpan is the first span of a name that has these attributes, "key=value" with or without the
// prefix "maintenance.". The test fails without such a span.
func WantSpan(t *testing.T, spans *tracetest.SpanRecorder, name string, want ...string) sdktrace.ReadOnlySpan {
	t.Helper()
	named := Named(spans, name)
	i := slices.IndexFunc(named, func(s sdktrace.ReadOnlySpan) bool {
		return !slices.ContainsFunc(want, func(pair string) bool {
			key, value, _ := strings.Cut(pair, "=")
			return cmp.Or(Attribute(s, key), Attribute(s, "maintenance."+key)) != value
		})
	})
	assert.Require(t, i >= 0, "no span %s with %q in %v", name, want, named)
	return named[i]
}

// WantAttributes fails the test unless a span has these attributes.
func WantAttributes(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]string) {
	t.Helper()
	for key, value := range want {
		assert.That(t, Attribute(span, key) == value, "span %s: %v, want %s = %s", span.Name(), span.Attributes(), key, value)
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
