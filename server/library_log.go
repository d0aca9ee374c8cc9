package server

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"google.golang.org/grpc/grpclog"
)

// LogErrorsOfGRPC has what gRPC says of errors written by the default logger: by itself it writes to the standard error. To
// be called before anything else of gRPC is used.
func LogErrorsOfGRPC() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, grpcErrors{}))
}

type grpcErrors struct{}

// Write takes one line, behind its time and level.
func (grpcErrors) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(strings.TrimSpace(string(line)), "ERROR: ")
	slog.Default().WarnContext(context.Background(), "gRPC complains", "error", text)
	return len(line), nil
}
