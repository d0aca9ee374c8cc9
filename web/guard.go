package web

import (
	"net"
	"net/http"
	"strings"

	"github.com/caretaker-go/caretaker/access"
)

// policy lets a browser load only the page's own style, script and icon.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// handler serves the pages to admitted requests, with protective headers.
func (s *Site) handler(listening net.Addr) http.Handler {
	routes := s.pages.routes()
	local, sameOrigin := access.IsLoopback(listening), http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if local && !namesThisHost(r.Host) {
			http.Error(w, "unknown host name: use 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		r, admitted := s.admit(w, r)
		if admitted && sameOrigin.Check(r) == nil {
			routes.ServeHTTP(w, r)
		} else if admitted {
			s.pages.reject(w, r, "This request came from another site. Open this page directly, and repeat the change there.")
		}
	})
}

// reject answers a change that the page does not pass to the API. It logs that of a signed-in client.
func (p *pages) reject(w http.ResponseWriter, r *http.Request, problem string, reason ...string) {
	if c := clientOf(r); c.Role >= access.Viewer {
		p.config.Logger.WarnContext(r.Context(), "change on the page rejected",
			"address", r.RemoteAddr, "by", c.Name, "role", c.Role.String(), "path", r.URL.Path, "error", problem)
	}
	p.renderError(w, r, http.StatusForbidden, problem, reason...)
}

// isPublic reports whether a path needs no role: the sign-in, the files that it loads, and the
// documentation, to which refusals refer.
func isPublic(path string) bool {
	return path == "/signin" || path == "/signout" || strings.HasPrefix(path, "/static/") ||
		strings.HasPrefix(path, "/docs/")
}

// namesThisHost reports whether a host is an address or localhost. A page on loopback refuses other
// hosts, because another site's domain may point to this host (DNS rebinding).
func namesThisHost(host string) bool {
	name := hostOf(host)
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}

// hostOf returns the name or address of a host with or without a port.
func hostOf(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return strings.Trim(name, "[]")
}
