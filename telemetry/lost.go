package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// lostInterval is the time between two messages of the same loss: while a collector is down,
// exporters report an error every few seconds.
const lostInterval = time.Minute

// maxTexts is how many texts are remembered.
const maxTexts = 100

// lost logs the errors that OpenTelemetry reports, each once a minute at most: the loss of traces
// and that of metrics as one error each, others by their text.
type lost struct {
	logger *slog.Logger

	mu     sync.Mutex
	logged map[string]*tally
}

// tally is when an error was logged last, and how many have been left out since.
type tally struct {
	at   time.Time
	left int
}

// Handle implements OpenTelemetry's error handler.
func (l *lost) Handle(err error) {
	signal := signalOf(err)
	if signal == "" && aboutSampler(err) {
		return // package config has found it, and knows the variable's name
	}
	left, due := l.due(cmp.Or(signal, err.Error()))
	if !due {
		return
	}
	attrs := []any{"error", err.Error()}
	if left > 0 {
		attrs = append(attrs, "left_out", left)
	}
	ctx := context.Background()
	if signal == "" {
		l.logger.WarnContext(ctx, "OpenTelemetry warning", attrs...)
		return
	}
	if signal == "metrics" {
		attrs = append(attrs, "advice", "OTEL_METRICS_EXPORTER=none sends traces alone; "+
			"Prometheus has the metrics in any case")
	}
	l.logger.WarnContext(ctx, "telemetry was lost", append([]any{"signal", signal}, attrs...)...)
}

// due reports whether an error is to be logged, and how many like it have been left out since the
// last one.
func (l *lost) due(about string) (left int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.logged[about]
	if before != nil && time.Since(before.at) < lostInterval {
		before.left++
		return 0, false
	}
	if before != nil {
		left = before.left
	}
	if len(l.logged) >= maxTexts || l.logged == nil {
		// Texts with changing parts must not fill the memory.
		l.logged = map[string]*tally{}
	}
	l.logged[about] = &tally{at: time.Now()}
	return left, true
}

// signalOf is the signal that an error is about, "" for none. OTLP's exporters have no types for
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

// aboutSampler reports whether an error of the SDK is about OTEL_TRACES_SAMPLER or its argument.
func aboutSampler(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "unsupported sampler") ||
		strings.HasPrefix(text, "parsing sampler argument") ||
		strings.HasPrefix(text, "invalid trace ID ratio")
}

// sdkLog logs what the SDK reports besides errors, such as variables that it cannot read: by itself
// it writes text to the standard error. Keys and values are left out, as they may be headers and
// addresses with passwords.
type sdkLog struct{ lost *lost }

// sdkWarning is the SDK's level of warnings; errors are 0, higher levels are for its developers.
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
