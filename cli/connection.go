package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/server"
)

// connection has the settings with which a client command reaches the server.
type connection struct {
	address                   string
	tls                       bool
	caFile, certFile, keyFile string
	tokenFile                 string
	// token and serverCert come from the server's configuration. serverCert is the PEM file of its
	// certificate, which the client trusts.
	token, serverCert string
	// profile is a name in the file of profiles.
	profile string
	// from is the source of the address.
	from string
	// name is the name of the server once it has answered. changed: a call has changed something.
	name    atomic.Pointer[string]
	changed atomic.Bool
}

// nearby reports whether the address belongs to this machine.
func (c *connection) nearby() bool {
	return strings.HasPrefix(c.address, "unix") || config.Loopback(c.address)
}

// flags are the flags of all commands that connect to a server.
func (c *connection) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	flags.StringVar(&c.address, "address", "", "server `address`. Default: the listen key of the --config "+
		"file (ignored with --profile), else "+config.AddressVariable+", else the address in the profile, else "+
		defaultAddress)
	flags.BoolVar(&c.tls, "tls", false, "use TLS with the system's certificate authorities")
	flags.StringVar(&c.caFile, "tls-ca", "", "use TLS with the certificate authorities in this PEM `file`")
	flags.StringVar(&c.certFile, "tls-cert", "", "PEM `file` with the client certificate")
	flags.StringVar(&c.keyFile, "tls-key", "", "PEM `file` with the client certificate's key")
	flags.StringVar(&c.profile, "profile", "", "profile `name` in caretaker/client.yml (in ~/.config on Linux)")
	flags.StringVar(&c.tokenFile, "token-file", "", "`file` with the bearer token")
	return flags
}

// useServer connects to the server of a configuration file, unless a flag names another server.
func (c *connection) useServer(file string, s *config.Config) {
	if file == "" || c.address != "" || c.profile != "" {
		return
	}
	c.address, c.from = s.Listen, "listen in "+file
	host, port, _ := net.SplitHostPort(s.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		c.address = net.JoinHostPort("localhost", port)
	}
	c.tls, c.serverCert = c.tls || s.TLS.CertFile != "", s.TLS.CertFile
	if c.tokenFile == "" {
		c.token, c.tokenFile = s.Auth.Token, s.Auth.TokenFile
	}
}

// complete adds settings from the environment and the profile, unless a flag or the server's
// configuration sets them.
func (c *connection) complete(known config.Client) {
	if c.from == "" {
		c.from = "--address"
		if c.address == "" && known.Address != "" {
			c.from = known.AddressSource
		}
	}
	c.address = cmp.Or(c.address, known.Address, defaultAddress)
	c.tls = c.tls || known.TLS
	c.caFile, c.certFile = cmp.Or(c.caFile, known.CAFile), cmp.Or(c.certFile, known.CertFile)
	c.keyFile = cmp.Or(c.keyFile, known.KeyFile)
	if c.token == "" {
		c.tokenFile = cmp.Or(c.tokenFile, known.TokenFile)
	}
}

// bearer returns the token of the configuration or of the token file, "" if neither has one.
func (c *connection) bearer() (string, error) {
	if c.token != "" || c.tokenFile == "" {
		return c.token, nil
	}
	content, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("token file %s is empty: write the token to this file", c.tokenFile)
	}
	return token, nil
}

// secure reports whether the connection uses TLS.
func (c *connection) secure() bool {
	return c.tls || c.caFile != "" || c.certFile != "" || c.keyFile != ""
}

// checkAddress accepts HOST:PORT and other gRPC targets, such as unix:/run/caretaker.sock.
func (c *connection) checkAddress() error {
	if scheme, _, _ := strings.Cut(c.address, ":"); resolver.Get(scheme) != nil {
		return nil
	}
	if err := config.CheckAddress(c.address, defaultAddress); err != nil {
		return usage(fmt.Errorf("%s: %w", c.from, err))
	}
	return nil
}

// credentials returns the credentials of the connection: none without TLS. With a client
// certificate, both --tls-cert and --tls-key are required.
func (c *connection) credentials() (credentials.TransportCredentials, error) {
	if !c.secure() {
		return insecure.NewCredentials(), nil
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := c.trust(secure); err != nil {
		return nil, err
	}
	switch {
	case c.keyFile == "" && c.certFile != "":
		return nil, fmt.Errorf("the client certificate %s requires a key: specify the file of the key with --tls-key", c.certFile)
	case c.certFile == "" && c.keyFile != "":
		return nil, fmt.Errorf("the client key %s requires a certificate: specify the file of the certificate with --tls-cert", c.keyFile)
	case c.certFile != "":
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot use the client certificate %s with the key %s: %w", c.certFile, c.keyFile, err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(secure), nil
}

// trust sets the accepted authorities: those of --tls-ca, or else those of the system and the
// configured server certificate. The host name of that certificate may differ.
func (c *connection) trust(secure *tls.Config) error {
	source, owner, file := "CA file", "CA", c.caFile
	if file == "" {
		source, owner, file = "tls.cert_file", "server", c.serverCert
	}
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read the certificate of the %s: %w", owner, err)
	}
	secure.RootCAs = x509.NewCertPool()
	if system, err := x509.SystemCertPool(); err == nil && c.caFile == "" {
		secure.RootCAs = system
	}
	if !secure.RootCAs.AppendCertsFromPEM(content) {
		return fmt.Errorf("%s %s contains no PEM certificate: use a PEM file with the certificate of the %s", source, file, owner)
	}
	block, _ := pem.Decode(content)
	if c.caFile != "" || block == nil {
		return nil
	}
	own, err := x509.ParseCertificate(block.Bytes)
	host, _, _ := net.SplitHostPort(c.address)
	if err == nil && own.VerifyHostname(host) != nil {
		names := own.DNSNames
		for _, ip := range own.IPAddresses {
			names = append(names, ip.String())
		}
		secure.ServerName = strings.Join(names[:min(len(names), 1)], "")
	}
	return nil
}

// observe makes a call, and notes the name of the server and whether the call changed something.
func (c *connection) observe(
	ctx context.Context, method string, request, answer any, on *grpc.ClientConn,
	do grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	var header metadata.MD
	err := do(ctx, method, request, answer, on, append(options, grpc.Header(&header))...)
	if name := header.Get(server.NameHeader); len(name) > 0 {
		c.name.Store(&name[0])
	}
	if err == nil && server.Changes(method) {
		c.changed.Store(true)
	}
	return err
}

// server returns the address of the server, with its name once that is known.
func (c *connection) server() string {
	if name := c.name.Load(); name != nil {
		return *name + " at " + c.address
	}
	return c.address
}
