package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// unary returns the interceptors in the order in which a call passes them. These are log, error
// table, panic recovery, and the guard with roles, size limits, rates and audit. A second recovery
// surrounds the handler, so that the audit has the outcome of a call that panics. Health checks
// require no role.
func (s *Server) unary() []grpc.UnaryServerInterceptor {
	recovering := recovery.UnaryServerInterceptor(recovery.WithRecoveryHandler(recovered))
	return []grpc.UnaryServerInterceptor{
		logging.UnaryServerInterceptor(s.logger(), loggingOptions()...),
		func(
			ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			response, err := handler(withSpans(ctx, call.FullMethod), request)
			return response, answer(ctx, err)
		},
		recovering,
		selector.UnaryServerInterceptor(s.guardUnary, skipHealth()),
		s.nameSelf,
		recovering,
	}
}

// nameSelf adds the name and the identity of the server to an answer.
func (s *Server) nameSelf(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	host, _, _ := strings.Cut(s.config.Service.Replica, "/")
	// It fails only after the header has been sent.
	_ = grpc.SetHeader(ctx, metadata.Pairs(NameHeader, host, IdentityHeader, s.config.Identity))
	return handler(ctx, request)
}

// withSpans enables spans for the operations of a call. For a read-only call it does so only if the
// call belongs to the client's trace, because other read-only calls export no span.
func withSpans(ctx context.Context, method string) context.Context {
	span, _ := trace.SpanFromContext(ctx).(interface{ Parent() trace.SpanContext })
	root := span == nil || !span.Parent().IsValid()
	if root && slices.Contains(ReadOnlyMethods(), strings.TrimPrefix(method, "/")) {
		return ctx
	}
	return spans.WithSpans(ctx)
}

// stream is unary for streams, which also end when the server stops.
func (s *Server) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		logging.StreamServerInterceptor(s.logger(), loggingOptions()...),
		func(
			server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
		) error {
			ctx, cancel := context.WithCancelCause(stream.Context())
			defer cancel(nil)
			defer context.AfterFunc(s.stopping, func() { cancel(context.Cause(s.stopping)) })()
			return answer(ctx, handler(server, &limited{stream, ctx, s.limits.fits}))
		},
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandler(recovered)),
		selector.StreamServerInterceptor(s.guardStream, skipHealth()),
		selector.StreamServerInterceptor(make(slots, s.limits.streams).intercept, skipHealth()),
		selector.StreamServerInterceptor(make(slots, s.limits.streams).intercept, selector.MatchFunc(isHealth)),
	}
}

// limited is a stream with a context of its own. It checks each received message before the handler
// gets the message.
type limited struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // that is how gRPC hands a stream its context
	check func(request any) error
}

// Context implements [grpc.ServerStream].
func (s *limited) Context() context.Context { return s.ctx }

// RecvMsg implements [grpc.ServerStream].
func (s *limited) RecvMsg(request any) error {
	if err := s.ServerStream.RecvMsg(request); err != nil {
		return err
	}
	return s.check(request)
}

// isHealth reports whether a call is a health check.
func isHealth(_ context.Context, call interceptors.CallMeta) bool {
	return call.Service == healthv1.Health_ServiceDesc.ServiceName
}

// skipHealth selects all calls except health checks, which need no role.
func skipHealth() selector.Matcher {
	return selector.MatchFunc(func(ctx context.Context, call interceptors.CallMeta) bool {
		return !isHealth(ctx, call)
	})
}

// recovered turns a panic of a handler into an error that the log shows with its stack.
func recovered(panicked any) error { return fault.NewPanicError(panicked) }

// logger writes one line per call. Handlers add fields with logging.AddFields.
func (s *Server) logger() logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		if routine(ctx, fields) {
			level = logging.LevelDebug
		}
		inUTC(fields)
		s.config.Logger.Log(ctx, slog.Level(level), message, fields...) //nolint:sloglint // the middleware has one message
	})
}

// inUTC converts the times that the middleware formats in the host's time zone.
func inUTC(fields logging.Fields) {
	for i := 0; i+1 < len(fields); i += 2 {
		text, ok := fields[i+1].(string)
		if !ok || fields[i] != "grpc.start_time" && fields[i] != "grpc.request.deadline" {
			continue
		}
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			fields[i+1] = at.UTC().Format(time.RFC3339)
		}
	}
}

// routine reports whether a call is a health check, a reflection call, a successful GetStatus, or a
// successful read of the status page.
func routine(ctx context.Context, fields logging.Fields) bool {
	service, method := field(fields, logging.ServiceFieldKey), field(fields, logging.MethodFieldKey)
	_, onPage := localCaller(ctx)
	reads := method == "GetStatus" || onPage && !rules()["/"+service+"/"+method].changes
	return service == healthv1.Health_ServiceDesc.ServiceName || strings.HasPrefix(service, "grpc.reflection.") ||
		reads && field(fields, "grpc.code") == codes.OK.String()
}

// field returns the text of a field, "" if it is missing.
func field(fields logging.Fields, key string) string {
	i := slices.Index(fields, any(key))
	if i < 0 || i+1 == len(fields) {
		return ""
	}
	text, _ := fields[i+1].(string)
	return text
}

// loggingOptions logs each call once, at its end. It omits the fields for the system, the
// component and the type of method.
func loggingOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithDisableLoggingFields(
			logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
	}
}

// answer converts a handler's error for the client, and adds its text to the call's log line. A line
// of level error also gets the stack.
func answer(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	fields := logging.Fields{"error", strings.TrimSpace(err.Error())}
	converted := clientError(ctx, err)
	var origin interface{ Callers() []uintptr }
	level := logging.DefaultServerCodeToLevel(status.Code(converted))
	if level >= logging.LevelError && errors.As(err, &origin) && len(origin.Callers()) > 0 {
		fields = append(fields, "stack", origin.Callers())
	}
	logging.AddFields(ctx, fields)
	return converted
}

// LogErrorsOfGRPC makes gRPC log errors with the default logger instead of writing text to the
// standard error. Call it before any use of gRPC.
func LogErrorsOfGRPC() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, grpcErrors{}))
}

type grpcErrors struct{}

// Write receives one line with time and level.
func (grpcErrors) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(strings.TrimSpace(string(line)), "ERROR: ")
	slog.Default().WarnContext(context.Background(), "gRPC error outside a call", "error", text)
	return len(line), nil
}
