package server

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// TLS is how to speak TLS to those who ask for these protocols (ALPN); nil: not at all. The files are tried at once, so that
// a mistake shows at the start, and read again for every new connection.
func (c Config) TLS(protocols ...string) (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil //nolint:nilnil // no TLS is no mistake
	}
	read := func() (*tls.Config, error) {
		config, err := c.tls()
		if err == nil {
			config.NextProtos = protocols
		}
		return config, err
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return read() },
	}, nil
}

// credentials of the server's side of connections.
func (c Config) credentials() (credentials.TransportCredentials, error) {
	config, err := c.TLS("h2")
	if config == nil || err != nil {
		return insecure.NewCredentials(), err
	}
	return credentials.NewTLS(config), nil
}

func (c Config) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.ClientCAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("tls.client_ca_file: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.client_ca_file: %s has no PEM certificate", c.ClientCAFile)
	}
	return config, nil
}

// errUnauthenticated is a call without the right token.
var errUnauthenticated = errors.New("a bearer token is needed: send the header authorization: Bearer TOKEN")

// authenticate demands the token, where there is one.
func (c Config) authenticate(ctx context.Context) (context.Context, error) {
	if c.Token == "" {
		return ctx, nil
	}
	given, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil || subtle.ConstantTimeCompare([]byte(given), []byte(c.Token)) != 1 {
		return nil, errUnauthenticated
	}
	return ctx, nil
}

// UserHeader is the header by which clients may say who calls. It is believed where no client certificate says it.
const UserHeader = "caretaker-user"

// maxUser is how many characters of a name are kept.
const maxUser = 100

// caller is who calls: a name, if there is one, and the client's address. The name is that in the certificate where the
// client had to show one, else what it says of itself.
func caller(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	name := userOf(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		name = info.State.PeerCertificates[0].Subject.CommonName
	}
	if name == "" {
		return p.Addr.String()
	}
	return name + " at " + p.Addr.String()
}

// userOf is the name in the header, without what would confuse a log or a terminal.
func userOf(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, UserHeader)
	if len(values) == 0 {
		return ""
	}
	name := strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, values[0]))
	if runes := []rune(name); len(runes) > maxUser {
		name = string(runes[:maxUser])
	}
	return name
}
