package telemetry

import (
	"slices"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// withheldKey is an attribute that keeps a span from being exported.
const withheldKey = "maintenance.withheld"

// filter drops, when they end, withheld spans and those roots with quiet names that have not
// failed. It keeps no state: whoever makes such spans sees to it that they have no children.
type filter struct {
	sdktrace.SpanProcessor
	quiet []string
}

// OnEnd passes on the spans to export.
func (f filter) OnEnd(span sdktrace.ReadOnlySpan) {
	for _, a := range span.Attributes() {
		if a.Key == withheldKey && a.Value.AsBool() {
			return
		}
	}
	failed := span.Status().Code == codes.Error
	if !failed && !span.Parent().IsValid() && slices.Contains(f.quiet, span.Name()) {
		return
	}
	f.SpanProcessor.OnEnd(span)
}
