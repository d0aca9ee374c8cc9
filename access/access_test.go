package access

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func hashed(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

func write(t *testing.T, file, content string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

// problem is why a token is refused, "" if it is not.
func problem(k *Keys, given string) string {
	_, err := k.Identify(given, nil)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused.Problem
	}
	return ""
}

func TestNew_NamesWhatIsWrongWithAFile(t *testing.T) {
	sum := hashed("a")
	for content, want := range map[string]string{
		"":                                 "no tokens found",
		"[]":                               "contains no tokens",
		"token: abcdefgh":                  "must be a list",
		"abcdefghijklmnop":                 "must be a list",
		"- {name: a, token: abcdefgh}":     "line 1: field token not found",
		"- {name: a, role: admin}":         `token 1 ("a"): sha256 must be 64 hexadecimal digits`,
		"- {sha256: " + sum + "}":          `token 1 (""): name must have 1 to `,
		"- {name: a, sha256: " + sum + "}": "role is required",
		"- {name: \"a\\n\", sha256: 1}":    "name must have 1 to ",
		"- {name: a, sha256: 12ab}":        "sha256 must be 64",
		"- {nam: a}\n- {rol: b}":           "expires: line 1: field nam not found, line 2: field rol not found",
		"- [a":                             "must be a list",
		"- {name: a, sha256: " + sum + ", role: boss}":                                                         `token 1 ("a"): role: "boss" is not a role: use viewer, operator or admin`,
		"- {name: a, sha256: " + hashed("") + ", role: admin}":                                                 "an empty string",
		"- {name: a, sha256: " + sum + ", role: admin, workers: [w]}":                                          "only with the role operator",
		"- {name: a, sha256: " + sum + ", role: operator, workers: }":                                          "workers is empty",
		"- {name: a, sha256: " + sum + ", role: operator, workers: []}":                                        "workers is empty",
		"- {name: a, sha256: " + sum + ", role: operator, workers: [x]}":                                       `unknown worker "x": known workers are w, v`,
		"- {name: a, sha256: " + sum + ", role: admin, expires: soon}":                                         `"soon" is neither a time`,
		"- {name: a, sha256: " + sum + ", role: admin}\n- {name: a, sha256: " + hashed("b") + ", role: admin}": `token 2 ("a"): another token has the same name`,
		"- {name: a, sha256: " + sum + ", role: admin}\n- {name: b, sha256: " + sum + ", role: admin}":         `token 2 ("b"): another token has the same sha256`,
		"- {name: a, sha256: " + sum + ", role: admin}\n---\n- {}":                                             "more than one",
	} {
		file := filepath.Join(t.TempDir(), "tokens.yml")
		write(t, file, content)
		_, err := New(Config{TokensFile: file, Workers: []string{"w", "v"}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "auth.tokens_file: "+file) {
			t.Errorf("%s: got %v, want %s", content, err, want)
		}
		assert.That(t, err == nil || !strings.Contains(err.Error(), "access."), "%s: the message speaks of Go: %v", content, err)
		if err != nil && (strings.Contains(err.Error(), "abcdef") || strings.Contains(err.Error(), sum[:8])) {
			t.Errorf("the message has a part of the file: %v", err)
		}
	}
	if _, err := New(Config{TokensFile: "/nowhere/tokens.yml"}); err == nil || !strings.Contains(err.Error(), "auth.tokens_file: open /nowhere") {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := New(Config{Certificates: map[string]string{"a": "boss"}}); err == nil || !strings.Contains(err.Error(), "auth.certificates: a") {
		t.Errorf("a wrong role: %v", err)
	}
}

func TestNew_ShowsNoTokenThatIsInTheWrongPlace(t *testing.T) {
	const secret = "8f14e45fceea167a5a36dedd4bea2543"
	sum := hashed("a")
	for _, content := range []string{
		secret, "- " + secret, secret + ": admin", "- {" + secret + ": a}", "- {name: a, name: " + secret + "}", "- &" + secret + " [", "- *" + secret,
		"- {name: " + secret + "}", "- {name: a, sha256: " + secret + "}", "- {name: a, sha256: " + sum + ", role: " + secret + "}",
		"- {name: a, sha256: " + sum + ", role: operator, workers: [" + secret + "]}", "- {name: a, sha256: " + sum + ", role: operator, workers: " + secret + "}",
		"- {name: a, sha256: " + sum + ", role: admin, expires: " + secret + "}", "- {name: a, sha256: " + sum + ", role: admin, expires: {a: " + secret + "}}",
		"- {name: a, sha256: [" + secret + "]}", "- {name: a, sha256: !" + secret + " b}",
	} {
		file := filepath.Join(t.TempDir(), "tokens.yml")
		write(t, file, content)
		if _, err := New(Config{TokensFile: file, Workers: []string{"w"}}); err == nil || strings.Contains(err.Error(), secret[:8]) {
			t.Errorf("%s: got %v", content, err)
		}
	}
}

func TestIdentify_SaysWhoATokenIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write(t, file, fmt.Sprintf(`
- {name: a, sha256: %s, role: viewer, expires: 2999-01-31T12:00:00Z}
- {name: b, sha256: %s, role: operator, workers: [w]}
`, hashed("a"), strings.ToUpper(hashed("b"))))
	k := assert.Must(New(Config{TokensFile: file, Token: "single", Workers: []string{"w"}}))(t)
	for given, want := range map[string]string{
		"a": "{a viewer []}", "b": "{b operator [w]}", "single": "{ admin []}", "": "{ none []}", "A": "{ none []}", "singl": "{ none []}",
	} {
		if got, _ := k.Identify(given, nil); fmt.Sprint(got) != want {
			t.Errorf("%q: got %v, want %s", given, got, want)
		}
	}
	assert.That(t, problem(k, "") == "missing" && problem(k, "x") == "unknown", "the problem is not told")
}

func TestReload_ReadsTheSingleTokenAgainAndAMistakeKeepsIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, "one")
	k := assert.Must(New(Config{TokenFile: file}))(t)
	for _, content := range []string{"two\n", " \n"} {
		write(t, file, content)
		k.Reload()
		assert.That(t, problem(k, "two") == "" && problem(k, "one") == "unknown", "after %q", content)
	}
}

