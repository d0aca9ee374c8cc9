package server

import (
	"context"
	"crypto/x509"
	"net"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/caretaker-go/caretaker/access"
)

// guardUnary lets calls through that their client may make, within the limits of rates, and records
// what they change.
func (s *Server) guardUnary(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (response any, err error) {
	ctx, client, err := s.identify(ctx)
	if err != nil {
		return nil, err
	}
	if err = s.allowed(ctx, client, call.FullMethod, request); err == nil {
		if err = s.rates.take(call.FullMethod, rateKey(ctx, client)); err != nil {
			// Not audited: nothing was done, and there may be very many of them.
			return nil, err
		}
		response, err = handler(ctx, request)
	}
	s.audit(ctx, client, call.FullMethod, request, response, err)
	return response, err
}

// guardStream is guardUnary for streams, which change nothing.
func (s *Server) guardStream(
	server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	ctx, client, err := s.identify(stream.Context())
	if err == nil {
		err = s.allowed(ctx, client, call.FullMethod, nil)
	}
	if err != nil {
		return err
	}
	return handler(server, stoppable{stream, ctx})
}

// clientKey is the key of the client in the context of a call.
type clientKey struct{}

// identify finds out who calls. The client goes into the context, for caller, and into the log.
func (s *Server) identify(ctx context.Context) (context.Context, access.Client, error) {
	given, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		given = ""
	}
	client, err := s.config.Access.Identify(given, certificateOf(ctx))
	if err != nil {
		return ctx, client, err
	}
	logging.AddFields(ctx, logging.Fields{"role", client.Role.String()})
	if name := nameIn(ctx, client); name != "" {
		logging.AddFields(ctx, logging.Fields{"by", name})
	}
	return context.WithValue(ctx, clientKey{}, client), client, nil
}

// certificateOf is the verified certificate of the client, nil if it has none.
func certificateOf(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// addressOf is the client's address.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}

// nameIn is the name of a client: that of its token or certificate, else that in the header, which
// nobody vouches for.
func nameIn(ctx context.Context, client access.Client) string {
	if client.Name != "" {
		return printed(client.Name)
	}
	return userOf(ctx)
}

// caller is the name of the client, if it has one, and its address.
func caller(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(access.Client)
	if name := nameIn(ctx, client); name != "" {
		return name + " at " + addressOf(ctx)
	}
	return addressOf(ctx)
}

// rateKey is what calls are counted by: a name that is proven, else the host.
func rateKey(ctx context.Context, client access.Client) string {
	if client.Name != "" {
		return "name " + client.Name
	}
	host, _, err := net.SplitHostPort(addressOf(ctx))
	if err != nil {
		return "host " + addressOf(ctx)
	}
	return "host " + host
}
