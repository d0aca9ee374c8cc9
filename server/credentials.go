package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"unicode"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// TLS returns the TLS configuration for these protocols (ALPN), nil without a certificate. It reads
// the files at once, to report an error at the start, and again for every connection.
func (c Config) TLS(protocols ...string) (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil //nolint:nilnil // no TLS is no error
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

// credentials returns the server's credentials: TLS, if it is configured.
func (c Config) credentials() (credentials.TransportCredentials, error) {
	config, err := c.TLS("h2")
	if config == nil || err != nil {
		return insecure.NewCredentials(), err
	}
	return credentials.NewTLS(config), nil
}

// tls reads the certificate and its key, for TLS 1.2 or newer. With a client CA, clients must
// present a certificate of that CA. An error names the setting.
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
		return nil, fmt.Errorf("tls.client_ca_file: %s contains no PEM certificate: use a PEM file with the certificates of the client CA", c.ClientCAFile)
	}
	return config, nil
}

// UserHeader is the header with the name of the calling user. The server uses it if neither a token
// nor a client certificate has a name.
const UserHeader = "caretaker-user"

// NameHeader is the header of an answer with the name of the server: the name of its host.
const NameHeader = "caretaker-server"

// IdentityHeader is the header of an answer with [Config.Identity].
const IdentityHeader = "caretaker-identity"

// maxUser is the maximum length of a name, in characters.
const maxUser = 100

// userOf returns the name in the header.
func userOf(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, UserHeader)
	if len(values) == 0 {
		return ""
	}
	return printed(values[0])
}

// printed shortens a name to maxUser. It removes characters that a log or terminal cannot show, and
// gaps that look like the next column of a table.
func printed(name string) string {
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)
	name = strings.Join(strings.Fields(name), " ")
	if runes := []rune(name); len(runes) > maxUser {
		name = string(runes[:maxUser])
	}
	return name
}
