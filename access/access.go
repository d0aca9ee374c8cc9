// Package access authenticates clients and determines their roles, for the API, the status page and
// the metrics.
//
// It guarantees:
//
//   - A token is known only by its SHA-256. A comparison always covers all tokens in constant time,
//     so that the response time reveals nothing about them.
//   - A token file that becomes invalid changes nothing. The previous tokens remain valid, and one
//     log line has the error.
//   - An expired token is refused from that second on, by this host's clock, because the databases
//     may be down.
//   - If neither tokens nor certificates have roles, every client that can connect is an admin.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Role is a set of permissions. Each role includes the permissions of the previous ones.
type Role int

// The roles.
const (
	// None is the role of a client with a valid certificate for which no role is configured.
	None Role = iota
	// Viewer may read everything.
	Viewer
	// Operator may start and stop work, and protect items from deletion.
	Operator
	// Admin may do everything.
	Admin
)

// Roles returns the roles that the configuration can assign.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// String returns the role's name.
func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case Operator:
		return "operator"
	case Admin:
		return "admin"
	case None:
	}
	return "none"
}

// UnmarshalText parses a role's name.
func (r *Role) UnmarshalText(text []byte) error {
	for _, role := range Roles() {
		if role.String() == string(text) {
			*r = role
			return nil
		}
	}
	return fmt.Errorf("%q is not a role: use viewer, operator or admin", text)
}

// Client is an authenticated client.
type Client struct {
	// Name is the name of its token or its certificate, "" if neither has a name.
	Name string
	Role Role
	// Workers are the workers that an operator is restricted to, none for all workers.
	Workers []string
}

// Caller is an authenticated client of another listener of this process, such as the status page.
type Caller struct {
	Client Client
	// Address is the client's address, HOST:PORT.
	Address string
	// Source names the listener in the audit and in the log, such as page.
	Source string
}

// Config assigns the roles. The zero value makes every client an admin.
type Config struct {
	// Token, if set, is the token of an admin without a name. TokenFile is its file.
	Token, TokenFile string
	// TokensFile, if set, is the YAML file of further tokens: see [Keys].
	TokensFile string
	// Certificates maps the common name or an alternative name of client certificates to roles.
	// Without it every verified certificate is an admin's, and has no effect if there are tokens.
	Certificates map[string]string
	// Workers are the names that the file may restrict a token to.
	Workers []string
	// Logger gets a line if a file becomes invalid.
	Logger *slog.Logger
}

// Keys authenticates clients. Its methods are safe for concurrent use. A nil Keys makes every
// client an admin.
type Keys struct {
	single       atomic.Pointer[token]
	singleFile   string
	logger       *slog.Logger
	file         *tokensFile
	certificates map[string]Role
}

