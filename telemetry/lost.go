package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"

	"github.com/caretaker-go/caretaker/internal/sparse"
)

// lost logs OpenTelemetry's errors, each at most once a minute, because exporters report one every
// few seconds while a collector is down. Lost traces are one error, lost metrics another, others
// differ by text.
type lost struct{ logger *slog.Logger }

func newLost(logger *slog.Logger) *lost {
	return &lost{slog.New(sparse.New(logger.Handler(), func(r slog.Record) (about string) {
		r.Attrs(func(a slog.Attr) bool {
			about = a.Value.String()
			return false
		})
		return about
	}))}
}

// Handle implements OpenTelemetry's error handler.
func (l *lost) Handle(err error) {
	ctx := context.Background()
	switch signal := signalOf(err); signal {
	case "":
		l.logger.WarnContext(ctx, "OpenTelemetry warning", "error", err.Error())
	case "metrics":
		l.logger.WarnContext(ctx, "telemetry lost", "signal", signal, "error", err.Error(), "advice",
			"to send only traces, set OTEL_METRICS_EXPORTER=none (Prometheus can still scrape the "+
				"metrics)")
	default:
		l.logger.WarnContext(ctx, "telemetry lost", "signal", signal, "error", err.Error())
	}
}

// signalOf returns the signal of an error, "" for none. OTLP's exporters have no error types for
// it.
func signalOf(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "upload metrics"):
		return "metrics"
	case strings.Contains(text, "traces export"):
		return "traces"
	}
	return ""
}

// sdkLog logs the SDK's messages besides errors, such as unreadable variables, which the SDK itself
// writes as text to the standard error. It omits keys and values, because they may be headers and
// addresses with passwords.
type sdkLog struct{ lost *lost }

// sdkWarning is the SDK's level of warnings. Errors are 0. Higher levels are for its developers.
const sdkWarning = 1

// Init implements logr.LogSink.
func (sdkLog) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink, for errors and warnings.
func (sdkLog) Enabled(level int) bool { return level <= sdkWarning }

// Info implements logr.LogSink.
func (l sdkLog) Info(_ int, message string, _ ...any) { l.lost.Handle(errors.New(message)) }

// Error implements logr.LogSink.
func (l sdkLog) Error(err error, message string, _ ...any) {
	l.lost.Handle(fmt.Errorf("%s: %w", message, err))
}

// WithValues implements logr.LogSink.
func (l sdkLog) WithValues(...any) logr.LogSink { return l }

// WithName implements logr.LogSink.
func (l sdkLog) WithName(string) logr.LogSink { return l }
