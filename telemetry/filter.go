package telemetry

import (
	"slices"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// withheldKey is the attribute of a span that is not to be sent: who ended it has said so.
const withheldKey = "maintenance.withheld"

// filter leaves out, when they end, spans that are marked as withheld, and the roots of quiet
// names, unless they failed. It keeps no state: that nothing is below what it leaves out is up to
// those who make the spans.
type filter struct {
	sdktrace.SpanProcessor
	quiet []string
}

// OnEnd passes on what is to be sent.
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
