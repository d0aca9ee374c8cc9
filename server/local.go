package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// localKey is the context key of the caller in this process. Calls from the network cannot set it.
type localKey struct{}

// Call makes a unary call in this process: RunBatch for a RunBatchRequest. Roles, limits, audit and
// errors are those of a call from the network. fields are texts of fields of the request. An error is
// a gRPC status.
func (s *Server) Call(
	ctx context.Context, from access.Caller, request proto.Message, fields map[string][]string,
) (proto.Message, error) {
	of := &pb.MaintenanceService_ServiceDesc
	name := string(request.ProtoReflect().Descriptor().Name())
	i := slices.IndexFunc(of.Methods, func(m grpc.MethodDesc) bool { return m.MethodName+"Request" == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown method %s", name)
	}
	request = proto.Clone(request)
	if err := setFields(request, fields); err != nil {
		return nil, clientError(ctx, err)
	}
	address, _ := netip.ParseAddrPort(from.Address) // the zero address if invalid
	ctx = peer.NewContext(context.WithValue(ctx, localKey{}, from),
		&peer.Peer{Addr: net.TCPAddrFromAddrPort(address)})
	decode := func(into any) error {
		if message, ok := into.(proto.Message); ok {
			proto.Merge(message, request)
		}
		return nil
	}
	response, err := of.Methods[i].Handler(&maintenance{service: s.config.Service}, ctx, decode,
		chain(s.unary()))
	message, _ := response.(proto.Message)
	return message, err
}

// setFields sets fields of a request by their texts, in their JSON format. Enums go without their
// prefix: retry. It skips empty texts, and names that are no field.
func setFields(request proto.Message, fields map[string][]string) error {
	for name, texts := range fields {
		field := request.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil || len(texts) == 0 || texts[0] == "" {
			continue
		}
		var value any = texts[0]
		if field.IsList() {
			value = texts
		} else if field.Enum() != nil {
			unset := string(field.Enum().Values().Get(0).Name())
			value = strings.TrimSuffix(unset, "UNSPECIFIED") + strings.ToUpper(texts[0])
		}
		text, err := json.Marshal(map[string]any{name: value})
		given := request.ProtoReflect().New().Interface()
		if err != nil || !utf8.ValidString(strings.Join(texts, "")) || protojson.Unmarshal(text, given) != nil {
			return invalid(name, "%q is not a valid value", strings.Join(texts, " "))
		}
		proto.Merge(request, given)
	}
	return nil
}

// localCaller returns the caller of a call that was made by Call.
func localCaller(ctx context.Context) (access.Caller, bool) {
	from, ok := ctx.Value(localKey{}).(access.Caller)
	return from, ok
}

// chain joins interceptors, the first one outermost.
func chain(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if len(all) == 1 {
		return all[0]
	}
	return func(
		ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		return all[0](ctx, request, call, func(ctx context.Context, request any) (any, error) {
			return chain(all[1:])(ctx, request, call, handler)
		})
	}
}
