package cli_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// saved writes a file and returns its path.
func saved(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// certified makes a certificate for this host that is its own authority.
func certified(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	return certifiedUntil(t, name, time.Hour)
}

// certifiedUntil makes one for 127.0.0.1, or else for the addresses, that is valid for a year until so long from now.
func certifiedUntil(t *testing.T, name string, until time.Duration, addresses ...net.IP) (certificate, key string) {
	t.Helper()
	private := assert.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: addresses,
		NotBefore: time.Now().Add(until - 365*24*time.Hour), NotAfter: time.Now().Add(until), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if addresses == nil {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	keyDER, keyErr := x509.MarshalPKCS8PrivateKey(private)
	assert.NoError(t, errors.Join(err, keyErr))
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return saved(t, name+".crt", block("CERTIFICATE", der)), saved(t, name+".key", block("PRIVATE KEY", keyDER))
}

func pair(certificate, key string) [2]string { return [2]string{certificate, key} }

func TestRoles_OfTokensOverTLS(t *testing.T) {
	sh, _ := newPrepared(t)
	entry := func(name, role, more string) string {
		hash := sha256.Sum256([]byte(name + "-secret"))
		return fmt.Sprintf("- {name: %s, sha256: %s, role: %s%s}\n", name, hex.EncodeToString(hash[:]), role, more)
	}
	tokens := saved(t, "tokens.yml", entry("viola", "viewer", "")+entry("otto", "operator", ", workers: ["+worker+"]")+entry("ada", "admin", ""))
	certificate, key := certified(t, "server")
	sh.set("CARETAKER_TLS_CERT_FILE", certificate)
	sh.set("CARETAKER_TLS_KEY_FILE", key)
	sh.set("CARETAKER_AUTH_TOKENS_FILE", tokens)
	r := sh.serving()
	as := func(name string) string {
		return " --tls-ca " + certificate + " --token-file " + saved(t, name+".token", name+"-secret\n")
	}
	r.want(1, "status --tls-ca "+certificate, "a bearer token is required")
	r.want(1, "status"+as("nobody"), "unknown token")
	r.want(0, "status"+as("viola"), worker)
	r.want(1, "pause "+worker+" --reason r"+as("viola"), "this call requires the role operator, but you have the role viewer")
	r.want(0, "pause "+worker+" --reason repairs"+as("otto"), "paused", "otto at 127.0.0.1:")
	r.want(1, "pause ghost_user_migration --reason r"+as("otto"), "your token is limited to "+worker+", but this call affects ghost_user_migration")
	r.want(1, "pause --all --reason r"+as("otto"), "this call requires the role admin, but you have the role operator")
	r.want(0, "pause --all --reason incident"+as("ada"), "ada at 127.0.0.1:")
	r.want(2, "audit --since yesterday"+as("viola"), "is neither a duration such as 24h nor a time such as 2026-11-01 15:04")
	r.want(0, "audit --since 2999-01-01T00:00:00Z"+as("viola"), "no entries")
	r.want(0, "audit --limit 1"+as("viola"), "PauseWorker  *", "incident", "to see older entries, use a larger --limit or --all")
	assert.Equal(t, strings.Count(r.want(0, "audit --since 1h --all"+as("viola")), "\n"), 6, "lines of all entries")
	r.want(2, "audit --since 1h --page-token x"+as("viola"), "--page-token is invalid for this list")
	r.want(0, "audit --since 1h"+as("viola"), "viola at 127.0.0.1:", "PERMISSION_DENIED ROLE_TOO_LOW",
		"PERMISSION_DENIED WORKER_NOT_ALLOWED", "otto at 127.0.0.1:", "OK", "repairs")
	// Ada leaves: without a restart.
	assert.NoError(t, os.WriteFile(tokens, []byte(entry("viola", "viewer", "")), 0o600))
	eventually(t, "the token is taken back", &r.log, func() bool {
		code, _, _ := sh.caretaker(append([]string{"status", "--address", r.address}, strings.Fields(as("ada"))...)...)
		return code == 1
	})
	r.want(0, "status"+as("viola"), worker)
}

func TestRoles_OfCertificatesAndOneThatIsMissingIsNamed(t *testing.T) {
	sh, _ := newPrepared(t)
	certificate, key := certified(t, "server")
	alice, aliceKey := certified(t, "alice")
	sh.set("CARETAKER_TLS_CERT_FILE", certificate)
	sh.set("CARETAKER_TLS_KEY_FILE", key)
	sh.set("CARETAKER_TLS_CLIENT_CA_FILE", alice)
	sh.set("CARETAKER_AUTH_CERTIFICATES", `{"alice": "operator"}`)
	r := sh.serving()
	as := " --tls-ca " + certificate + " --tls-cert " + alice + " --tls-key " + aliceKey
	r.want(0, "status"+as, worker)
	r.want(0, "pause "+worker+" --reason repairs"+as, "alice at 127.0.0.1:")
	r.want(1, "flags set loose_foreign_keys_turbo_mode_main on"+as, "this call requires the role admin, but you have the role operator")
	ca := " --tls-ca " + certificate
	r.want(1, "status"+ca, "client certificate", "use --tls-cert and --tls-key")
	mallory, malloryKey := certified(t, "mallory")
	r.want(1, "status"+ca+" --tls-cert "+mallory+" --tls-key "+malloryKey, "rejected the client certificate: use a different certificate")
}

// An error between client and server names the flag that is missing, or one too many.
func TestClient_NamesTheFlagThatIsMissing(t *testing.T) {
	sh, _ := newPrepared(t)
	certificate, key := certified(t, "server")
	other, otherKey := certified(t, "other")
	token := saved(t, "token", "secret\n")
	plain := sh.serving()
	plain.want(0, "status", worker)
	for _, flags := range []string{"--tls", "--tls-ca " + certificate, "--tls-cert " + other + " --tls-key " + otherKey} {
		plain.want(1, "status "+flags, "does not use TLS: remove the TLS settings")
	}
	plain.stop()
	if code := <-plain.exit; code != 0 {
		t.Fatalf("exit %d", code)
	}
	sh.set("CARETAKER_TLS_CERT_FILE", certificate)
	sh.set("CARETAKER_TLS_KEY_FILE", key)
	sh.set("CARETAKER_AUTH_TOKEN_FILE", token)
	r := sh.serving()
	ca := " --tls-ca " + certificate
	for _, command := range []string{"status", "run " + worker, "watch 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "plan user 7", "receipts list"} {
		r.want(1, command, "if the server uses TLS, use --tls or --tls-ca")
		r.want(1, command+" --token-file "+token, "if the server uses TLS, use --tls or --tls-ca")
		r.want(1, command+" --tls", "use --tls-ca with the authority's certificate file")
		r.want(1, command+" --tls-ca "+other, "use --tls-ca with the authority's certificate file")
		r.want(1, command+ca, "a bearer token is required", "use --token-file, or --tls-cert and "+
			"--tls-key")
		r.want(1, command+ca+" --token-file /nowhere", "cannot read the token file: open /nowhere")
		if code, out, errOut := sh.caretaker(strings.Fields(command + ca + " --address " + r.address + " --token-file " + token)...); strings.Contains(errOut, "--token-file") || strings.Contains(errOut, "--tls") {
			t.Errorf("%s with all it needs: exit %d: %s%s", command, code, out, errOut)
		}
	}
	r.want(0, "status --token-file "+token+ca, worker)
	r.want(1, "status --token-file "+saved(t, "wrong", "wrong")+ca, "unknown token")
	r.want(1, "status --tls-cert "+other+ca, "requires a key", "--tls-key")
	r.want(1, "status --tls-cert "+other, "the client certificate "+other+" requires a key")
	r.want(1, "status --tls-key "+key, "the client key "+key+" requires a certificate")
	empty := saved(t, "empty", "\n")
	r.want(1, "status --token-file "+empty+ca, "token file "+empty+" is empty")
	r.want(1, "status --tls-ca "+key, "CA file "+key+" contains no PEM certificate")
	for problem, c := range map[string][2]string{
		"has expired or is not yet valid: replace it on the server": pair(certifiedUntil(t, "expired", -time.Hour)),
		"does not match the address " + r.address:                   pair(certifiedUntil(t, "elsewhere", time.Hour, net.IPv4(192, 0, 2, 1))),
	} { // The server reads the files again for each connection.
		for i, file := range []string{certificate, key} {
			assert.NoError(t, os.WriteFile(file, assert.Must(os.ReadFile(c[i]))(t), 0o600))
		}
		r.want(1, "status --tls-ca "+c[0], problem)
	}
}
