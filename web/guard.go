package web

import (
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
)

// policy lets a browser load the page's own style, script and icon, and nothing else from anywhere.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// handler guards the pages.
func (s *Site) handler(listening net.Addr) http.Handler {
	routes := s.pages.routes()
	local := isLoopback(listening)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page only shows; use the API or the command line to change something", http.StatusMethodNotAllowed)
		case local && !namesThisHost(r.Host):
			http.Error(w, "ask for this page by 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
		case !s.admitted(r):
			h.Set("WWW-Authenticate", `Basic realm="caretaker: any name, the token as password", charset="UTF-8"`)
			http.Error(w, "a token is needed: as bearer, or as password with any name", http.StatusUnauthorized)
		default:
			routes.ServeHTTP(w, r)
		}
	})
}

// admitted says whether the request has the token, where one is needed.
func (s *Site) admitted(r *http.Request) bool {
	if s.config.Token == "" {
		return true
	}
	_, given, basic := r.BasicAuth()
	if !basic {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "bearer") {
			return false
		}
		given = strings.TrimSpace(token)
	}
	return subtle.ConstantTimeCompare([]byte(given), []byte(s.config.Token)) == 1
}

func isLoopback(a net.Addr) bool {
	tcp, is := a.(*net.TCPAddr)
	return is && tcp.IP.IsLoopback()
}

// namesThisHost refuses names that a foreign page's own domain has been pointed here with (DNS rebinding): what listens on
// loopback is asked for by an address, or as localhost.
func namesThisHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}
