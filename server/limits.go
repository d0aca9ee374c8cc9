package server

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// limits are the limits of connections and calls. They are far above normal use, and protect the
// server from misbehaving clients.
type limits struct {
	// message is the maximum size of a request in bytes: a larger request gets an error with
	// ErrorInfo. gRPC itself refuses requests above read, without ErrorInfo.
	message, read int
	// connections is the maximum number of connections. Further ones wait until one ends.
	connections int
	// calls is the maximum of concurrent calls per connection. Further ones wait at the client.
	calls uint32
	// streams is the maximum number of open streams, and of health checks, open to all clients.
	streams int
	// handshake is the timeout for setting up a connection, with TLS.
	handshake time.Duration
	// idle is the time after which a connection without calls is closed. After age, a connection
	// with calls accepts no new ones. Clients reconnect by themselves and present their certificate
	// again.
	idle, age time.Duration
	// rate limits a client's calls of RunBatch per second, and separately of PlanDeletion. burst is
	// how many it may make at once. A client is a verified name, otherwise a host.
	rate  rate.Limit
	burst int
	// refusals is how many refused calls of a client are audited per second, refusalBurst how many
	// at once. Other refused calls are only logged.
	refusals     rate.Limit
	refusalBurst int
}

// usualLimits returns the limits of every server.
func usualLimits() limits {
	return limits{
		message: 1 << 20, read: 8 << 20, connections: 1000, calls: 250, streams: 1000,
		handshake: 10 * time.Second, idle: 15 * time.Minute, age: time.Hour,
		rate: 20, burst: 200,
		refusals: rate.Every(6 * time.Second), refusalBurst: 20,
	}
}

const (
	// The server pings a client that waits for a run, to notice one that has vanished.
	pingInterval, pingTimeout = time.Minute, 20 * time.Second
	// minClientPing is the shortest interval between a client's pings.
	minClientPing = 10 * time.Second
)

// options returns the limits that gRPC enforces.
func (l limits) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(markingCodec{encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(l.read), grpc.MaxConcurrentStreams(l.calls),
		grpc.ConnectionTimeout(l.handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: l.idle, MaxConnectionAge: l.age,
			Time: pingInterval, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(
			keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	}
}

// maxText is the maximum length of a text in a request, in bytes. The text goes into messages, the
// log and the audit.
const maxText = 2 << 10

// fits refuses requests that cannot be decoded, are too large, or have too long a text.
func (l limits) fits(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return nil
	}
	text, marked := bytes.CutPrefix(message.ProtoReflect().GetUnknown(), markTag())
	if marked {
		cause, _ := protowire.ConsumeString(text)
		return fmt.Errorf("%s: %w", cause, &fault.RefusedError{
			Reason: invalidArgument,
			Text: "the request cannot be decoded: check that the client uses the server's version of " +
				"the API, and that all strings are valid UTF-8",
		})
	}
	if size := proto.Size(message); size > l.message {
		return &fault.RefusedError{
			Reason: "MESSAGE_TOO_LARGE", Text: fmt.Sprintf("the request has %d bytes, but the limit is %d", size, l.message),
			Metadata: map[string]string{"bytes": strconv.Itoa(size), "limit": strconv.Itoa(l.message)},
		}
	}
	var long error
	message.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.StringKind && !f.IsList() && len(v.String()) > maxText {
			long = invalid(string(f.Name()), "must have at most %d bytes", maxText)
		}
		return long == nil
	})
	return long
}

// markTag returns the tag of the field that marks an undecodable request. Its text is the cause.
func markTag() []byte {
	return protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.BytesType)
}

// markingCodec decodes invalid protobuf to an empty request with a mark. fits refuses the request
// after the client's authentication, so that the call is logged. gRPC would refuse it before.
type markingCodec struct{ encoding.CodecV2 }

// Unmarshal implements [encoding.CodecV2].
func (c markingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	request, ok := v.(proto.Message)
	if _, health := v.(*healthv1.HealthCheckRequest); err == nil || !ok || health {
		return err
	}
	proto.Reset(request)
	request.ProtoReflect().SetUnknown(protowire.AppendString(markTag(), err.Error()))
	return nil
}

// slots limits the number of open streams.
type slots chan struct{}

// intercept refuses a stream above the limit.
func (s slots) intercept(
	server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	select {
	case s <- struct{}{}:
		defer func() { <-s }()
		return handler(server, stream)
	default:
		return &fault.RefusedError{
			Reason: "STREAMS_BUSY", Retry: time.Second,
			Text: fmt.Sprintf("%d streams are open, which is the server's limit: close a stream, or poll "+
				"the run instead", cap(s)),
		}
	}
}

// rates counts the calls of each rate-limited client.
type rates struct {
	limits
	access.Rates
}

// take counts a call, and refuses it above the limit.
func (r *rates) take(method, client string) error {
	if method != pb.MaintenanceService_RunBatch_FullMethodName &&
		method != pb.MaintenanceService_PlanDeletion_FullMethodName {
		return nil
	}
	// Allow, not Reserve: canceling a reservation returns no tokens once a later one exists.
	bucket := r.Bucket(method+" "+client, r.rate, r.burst)
	if bucket.Allow() {
		return nil
	}
	missing := max(1-bucket.Tokens(), 0)
	wait := max(time.Duration(missing/float64(r.rate)*float64(time.Second)), time.Millisecond)
	return &fault.RefusedError{
		Reason: "RATE_LIMITED", Retry: wait,
		Text: fmt.Sprintf("the limit for this method is %g calls per second: retry in %s", float64(r.rate),
			wait.Round(time.Millisecond)),
	}
}

// refusal counts a refused call, and reports whether to audit it.
func (r *rates) refusal(client string) bool {
	return r.Bucket("refused "+client, r.refusals, r.refusalBurst).Allow()
}