// New reads the token files. Its error names the invalid file or role.
func New(c Config) (*Keys, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keys{singleFile: c.TokenFile, logger: c.Logger, certificates: map[string]Role{}}
	if c.Token != "" {
		k.setSingle(c.Token)
	}
	if c.TokenFile != "" {
		if _, err := k.readSingle(); err != nil {
			return nil, err
		}
	}
	for name, word := range c.Certificates {
		var role Role
		if err := role.UnmarshalText([]byte(word)); err != nil {
			return nil, fmt.Errorf("auth.certificates: %s: %w", name, err)
		}
		k.certificates[name] = role
	}
	if c.TokensFile != "" {
		k.file = &tokensFile{path: c.TokensFile, workers: c.Workers, logger: c.Logger}
		if err := k.file.read(); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Reload reads any token files again at once. It logs an error in a file.
func (k *Keys) Reload() {
	if k == nil {
		return
	}
	if k.singleFile != "" {
		switch changed, err := k.readSingle(); {
		case err != nil:
			k.logger.Error("token not read, previous token stays valid", "error", err.Error())
		case changed:
			k.logger.Info("token reloaded")
		}
	}
	if k.file != nil {
		k.file.mu.Lock()
		defer k.file.mu.Unlock()
		k.file.wrong = ""
		k.file.reloadLocked()
	}
}

// readSingle reads the file of the single token.
func (k *Keys) readSingle() (changed bool, err error) {
	content, err := os.ReadFile(k.singleFile)
	if err != nil {
		return false, fmt.Errorf("auth.token_file: %w", err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return false, fmt.Errorf("auth.token_file: %s is empty: write the token to this file", k.singleFile)
	}
	return k.setSingle(text), nil
}

func (k *Keys) setSingle(text string) (changed bool) {
	now := &token{hash: sha256.Sum256([]byte(text)), Client: Client{Role: Admin}}
	before := k.single.Swap(now)
	return before == nil || before.hash != now.hash
}

// Named reports whether tokens or certificates have names. A client's unverified name must not look
// like one of these.
func (k *Keys) Named() bool { return k != nil && (k.file != nil || len(k.certificates) > 0) }

// RefusedError is the reason why a client is not authenticated.
type RefusedError struct {
	// Problem is missing, unknown or expired.
	Problem string
	text    string
}

// Error returns a text with the fix.
func (e *RefusedError) Error() string { return e.text }

// Details returns the reason and the metadata for clients.
func (e *RefusedError) Details() (string, map[string]string) {
	return "UNAUTHENTICATED", map[string]string{"token": e.Problem}
}

// Identify authenticates a client by its token, "" for none, and its verified certificate, nil for
// none. If tokens are configured, the token decides. Its error is a [*RefusedError].
func (k *Keys) Identify(given string, certificate *x509.Certificate) (Client, error) {
	if k == nil {
		return Client{Name: nameOf(certificate), Role: Admin}, nil
	}
	tokens := k.single.Load() != nil || k.file != nil
	switch {
	case tokens && given != "":
		return k.byToken(given, certificate)
	case certificate != nil && len(k.certificates) > 0:
		return k.byCertificate(certificate), nil
	case tokens:
		return Client{}, &RefusedError{
			"missing", `a bearer token is required: send the header "authorization: Bearer TOKEN"`,
		}
	}
	return Client{Name: nameOf(certificate), Role: Admin}, nil
}

// byToken compares with all tokens, even after a match.
func (k *Keys) byToken(given string, certificate *x509.Certificate) (Client, error) {
	var found *token
	hash := sha256.Sum256([]byte(given))
	for _, t := range k.tokens() {
		if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			found = t
		}
	}
	switch {
	case found == nil:
		return Client{}, &RefusedError{
			"unknown",
			"unknown token: check that the token is complete, not revoked, and meant for this server",
		}
	case !found.expires.IsZero() && !time.Now().Before(found.expires):
		return Client{}, &RefusedError{
			"expired", "this token expired at " + found.expires.UTC().Format(time.RFC3339) +
				": request a new token",
		}
	}
	client := found.Client
	if client.Name == "" {
		client.Name = nameOf(certificate)
	}
	return client, nil
}

func (k *Keys) tokens() (all []*token) {
	if single := k.single.Load(); single != nil {
		all = append(all, single)
	}
	if k.file != nil {
		all = append(all, k.file.current()...)
	}
	return all
}

// byCertificate returns the client of a certificate, with the highest role of its names.
func (k *Keys) byCertificate(certificate *x509.Certificate) Client {
	client := Client{Name: nameOf(certificate)}
	for _, name := range namesOf(certificate) {
		client.Role = max(client.Role, k.certificates[name])
	}
	return client
}

// namesOf returns the names in a certificate, the common name first.
func namesOf(certificate *x509.Certificate) (names []string) {
	if certificate == nil {
		return nil
	}
	if name := certificate.Subject.CommonName; name != "" {
		names = append(names, name)
	}
	names = append(append(names, certificate.DNSNames...), certificate.EmailAddresses...)
	for _, u := range certificate.URIs {
		names = append(names, u.String())
	}
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

func nameOf(certificate *x509.Certificate) string {
	if names := namesOf(certificate); len(names) > 0 {
		return names[0]
	}
	return ""
}
