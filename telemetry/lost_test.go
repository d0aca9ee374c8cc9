package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLost_IsSaidOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := &bytes.Buffer{}
		l := &lost{logger: slog.New(slog.NewTextHandler(text, nil))}
		for range 25 {
			l.Handle(errors.New("connection refused"))
			time.Sleep(5 * time.Second)
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 3 || strings.Contains(lines[0], "left_out") || !strings.Contains(lines[1], "left_out=11") {
			t.Errorf("got %s", text)
		}
	})
}
