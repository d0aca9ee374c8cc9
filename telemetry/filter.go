package telemetry

import (
	"slices"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// dropSpanKey is an attribute that prevents the export of a span.
const dropSpanKey = "maintenance.withheld"

// filter drops withheld spans when they end. It also drops root spans with quiet names unless they
// failed. It keeps no state: the code that starts such spans must give them no children.
type filter struct {
	sdktrace.SpanProcessor
	quiet []string
}

// OnEnd passes on the spans to export.
func (f filter) OnEnd(span sdktrace.ReadOnlySpan) {
	for _, a := range span.Attributes() {
		if a.Key == dropSpanKey && a.Value.AsBool() {
			return
		}
	}
	failed := span.Status().Code == codes.Error
	if !failed && !span.Parent().IsValid() && slices.Contains(f.quiet, span.Name()) {
		return
	}
	f.SpanProcessor.OnEnd(span)
}
