package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/access"
)

// formAge is how long a form can be sent after its page was read.
const formAge = 12 * time.Hour

// clientKey is the context key of the request's client.
type clientKey struct{}

// clientOf returns the client of an admitted request.
func clientOf(r *http.Request) access.Client {
	client, _ := r.Context().Value(clientKey{}).(access.Client)
	return client
}

// admit returns the request with its client. It answers a request of a client that may not view the
// page: a browser gets the page to sign in.
func (s *Site) admit(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	client, err := s.config.Access.ClientOf(r)
	if err != nil && r.Method == http.MethodGet && r.Header.Get("Authorization") == "" &&
		strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.pages.write(w, r, http.StatusUnauthorized, "signin", frame{
			Title: "sign in · caretaker", Fixed: true, Body: signIn{Back: r.URL.RequestURI()},
		})
		return r, false
	}
	if !s.config.Access.Admit(w, r) {
		return r, false
	}
	return r.WithContext(context.WithValue(r.Context(), clientKey{}, client)), true
}

// signIn is the data of the page to sign in. Problem is the reason why the last token was refused.
type signIn struct{ Back, Problem string }

// signInForm serves the page to sign in.
func (p *pages) signInForm(w http.ResponseWriter, r *http.Request) {
	p.write(w, r, http.StatusOK, "signin", frame{
		Title: "sign in · caretaker", Fixed: true, Body: signIn{Back: local(r.FormValue("back"))},
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
			Title: "sign in · caretaker", Fixed: true, Body: signIn{Back: back, Problem: problem},
		})
		return
	}
	setSession(w, token, 0)
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// signOut deletes the session cookie.
func (p *pages) signOut(w http.ResponseWriter, r *http.Request) {
	setSession(w, "", -1)
	http.Redirect(w, r, "/signin", http.StatusSeeOther)
}

func setSession(w http.ResponseWriter, token string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: access.SessionCookie, Value: token, Path: "/", MaxAge: maxAge,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
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

// forms signs the forms of a page, so that only a page that this process sent to a client can
// change something in the client's name.
type forms struct{ key []byte }

func newForms() forms { return forms{[]byte(rand.Text())} }

// sign returns the token of a form that a client gets at a time.
func (f forms) sign(c access.Client, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, f.key)
	_, _ = mac.Write([]byte(seconds + "\n" + c.Role.String() + "\n" + c.Name))
	return seconds + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// signed reports whether a form's token is of this process, for this client, and not too old.
func (f forms) signed(token string, c access.Client, now time.Time) bool {
	text, _, _ := strings.Cut(token, ".")
	seconds, err := strconv.ParseInt(text, 10, 64)
	at := time.Unix(seconds, 0)
	return err == nil && hmac.Equal([]byte(token), []byte(f.sign(c, at))) && now.Sub(at) < formAge
}
