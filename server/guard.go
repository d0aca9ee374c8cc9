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

// guardUnary admits calls that their client may make, within the limits of size and rates, and
// audits changes. It authenticates the client before it checks anything else of a request.
func (s *Server) guardUnary(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (response any, err error) {
	ctx, client, err := s.identify(ctx)
	if err != nil {
		return nil, err
	}
	entry := s.entryOf(ctx, client, call.FullMethod, request)
	if err := s.allowed(ctx, client, call.FullMethod, request); err != nil {
		// Otherwise a client without permission could fill main with such entries.
		if s.rates.refusal(rateKey(ctx, client)) {
			entry.end(ctx, nil, err)
		}
		return nil, err
	}
	if err := s.limits.fits(request); err != nil {
		return nil, err
	}
	if err := s.rates.take(call.FullMethod, rateKey(ctx, client)); err != nil {
		// Rate-limited calls are not audited. They changed nothing, and may be very many.
		return nil, err
	}
	entry.start(ctx)
	response, err = handler(ctx, request)
	entry.end(ctx, response, err)
	return response, err
}

// checkInterval is how often the server checks that the client of an open stream still has access.
const checkInterval = time.Second

// guardStream is guardUnary for streams, which change nothing. An open stream ends when its client
// loses access, because its token has expired or was revoked. The check runs every checkInterval
// and before the server reads the client's next message.
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
		// The handler's own error does not explain the end of the stream.
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

// nameKey is the context key of the client's name.
type nameKey struct{}

// identify authenticates the client and puts its name into the context and the log.
func (s *Server) identify(ctx context.Context) (context.Context, access.Client, error) {
	client, err := s.clientOf(ctx)
	if err != nil {
		return ctx, client, err
	}
	logging.AddFields(ctx, logging.Fields{"role", client.Role.String()})
	if from, ok := localCaller(ctx); ok {
		logging.AddFields(ctx, logging.Fields{"source", from.Source})
	}
	name := s.nameOf(ctx, client)
	if name != "" {
		logging.AddFields(ctx, logging.Fields{"by", name})
	}
	return context.WithValue(ctx, nameKey{}, name), client, nil
}

// clientOf returns the client that the token and the certificate identify.
func (s *Server) clientOf(ctx context.Context) (access.Client, error) {
	if from, ok := localCaller(ctx); ok {
		return from.Client, nil
	}
	given, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		given = ""
	}
	return s.config.Access.Identify(given, certificateOf(ctx))
}

// certificateOf returns the verified certificate of the client, nil if it has none.
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

// addressOf returns the client's address.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}

// nameOf returns the client's name from its token or certificate, otherwise from the header, which
// is unverified. If other clients have verified names, the result marks the name as unverified.
func (s *Server) nameOf(ctx context.Context, client access.Client) string {
	said := userOf(ctx)
	switch {
	case client.Name != "":
		return printed(client.Name)
	case s.config.Access.Named() && said != "":
		return fmt.Sprintf("shared token (unverified name %q)", said)
	case s.config.Access.Named():
		return "shared token"
	}
	return said
}

// caller returns the client's address, and its name if it has one.
func caller(ctx context.Context) string {
	if name, _ := ctx.Value(nameKey{}).(string); name != "" {
		return name + " at " + addressOf(ctx)
	}
	return addressOf(ctx)
}

// rateKey returns the key that the rates count calls by: a verified name, otherwise the host.
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
