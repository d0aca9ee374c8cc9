package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// lostInterval is how often it is said at most that telemetry of a signal is lost: exporters say so at every try, every
// few seconds, as long as a collector is down.
const lostInterval = time.Minute

// mostTexts is how many are remembered.
const mostTexts = 100

// lost says in the log what could not be exported, of traces and metrics each by itself: who has a collector that takes
// traces alone still hears of traces that are lost. What else OpenTelemetry says comes once a minute for each text.
type lost struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]*tally
}

// tally is when one signal's loss was said last, and how many errors have not been told since.
type tally struct {
	at   time.Time
	left int
}

// Handle is called by OpenTelemetry.
func (l *lost) Handle(err error) {
	signal := signalOf(err)
	if signal == "" && aboutSampler(err) {
		// Who has read the settings has said so, with the variable's name.
		return
	}
	about := signal
	if about == "" {
		about = err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.said[about]
	if before != nil && time.Since(before.at) < lostInterval {
		before.left++
		return
	}
	attrs := []any{"error", err.Error()}
	if before != nil && before.left > 0 {
		attrs = append(attrs, "left_out", before.left)
	}
	if len(l.said) >= mostTexts {
		// Texts with changing parts must not fill the memory.
		l.said = nil
	}
	if l.said == nil {
		l.said = map[string]*tally{}
	}
	l.said[about] = &tally{at: time.Now()}
	ctx := context.Background()
	switch signal {
	case "":
		l.logger.WarnContext(ctx, "OpenTelemetry warns", attrs...)
	case "metrics":
		attrs = append(attrs, "advice", "OTEL_METRICS_EXPORTER=none sends traces alone; Prometheus has the metrics in any case")
		fallthrough
	default:
		l.logger.WarnContext(ctx, "telemetry was lost", append([]any{"signal", signal}, attrs...)...)
	}
}

// signalOf is what an error says has been lost, "" if nothing: OTLP's exporters say it in words alone.
func signalOf(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "upload metrics"):
		return "metrics"
	case strings.Contains(text, "traces export"):
		return "traces"
	}
	return ""
}

// aboutSampler says whether an error is the SDK's about OTEL_TRACES_SAMPLER or its argument.
func aboutSampler(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "unsupported sampler") || strings.HasPrefix(text, "parsing sampler argument") ||
		strings.HasPrefix(text, "invalid trace ID ratio")
}
