package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/caretaker-go/caretaker/service/run"
)

// unary calls go through: log, error table, token, recovery. Health checks are neither logged nor need a token.
func (s *Server) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(s.logger(), loggingOptions()...), notHealth()),
		func(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			response, err := handler(withSpans(ctx, call.FullMethod), request)
			return response, answer(ctx, err)
		},
		selector.UnaryServerInterceptor(auth.UnaryServerInterceptor(s.config.authenticate), notHealth()),
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandler(recovered)),
	}
}

// withSpans lets what a call does have spans. A call that only looks has none below its own, which
// is not sent where it is a root that did not fail.
func withSpans(ctx context.Context, method string) context.Context {
	span, _ := trace.SpanFromContext(ctx).(interface{ Parent() trace.SpanContext })
	root := span == nil || !span.Parent().IsValid()
	if root && slices.Contains(ReadOnlyMethods(), strings.TrimPrefix(method, "/")) {
		return ctx
	}
	return run.WithSpans(ctx)
}

// stream is unary for streams, which end besides when the server stops.
func (s *Server) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		selector.StreamServerInterceptor(logging.StreamServerInterceptor(s.logger(), loggingOptions()...), notHealth()),
		func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			ctx, cancel := context.WithCancelCause(stream.Context())
			defer cancel(nil)
			defer context.AfterFunc(s.stopping, func() { cancel(context.Cause(s.stopping)) })()
			return answer(ctx, handler(server, stoppable{stream, ctx}))
		},
		selector.StreamServerInterceptor(auth.StreamServerInterceptor(s.config.authenticate), notHealth()),
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandler(recovered)),
	}
}

// stoppable is a stream with a context of ours.
type stoppable struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // that is how gRPC hands a stream its context
}

// Context ends with the call or the server.
func (s stoppable) Context() context.Context { return s.ctx }

func notHealth() selector.Matcher {
	return selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool {
		return call.Service != healthv1.Health_ServiceDesc.ServiceName
	})
}

func recovered(panicked any) error { return run.Panicked(panicked) }

// logger writes the one line of a call. What handlers know besides, they add with logging.AddFields.
func (s *Server) logger() logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		if ofReflection(fields) {
			level = logging.LevelDebug
		}
		inUTC(fields)
		s.config.Logger.Log(ctx, slog.Level(level), message, fields...) //nolint:sloglint // the middleware has one message
	})
}

// inUTC is for the times that the middleware has put into words by the zone of the host.
func inUTC(fields logging.Fields) {
	for i := 0; i+1 < len(fields); i += 2 {
		text, is := fields[i+1].(string)
		if !is || fields[i] != "grpc.start_time" && fields[i] != "grpc.request.deadline" {
			continue
		}
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			fields[i+1] = at.UTC().Format(time.RFC3339)
		}
	}
}

// ofReflection says whether a call only asked what calls there are, as grpcurl does before each of its own.
func ofReflection(fields logging.Fields) bool {
	i := slices.Index(fields, any(logging.ServiceFieldKey))
	if i < 0 || i+1 == len(fields) {
		return false
	}
	name, _ := fields[i+1].(string)
	return strings.HasPrefix(name, "grpc.reflection.")
}

func loggingOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
	}
}

// answer turns a handler's error into the client's, and keeps its text for the log.
func answer(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	fields := logging.Fields{"error", strings.TrimSpace(err.Error())}
	var origin interface{ Callers() []uintptr }
	if errors.As(err, &origin) {
		fields = append(fields, "stack", origin.Callers())
	}
	logging.AddFields(ctx, fields)
	return clientError(ctx, err)
}
