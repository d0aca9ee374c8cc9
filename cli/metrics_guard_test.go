package cli

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// elsewhere is a listener that other hosts can reach. No client connects to it.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9999} }

func TestMetrics_WantAViewerWithTheRolesOfTheAPIBeyondLoopbackAlone(t *testing.T) {
	hash := sha256.Sum256([]byte("late"))
	file := filepath.Join(t.TempDir(), "tokens.yml")
	late := fmt.Sprintf("- {name: late, sha256: %x, role: admin, expires: 2026-01-01}", hash)
	assert.NoError(t, os.WriteFile(file, []byte(late), 0o600))
	known := assert.Must(access.New(access.Config{TokensFile: file, Token: "t", Certificates: map[string]string{"alice": "viewer"}}))(t)
	here := assert.Must(new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = here.Close() }()
	for _, c := range []struct {
		at                 net.Listener
		known              *access.Keys
		token, certificate string
		want               int
		encrypted          bool
	}{
		{here, known, "", "", 200, false},
		{elsewhere{}, nil, "", "", 200, true},
		{elsewhere{}, known, "", "", 401, true},
		{elsewhere{}, known, "forged", "", 401, true},
		{elsewhere{}, known, "late", "", 401, true},
		{elsewhere{}, known, "t", "", 200, true},
		{elsewhere{}, known, "", "alice", 200, true},
		{elsewhere{}, known, "", "mallory", 403, true},
		{elsewhere{}, known, "late", "alice", 401, true},
	} {
		i := &instance{logger: slog.New(slog.DiscardHandler), access: c.known, secure: &tls.Config{MinVersion: tls.VersionTLS12}}
		handler, secure := i.guardMetrics(c.at.Addr(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.certificate != "" {
			of := &x509.Certificate{Subject: pkix.Name{CommonName: c.certificate}}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{of}, VerifiedChains: [][]*x509.Certificate{{of}}}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.want || (secure != nil) != c.encrypted {
			t.Errorf("%s, %q, %q: %d, TLS %t: %s", c.at.Addr(), c.token, c.certificate, w.Code, secure != nil, w.Body)
		}
		assert.That(t, secure != i.secure, "the server of the metrics changes the TLS of the status page")
	}
}
