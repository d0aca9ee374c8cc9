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
		s.pages.write(w, r, http.StatusUnauthorized, "signin", frame{
			Title: "sign in · caretaker", Fixed: true, Body: newSignIn(r, r.URL.RequestURI(), ""),
		})
	default:
		s.pages.renderError(w, r, http.StatusForbidden,
			"Your certificate has no role: auth.certificates assigns roles.")
	}
	return r, false
}

// signIn is the data of the page to sign in. Problem is the reason why the last token was refused.
type signIn struct{ Back, Problem string }

// newSignIn returns the data for a request. Over plain HTTP, a browser keeps the session for its own
// host only.
func newSignIn(r *http.Request, back, problem string) signIn {
	https := r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
	host, _, _ := strings.Cut(r.Host, ":")
	if ip := net.ParseIP(host); !https && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		problem = strings.TrimSpace(problem + " Use HTTPS: over plain HTTP, browsers do not keep the token.")
	}
	return signIn{back, problem}
}

// signInForm serves the page to sign in.
func (p *pages) signInForm(w http.ResponseWriter, r *http.Request) {
	p.write(w, r, http.StatusOK, "signin", frame{
		Title: "sign in · caretaker", Fixed: true, Body: newSignIn(r, local(r.FormValue("back")), ""),
	})
}

// signIn stores a valid token in the session cookie. The browser forgets it when it is closed.
func (p *pages) signIn(w http.ResponseWriter, r *http.Request) {
	token, back := strings.TrimSpace(r.PostFormValue("token")), local(r.PostFormValue("back"))
	if _, err := p.config.Access.Identify(token, nil); token == "" || err != nil {
		problem := "Enter a token."
		if token != "" {
			problem = sentence(err.Error())
		}
		p.write(w, r, http.StatusUnauthorized, "signin", frame{
			Title: "sign in · caretaker", Fixed: true, Body: newSignIn(r, back, problem),
		})
		return
	}
	access.SetSession(w, token)
	http.Redirect(w, r, back, http.StatusSeeOther) //nolint:gosec // a path of this site
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
