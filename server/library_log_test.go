package server

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestGRPCErrors_AreLinesOfTheLog(t *testing.T) {
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&said, nil)))
	defer slog.SetDefault(before)
	assert.Must((grpcErrors{}).Write([]byte("2026/11/22 04:05:06 ERROR: [transport] it broke\n")))(t)
	assert.Contains(t, said.String(), `"level":"WARN","msg":"gRPC error outside a call","error":"[transport] it broke"}`)
}
