package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// localKey is the context key of the caller in this process. Calls from the network cannot set it.
type localKey struct{}

// Call makes a unary call in this process, with the roles, limits, audit and errors of a call from
// the network. method is its full name. An error is a gRPC status.
func (s *Server) Call(
	ctx context.Context, from access.Caller, method string, request proto.Message,
) (proto.Message, error) {
	of := &pb.MaintenanceService_ServiceDesc
	name := strings.TrimPrefix(method, "/"+of.ServiceName+"/")
	i := slices.IndexFunc(of.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	if i < 0 {
		return nil, fmt.Errorf("call %s: no such method", method)
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