func TestIdentify_ATokenExpiresToTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tokens.yml")
		at := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
		write(t, file, fmt.Sprintf("- {name: a, sha256: %s, role: admin, expires: %s}", hashed("a"), at.Format(time.RFC3339)))
		k := assert.Must(New(Config{TokensFile: file}))(t)
		time.Sleep(time.Until(at) - time.Nanosecond) //nolint:forbidigo // in a synctest bubble
		assert.Equal(t, problem(k, "a"), "", "before")
		time.Sleep(time.Nanosecond) //nolint:forbidigo // in a synctest bubble
		if _, err := k.Identify("a", nil); problem(k, "a") != "expired" || !strings.Contains(err.Error(), at.Format(time.RFC3339)) {
			t.Errorf("then: %v", err)
		}
	})
}

func TestTokensFile_IsReadAgainWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, log := filepath.Join(t.TempDir(), "tokens.yml"), &bytes.Buffer{}
		entry := func(name string) string {
			return fmt.Sprintf("- {name: %s, sha256: %s, role: admin}\n", name, hashed(name))
		}
		write(t, file, entry("a"))
		k := assert.Must(New(Config{TokensFile: file, Logger: slog.New(slog.NewTextHandler(log, nil))}))(t)
		// want looks twice, a second apart: what is wrong is told once.
		want := func(what string, lines int, valid ...string) {
			t.Helper()
			time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
			for _, name := range []string{"a", "b"} {
				is := strings.Contains(strings.Join(valid, " "), name)
				if got := problem(k, name); is != (got == "") {
					t.Errorf("%s: %s is %q", what, name, got)
				}
			}
			time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
			_ = problem(k, "a")
			got := strings.Count(log.String(), "\n")
			assert.That(t, got == lines, "%s: %d lines\n%s", what, got, log)
		}
		want("as it was", 0, "a")
		write(t, file, entry("a")+entry("b"))
		assert.Equal(t, problem(k, "b"), "unknown", "within the second of the last look")
		want("added", 1, "a", "b")
		write(t, file, entry("a")+"- broken\n")
		want("broken", 2, "a", "b")
		assert.That(t, strings.Contains(log.String(), "must be a list"), "the log does not say what is wrong: %s", log)
		assert.NoError(t, os.Remove(file))
		want("gone", 3, "a", "b")
		write(t, file, entry("b"))
		want("taken back", 4, "b")
		write(t, file, "")
		want("empty", 5, "b")
		write(t, file, entry("b"))
		want("as before", 6, "b")
		info := assert.Must(os.Stat(file))(t)
		write(t, file, entry("a"))
		assert.NoError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
		want("copied, of the same size and time", 7, "a")
		write(t, file, "[]\n")
		want("the last one taken back", 8)
		write(t, file, "broken")
		want("broken once more", 9)
		time.Sleep(warnInterval) //nolint:forbidigo // in a synctest bubble
		want("broken for a minute", 10)
	})
}

