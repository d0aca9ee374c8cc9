package access

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
)

// IsLoopback reports whether a listener accepts only clients on this machine.
func IsLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// Admit reports whether an HTTP request is from a viewer or higher, and otherwise answers it.
func (k *Keys) Admit(w http.ResponseWriter, r *http.Request) bool {
	client, err := k.ClientOf(r)
	switch {
	case err != nil:
		w.Header().Set("WWW-Authenticate",
			`Basic realm="caretaker: any user name, and the token as the password", charset="UTF-8"`)
		text := "a token is required: send it as a bearer token, or as the password with any user name"
		if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Problem != "missing" {
			text = refused.Error()
		}
		http.Error(w, text, http.StatusUnauthorized)
	case client.Role < Viewer:
		http.Error(w, "your certificate has no role: assign a role in auth.certificates",
			http.StatusForbidden)
	default:
		return true
	}
	return false
}

// ClientOf returns the client that sent an HTTP request. Its error is a [*RefusedError].
func (k *Keys) ClientOf(r *http.Request) (Client, error) {
	var certificate *x509.Certificate
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		certificate = r.TLS.PeerCertificates[0]
	}
	return k.Identify(sent(r), certificate)
}

// Guard serves the requests of clients that Admit accepts.
func (k *Keys) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k.Admit(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// SessionCookie is the cookie with the token of a client that signed in on the page. A browser
// sends it only over TLS or to its own host, and only to the host that set it.
const SessionCookie = "__Host-caretaker"

// sent returns the token in a request, "" for none.
func sent(r *http.Request) string {
	if _, password, basic := r.BasicAuth(); basic {
		return password
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(given)
	}
	if cookie, err := r.Cookie(SessionCookie); err == nil {
		return cookie.Value
	}
	return ""
}
