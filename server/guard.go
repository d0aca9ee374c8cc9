package server

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/caretaker-go/caretaker/access"
)

// guardUnary lets calls through that their client may make, within the limits of size and rates, and
// records what they change. Nothing of a request is checked before its client.
func (s *Server) guardUnary(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (response any, err error) {
	ctx, client, err := s.identify(ctx)
	if err != nil {
		return nil, err
	}
	entry := s.entryOf(ctx, client, call.FullMethod, request)
	if err := s.allowed(ctx, client, call.FullMethod, request); err != nil {
		// Who may not do something could else fill main with entries that say so.
		if s.rates.refusal(rateKey(ctx, client)) {
			entry.end(ctx, nil, err)
		}
		return nil, err
	}
	if err := s.limits.fits(request); err != nil {
		return nil, err
	}
	if err := s.rates.take(call.FullMethod, rateKey(ctx, client)); err != nil {
		// Not audited: nothing was done, and there may be very many of them.
		return nil, err
	}
	entry.start(ctx)
	response, err = handler(ctx, request)
	entry.end(ctx, response, err)
	return response, err
}

// checkInterval is how often it is checked whether the client of an open stream may still have it.
const checkInterval = time.Second

// guardStream is guardUnary for streams, which change nothing. One that is open ends when its client
// may not have it any more, because a token has expired or was taken back: within checkInterval,
// and before the next message of the client is read.
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
	check := func() error {
		client, err := s.clientOf(ctx)
		if err == nil {
			err = s.allowed(ctx, client, call.FullMethod, nil)
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var checks sync.WaitGroup
	checks.Go(func() { checkUntil(ctx, cancel, check) })
	defer checks.Wait()
	defer cancel(nil)
	err = handler(server, &limited{stream, ctx, func(any) error { return check() }})
	if err != nil {
		// What the handler says of its end is not why.
		err = cmp.Or(check(), err)
	}
	return err
}

// checkUntil ends ctx, by cancel, with the first error of check.
func checkUntil(ctx context.Context, cancel context.CancelCauseFunc, check func() error) {
	ticks := time.NewTicker(checkInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if err := check(); err != nil {
			cancel(err)
		}
	}
}

// nameKey is the key of the name of the client in the context of a call.
type nameKey struct{}

// identify finds out who calls. The name goes into the context, for caller, and into the log.
func (s *Server) identify(ctx context.Context) (context.Context, access.Client, error) {
	client, err := s.clientOf(ctx)
	if err != nil {
		return ctx, client, err
	}
	logging.AddFields(ctx, logging.Fields{"role", client.Role.String()})
	name := s.nameOf(ctx, client)
	if name != "" {
		logging.AddFields(ctx, logging.Fields{"by", name})
	}
	return context.WithValue(ctx, nameKey{}, name), client, nil
}

// clientOf is who calls, by token and certificate.
func (s *Server) clientOf(ctx context.Context) (access.Client, error) {
	given, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		given = ""
	}
	return s.config.Access.Identify(given, certificateOf(ctx))
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

// nameOf is the name of a client: that of its token or certificate, else that in the header, which
// nobody vouches for. Where others have names that are proven it says so.
func (s *Server) nameOf(ctx context.Context, client access.Client) string {
	said := userOf(ctx)
	switch {
	case client.Name != "":
		return printed(client.Name)
	case s.config.Access.Named() && said != "":
		return fmt.Sprintf("shared token (says %q)", said)
	case s.config.Access.Named():
		return "shared token"
	}
	return said
}

// caller is the name of the client, if it has one, and its address.
func caller(ctx context.Context) string {
	if name, _ := ctx.Value(nameKey{}).(string); name != "" {
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
