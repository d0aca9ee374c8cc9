package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// originated is an error that knows where it arose.
type originated struct{ callers []uintptr }

func (*originated) Error() string { return "broken" }

func (o *originated) Callers() []uintptr { return o.callers }

func whereItArose() error {
	callers := make([]uintptr, 10)
	return &originated{callers[:runtime.Callers(1, callers)]}
}

func TestErrors_BearTheStackOfTheirOrigin(t *testing.T) {
	t.Parallel()
	err := errors.Join(errors.New("first"), fmt.Errorf("on the way: %w", whereItArose()))
	got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "error", err) })
	stack, _ := got["stack"].(string)
	if !strings.HasPrefix(stack, "github.com/caretaker-go/caretaker/telemetry.whereItArose (log_test.go:") || strings.Contains(stack, "/log_test.go") {
		t.Errorf("got %q", stack)
	}
}

func TestStack_IsOfErrorsWithAnOriginOnly(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]func(ctx context.Context, logger *slog.Logger){
		"a warning":                func(ctx context.Context, logger *slog.Logger) { logger.WarnContext(ctx, "a", "error", whereItArose()) },
		"a text":                   func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "error", "text") },
		"an error without origin":  func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "error", os.ErrNotExist) },
		"an error without a stack": func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "error", &originated{}) },
	} {
		_, has := line(t, log)["stack"]
		assert.That(t, !has, "%s has a stack", name)
	}
}

func TestNewLogger_WritesTextWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	null := assert.Must(os.OpenFile(os.DevNull, os.O_WRONLY, 0))(t)
	defer func() { _ = null.Close() }()
	for format, want := range map[string]string{"text": "level=INFO msg=a", "json": `"level":"INFO","msg":"a"`, "": `"level":"INFO","msg":"a"`} {
		var out bytes.Buffer
		NewLogger(&out, "info", format).Info("a")
		assert.That(t, strings.Contains(out.String(), want), "%s: got %s", format, out.String())
	}
	assert.That(t, !isTerminal(null) && !isTerminal(&bytes.Buffer{}), "what is no terminal is taken for one")
	if terminal, err := os.Open("/dev/ptmx"); err == nil {
		defer func() { _ = terminal.Close() }()
		assert.That(t, isTerminal(terminal), "a terminal is not seen")
	}
}

func TestTimes_AreInUTCWhereverTheMachineIs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 2, 0, 0, 0, time.FixedZone("here", -8*3600))
	got := line(t, func(ctx context.Context, logger *slog.Logger) {
		_ = logger.Handler().Handle(ctx, slog.NewRecord(at, slog.LevelInfo, "a", 0))
	})
	assert.Equal(t, got["time"], "2026-11-21T10:00:00Z", "time")
	if got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.InfoContext(ctx, "a", "starts_at", at) }); got["starts_at"] != "2026-11-21T10:00:00Z" {
		t.Errorf("starts_at %v", got["starts_at"])
	}
}

func lostIn(text *bytes.Buffer) *lost {
	return newLost(slog.New(slog.NewTextHandler(text, nil)))
}

func TestLost_IsSaidOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		text := &bytes.Buffer{}
		l := lostIn(text)
		for range 25 {
			l.Handle(errors.New("connection refused"))
			time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		assert.That(t, len(lines) == 3 && !strings.Contains(lines[0], "left_out") &&
			strings.Contains(lines[1], "left_out=11"), "got %s", text)
	})
}

func TestLost_NamesTheSignalAndEachHasItsOwnMinute(t *testing.T) {
	t.Parallel()
	text := &bytes.Buffer{}
	l := lostIn(text)
	for range 3 {
		l.Handle(errors.New("failed to upload metrics: failed to send metrics to http://localhost:4318/v1/metrics: 404 Not Found"))
		l.Handle(errors.New("traces export: connection refused"))
		l.Handle(errors.New("partial resource: missing value: [bad]"))
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	assert.Require(t, len(lines) == 3, "got %s", text)
	for i, want := range []string{`msg="telemetry lost" signal=metrics`, `msg="telemetry lost" signal=traces`, `msg="OpenTelemetry warning"`} {
		assert.That(t, strings.Contains(lines[i], want), "line %d is %s, want %s", i, lines[i], want)
	}
	assert.That(t, strings.Contains(lines[0], "OTEL_METRICS_EXPORTER=none") &&
		!strings.Contains(lines[1], "advice"), "the metrics alone have advice: %s", text)
}

func TestLost_SamplersThatAreNotUnderstoodAreReported(t *testing.T) {
	text := &bytes.Buffer{}
	otel.SetErrorHandler(lostIn(text))
	for sampler, share := range map[string]string{"foo": "", "traceidratio": "much", "parentbased_traceidratio": "-1"} {
		t.Setenv("OTEL_TRACES_SAMPLER", sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", share)
		assert.NoError(t, sdktrace.NewTracerProvider().Shutdown(t.Context()))
	}
	assert.That(t, strings.Count(text.String(), `msg="OpenTelemetry warning"`) == 3, "said was %s", text)
}
