package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// SetSession stores a token in the session cookie. The browser forgets it when it is closed.
func SetSession(w http.ResponseWriter, token string) { setSession(w, token, 0) }

// EndSession deletes the session cookie.
func EndSession(w http.ResponseWriter) { setSession(w, "", -1) }

func setSession(w http.ResponseWriter, token string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: SessionCookie, Value: token, Path: "/", MaxAge: maxAge,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// FormAge is how long a form can be sent after its page was read.
const FormAge = 12 * time.Hour

// Forms signs the forms of pages, so that only a page that this process sent to a client can change
// something in the client's name.
type Forms struct{ key []byte }

// NewForms returns Forms with a key of its own.
func NewForms() Forms { return Forms{[]byte(rand.Text())} }

// Sign returns the token of a form that a client gets at a time.
func (f Forms) Sign(c Client, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, f.key)
	_, _ = mac.Write([]byte(seconds + "\n" + c.Role.String() + "\n" + c.Name))
	return seconds + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Signed reports whether a form's token is of this process, for this client, and not too old.
func (f Forms) Signed(token string, c Client, now time.Time) bool {
	text, _, _ := strings.Cut(token, ".")
	seconds, err := strconv.ParseInt(text, 10, 64)
	at := time.Unix(seconds, 0)
	return err == nil && hmac.Equal([]byte(token), []byte(f.Sign(c, at))) && now.Sub(at) < FormAge
}
