package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// SignIns limits the failed sign-ins of each host. Valid tokens are always accepted, so no other client
// can lock out their owner. It does not bound guesses: tokens must be random, as for the API.
type SignIns struct{ failed Rates }

// A host may fail to sign in maxFailures times, and then once every failureInterval.
const maxFailures, failureInterval = 10, 6 * time.Second

// SignIn stores the token of a form in the session cookie, which the browser forgets when it is closed.
// Otherwise it returns the status of the answer and the problem, without the token.
func (s *SignIns) SignIn(w http.ResponseWriter, r *http.Request, k *Keys) (code int, problem string) {
	token := strings.TrimSpace(r.PostFormValue("token"))
	if token == "" {
		return http.StatusUnauthorized, "Enter a token."
	}
	_, err := k.Identify(token, nil)
	if err == nil {
		setSession(w, token, 0)
		return 0, ""
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if !s.failed.Bucket(host, rate.Every(failureInterval), maxFailures).Allow() {
		w.Header().Set("Retry-After", strconv.Itoa(int(failureInterval.Seconds())))
		return http.StatusTooManyRequests, "Too many failed attempts. Check that the token is complete, and try again in a few seconds."
	}
	return http.StatusUnauthorized, strings.ToUpper(err.Error()[:1]) + err.Error()[1:] + "."
}

// EndSession deletes the session cookie.
func EndSession(w http.ResponseWriter) { setSession(w, "", -1) }

func setSession(w http.ResponseWriter, token string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: SessionCookie, Value: token, Path: "/", MaxAge: maxAge,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
}

// FormAge is how long a form can be sent after its page was read.
const FormAge = 12 * time.Hour

// FormField is the field of a form that has its token.
const FormField = "form"

// Forms signs the forms of pages, so that only a page that a server sent to a client can change
// something in the client's name. Without a token of the client, it is a page of this process.
type Forms struct{ key []byte }

// NewForms returns Forms with a key of its own.
func NewForms() Forms { return Forms{[]byte(rand.Text())} }

// Sign returns the token of a form in the answer to a request of a client.
func (f Forms) Sign(r *http.Request, c Client, at time.Time) string {
	key := f.key
	if token := sent(r); token != "" {
		key = []byte(token) // which all servers of the client know
	}
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("form\n" + seconds + "\n" + c.Role.String() + "\n" + c.Name))
	return seconds + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Signed reports whether a client's request has the token of a form that is not too old.
func (f Forms) Signed(r *http.Request, c Client, now time.Time) bool {
	token := r.PostFormValue(FormField)
	text, _, _ := strings.Cut(token, ".")
	seconds, err := strconv.ParseInt(text, 10, 64)
	at := time.Unix(seconds, 0)
	return err == nil && hmac.Equal([]byte(token), []byte(f.Sign(r, c, at))) && now.Sub(at) < FormAge
}
