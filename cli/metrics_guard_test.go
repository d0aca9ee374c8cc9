package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caretaker-go/caretaker/access"
)

// elsewhere is a listener that other hosts can reach; nobody connects to it.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9464} }

func TestMetrics_WantAViewerBeyondLoopbackAlone(t *testing.T) {
	known, err := access.New(access.Config{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	here, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = here.Close() }()
	for _, c := range []struct {
		at        net.Listener
		known     *access.Keys
		token     string
		wanted    int
		encrypted bool
	}{
		{here, known, "", 200, false},
		{elsewhere{}, known, "", 401, true},
		{elsewhere{}, known, "forged", 401, true},
		{elsewhere{}, known, "secret", 200, true},
		{elsewhere{}, nil, "", 200, true},
	} {
		answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
		i := &instance{logger: slog.New(slog.DiscardHandler), access: c.known, secure: &tls.Config{MinVersion: tls.VersionTLS12}}
		handler, secure := i.guardMetrics(c.at.Addr(), answer)
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.wanted || (secure != nil) != c.encrypted {
			t.Errorf("%s, %q: %d, TLS %t", c.at.Addr(), c.token, w.Code, secure != nil)
		}
	}
}
