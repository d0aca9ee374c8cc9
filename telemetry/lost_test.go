package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func lostIn(text *bytes.Buffer) *lost {
	return &lost{logger: slog.New(slog.NewTextHandler(text, nil))}
}

func TestLost_IsSaidOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := &bytes.Buffer{}
		l := lostIn(text)
		for range 25 {
			l.Handle(errors.New("connection refused"))
			time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 3 || strings.Contains(lines[0], "left_out") || !strings.Contains(lines[1], "left_out=11") {
			t.Errorf("got %s", text)
		}
	})
}

func TestLost_NamesTheSignalAndEachHasItsOwnMinute(t *testing.T) {
	text := &bytes.Buffer{}
	l := lostIn(text)
	for range 3 {
		l.Handle(errors.New("failed to upload metrics: failed to send metrics to http://localhost:4318/v1/metrics: 404 Not Found"))
		l.Handle(errors.New("traces export: connection refused"))
		l.Handle(errors.New("partial resource: missing value: [bad]"))
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	assert.Require(t, len(lines) == 3, "got %s", text)
	for i, want := range []string{`msg="telemetry was lost" signal=metrics`, `msg="telemetry was lost" signal=traces`, `msg="OpenTelemetry warning"`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %s, want %s", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "OTEL_METRICS_EXPORTER=none") || strings.Contains(lines[1], "advice") {
		t.Errorf("the metrics alone have advice: %s", text)
	}
}

func TestLost_SamplersThatAreNotUnderstoodAreToldWithTheSettings(t *testing.T) {
	text := &bytes.Buffer{}
	handled := 0
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		handled++
		lostIn(text).Handle(err)
	}))
	for sampler, share := range map[string]string{"foo": "", "traceidratio": "much", "parentbased_traceidratio": "-1"} {
		t.Setenv("OTEL_TRACES_SAMPLER", sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", share)
		assert.NoError(t, sdktrace.NewTracerProvider().Shutdown(t.Context()))
	}
	assert.That(t, handled == 3 && text.Len() == 0, "%d errors of the SDK, said was %s", handled, text)
}
