package web

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestEveryAnswer_ForbidsForeignContentNamesAndChanges(t *testing.T) {
	f := start(assert.Parallel(t))
	for _, path := range []string{"/", "/nothing"} {
		answer, body := f.request(http.MethodGet, path)
		h := answer.Header
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, h)
		}
		for _, foreign := range []string{"http://", "style=", " onclick", "<script>"} {
			assert.Lacks(t, strings.ReplaceAll(body, "http://www.w3.org", ""), foreign)
		}
	}
	// Pages are only read.
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if answer, _ := f.request(method, "/"); answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %s", method, answer.Status)
		}
	}
	if answer, body := f.request(http.MethodHead, "/"); answer.StatusCode != http.StatusOK || body != "" {
		t.Errorf("HEAD: %s, %q", answer.Status, body)
	}
	// Foreign names are refused on loopback.
	for host, want := range map[string]int{"evil.example": 421, "localhost:1": 200, "127.0.0.1": 200, "[::1]:81": 200, "evil.example:81": 421} {
		if answer, _ := f.request(http.MethodGet, "/", func(r *http.Request) { r.Host = host }); answer.StatusCode != want {
			t.Errorf("%s: %s", host, answer.Status)
		}
	}
	// Missing pages are not found.
	for _, path := range []string{
		"/nothing", "/act/nothing", "/act/run", "/act/pause?worker=nobody", "/workers/nobody", "/runs/1", "/runs/01a1fc25-49b4-7a5a-9f8b-d9d55372381d", "/jobs/x", "/jobs/0", "/jobs/-1", "/jobs/9223372036854775807",
		"/static/other.css", "/static/../templates/run.html",
	} {
		if answer, _ := f.request(http.MethodGet, path); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	// Assets are kept for ever by their content.
	body := f.page("/")
	for _, marker := range []string{`href="/static/style.css?v=`, `src="/static/refresh.js?v=`, `href="/static/icon.svg?v=`} {
		_, rest, found := strings.Cut(body, marker)
		rest, _, _ = strings.Cut(rest, `"`)
		path := strings.SplitN(marker, `"`, 2)[1] + rest
		answer, content := f.request(http.MethodGet, path)
		if !found || answer.StatusCode != http.StatusOK || content == "" || !strings.Contains(answer.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %s, %v", path, answer.Status, answer.Header)
		}
	}
	// The TLS of the site is its own.
	shared := &tls.Config{MinVersion: tls.VersionTLS12}
	config := f.site.config
	config.TLS = shared
	site := assert.Must(New(config))(t)
	defer site.stop()
	assert.That(t, site.server.TLSConfig != shared, "a server changes the TLS of others")
}

func TestToken_IsNeededAsBearerOrPassword(t *testing.T) {
	t.Parallel()
	only := assert.Must(access.New(access.Config{Token: "secret"}))(t)
	f := start(t, func(c *Config) { c.Access = only })
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"none":           {func(*http.Request) {}, 401},
		"bearer":         {func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }, 200},
		"lower case":     {func(r *http.Request) { r.Header.Set("Authorization", "bearer secret") }, 200},
		"wrong":          {func(r *http.Request) { r.Header.Set("Authorization", "Bearer secre") }, 401},
		"empty":          {func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }, 401},
		"password":       {func(r *http.Request) { r.SetBasicAuth("anybody", "secret") }, 200},
		"wrong password": {func(r *http.Request) { r.SetBasicAuth("secret", "") }, 401},
	} {
		answer, _ := f.request(http.MethodGet, "/", c.change)
		if answer.StatusCode != c.want || c.want == 401 && !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s: %s", name, answer.Status)
		}
	}
}

// sum returns the SHA-256 of a token, as in a tokens file.
func sum(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}

// trusted is a request over TLS with a verified certificate of this name.
func trusted(name string) func(*http.Request) {
	return func(r *http.Request) {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
}

func TestRoles_OfThePageAreThoseOfTheAPI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	entry := func(name, more string) string {
		return "- {name: " + name + ", sha256: " + sum(name+"-token") + more + "}\n"
	}
	content := entry("viola", ", role: viewer") + entry("late", ", role: admin, expires: 2026-01-01") +
		entry("bots", ", role: operator, workers: [w]")
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	known := assert.Must(access.New(access.Config{
		TokensFile: file, Workers: []string{"w"}, Certificates: map[string]string{"alice": "viewer"},
	}))(t)
	f := start(t, func(c *Config) { c.Access = known })
	handler := f.site.handler(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9999})
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for name, c := range map[string]struct {
		who  func(*http.Request)
		want int
	}{
		"nobody": {func(*http.Request) {}, 401}, "forged": {bearer("x"), 401}, "expired": {bearer("late-token"), 401},
		"viewer": {bearer("viola-token"), 200}, "operator of a worker": {bearer("bots-token"), 200},
		"certificate": {trusted("alice"), 200}, "certificate without a role": {trusted("mallory"), 403},
		"forged with a certificate": {func(r *http.Request) { trusted("alice")(r); bearer("x")(r) }, 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		c.who(r)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		assert.Equal(t, w.Code, c.want, name, w.Body)
	}
}
