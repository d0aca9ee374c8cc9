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
	"time"

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

func TestErrors_WithoutAnOriginBearTheStackOfTheLine(t *testing.T) {
	t.Parallel()
	for _, log := range []func(ctx context.Context, logger *slog.Logger){
		func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "error", "text") },
		func(ctx context.Context, logger *slog.Logger) { logger.Log(ctx, slog.LevelError, "a") },
	} {
		stack, _ := line(t, log)["stack"].(string)
		if !strings.HasPrefix(stack, "github.com/caretaker-go/caretaker/telemetry.TestErrors_WithoutAnOriginBearTheStackOfTheLine.func") {
			t.Errorf("got %q", stack)
		}
	}
}

func TestStack_IsOfErrorsOnlyAndOnlyOnce(t *testing.T) {
	t.Parallel()
	if got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.WarnContext(ctx, "a", "error", whereItArose()) }); got["stack"] != nil {
		t.Errorf("a warning has %v", got["stack"])
	}
	given := []uintptr{}
	got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.ErrorContext(ctx, "a", "stack", given) })
	if got["stack"] != "" {
		t.Errorf("got %v", got["stack"])
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
	if got["time"] != "2026-11-21T10:00:00Z" {
		t.Errorf("time %v", got["time"])
	}
	if got := line(t, func(ctx context.Context, logger *slog.Logger) { logger.InfoContext(ctx, "a", "starts_at", at) }); got["starts_at"] != "2026-11-21T10:00:00Z" {
		t.Errorf("starts_at %v", got["starts_at"])
	}
}
