package web

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/caretaker-go/caretaker/access"
)

// clientKey is the context key of the request's client.
type clientKey struct{}

// clientOf returns the client of an admitted request.
func clientOf(r *http.Request) access.Client {
	client, _ := r.Context().Value(clientKey{}).(access.Client)
	return client
}

// callerOf returns the caller of the API's methods for a request.
func callerOf(r *http.Request) access.Caller {
	return access.Caller{Client: clientOf(r), Address: r.RemoteAddr, Source: "page"}
}

// admit returns the request with its client. It answers a request of a client without access to the
// page: a browser gets the page to sign in.
func (s *Site) admit(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	client, err := s.config.Access.ClientOf(r)
	browser := r.Method == http.MethodGet && r.Header.Get("Authorization") == "" &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
	switch {
	case err == nil && client.Role >= access.Viewer:
		return r.WithContext(context.WithValue(r.Context(), clientKey{}, client)), true
	case isPublic(r.URL.Path):
		return r, true
	case !browser:
		s.config.Access.Admit(w, r)
	case err != nil:
		s.pages.writeSignIn(w, r, http.StatusUnauthorized, newSignIn(r, r.URL.RequestURI()))
	default:
		s.pages.renderError(w, r, http.StatusForbidden, "Your certificate has no role: assign a role in auth.certificates.")
	}
	return r, false
}

// signIn is the data of the page to sign in. Problem is the reason why the last token was refused.
// Refused means that no token is accepted.
type signIn struct {
	Back, Problem string
	Refused       bool
}

// newSignIn returns the data for a request. Over plain HTTP, browsers keep sessions of their host only.
func newSignIn(r *http.Request, back string) signIn {
	https := r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
	host := hostOf(r.Host)
	if ip := net.ParseIP(host); !https && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return signIn{back, "Use HTTPS: over plain HTTP, others can read the token, and browsers do not keep the session.", true}
	}
	return signIn{Back: back}
}

// writeSignIn renders the page to sign in.
func (p *pages) writeSignIn(w http.ResponseWriter, r *http.Request, code int, page signIn) {
	p.write(w, r, code, "signin", frame{Title: "sign in · caretaker", Fixed: true, Body: page})
}

// signInForm serves the page to sign in.
func (p *pages) signInForm(w http.ResponseWriter, r *http.Request) {
	p.writeSignIn(w, r, http.StatusOK, newSignIn(r, local(r.FormValue("back"))))
}

// signIn stores a valid token in the session cookie. The browser forgets it when it is closed.
func (p *pages) signIn(w http.ResponseWriter, r *http.Request) {
	back, code := local(r.PostFormValue("back")), http.StatusForbidden
	page := newSignIn(r, back)
	if !page.Refused {
		code, page.Problem = p.signIns.SignIn(w, r, p.config.Access)
	}
	if page.Problem == "" {
		http.Redirect(w, r, back, http.StatusSeeOther) //nolint:gosec // a path of this site
		return
	}
	if code == http.StatusUnauthorized {
		p.config.Logger.WarnContext(r.Context(), "sign-in failed", "address", r.RemoteAddr, "error", page.Problem)
	}
	p.writeSignIn(w, r, code, page)
}

// signOut deletes the session cookie.
func (p *pages) signOut(w http.ResponseWriter, r *http.Request) {
	access.EndSession(w)
	http.Redirect(w, r, "/signin", http.StatusSeeOther)
}

// local returns a path of this site, / for an address of another one.
func local(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(u.Path, "//") || strings.ContainsAny(address, "\\\r\n\t") {
		return "/"
	}
	return u.RequestURI()
}