func TestIdentify_SaysWhoACertificateIs(t *testing.T) {
	uri := assert.Must(url.Parse("spiffe://example/ops"))(t)
	alice := &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, DNSNames: []string{"host"}, URIs: []*url.URL{uri}}
	unnamed := &x509.Certificate{EmailAddresses: []string{"bob@example.com"}}
	for what, c := range map[string]struct {
		config Config
		of     *x509.Certificate
		want   string
	}{
		"no roles":       {Config{}, alice, "{alice admin []}"},
		"nobody":         {Config{}, nil, "{ admin []}"},
		"common name":    {Config{Certificates: map[string]string{"alice": "viewer"}}, alice, "{alice viewer []}"},
		"URI":            {Config{Certificates: map[string]string{"alice": "viewer", uri.String(): "operator"}}, alice, "{alice operator []}"},
		"email":          {Config{Certificates: map[string]string{"bob@example.com": "admin"}}, unnamed, "{bob@example.com admin []}"},
		"other":          {Config{Certificates: map[string]string{"carol": "admin"}}, alice, "{alice none []}"},
		"token needed":   {Config{Token: "t"}, alice, "{ none []}"},
		"token or roles": {Config{Token: "t", Certificates: map[string]string{"alice": "viewer"}}, alice, "{alice viewer []}"},
	} {
		k := assert.Must(New(c.config))(t)
		if got, _ := k.Identify("", c.of); fmt.Sprint(got) != c.want {
			t.Errorf("%s: got %v, want %s", what, got, c.want)
		}
	}
	k := assert.Must(New(Config{Token: "t", Certificates: map[string]string{"alice": "viewer"}}))(t)
	if got, err := k.Identify("t", alice); fmt.Sprint(got) != "{alice admin []}" {
		t.Errorf("a token decides: %v, %v", got, err)
	}
	if _, err := k.Identify("forged", alice); err == nil {
		t.Error("a forged token is overlooked for a certificate")
	}
}

func TestGuard_LetsViewersLook(t *testing.T) {
	k := assert.Must(New(Config{Token: "t", Certificates: map[string]string{"alice": "viewer"}}))(t)
	guarded := k.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	certificate := func(name string) func(*http.Request) {
		return func(r *http.Request) {
			c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
		}
	}
	for what, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"nobody":    {func(*http.Request) {}, 401},
		"bearer":    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer t") }, 204},
		"password":  {func(r *http.Request) { r.SetBasicAuth("prometheus", "t") }, 204},
		"forged":    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, 401},
		"alice":     {certificate("alice"), 204},
		"mallory":   {certificate("mallory"), 403},
		"unsettled": {func(r *http.Request) { r.TLS = &tls.ConnectionState{} }, 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		c.change(r)
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		if w.Code != c.want || c.want == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
}
