package web

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/access"
)

func TestEveryAnswer_ForbidsForeignContent(t *testing.T) {
	f := start(t)
	for _, path := range []string{"/", "/nothing"} {
		answer, body := f.request(http.MethodGet, path)
		h := answer.Header
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, h)
		}
		for _, foreign := range []string{"http://", "style=", " onclick", "<script>"} {
			if strings.Contains(strings.ReplaceAll(body, "http://www.w3.org", ""), foreign) {
				t.Errorf("%s: has %s", path, foreign)
			}
		}
	}
}

func TestOnlyReading_IsAllowed(t *testing.T) {
	f := start(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if answer, _ := f.request(method, "/"); answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %s", method, answer.Status)
		}
	}
	if answer, body := f.request(http.MethodHead, "/"); answer.StatusCode != http.StatusOK || body != "" {
		t.Errorf("HEAD: %s, %q", answer.Status, body)
	}
}

func TestForeignNames_AreRefusedOnLoopback(t *testing.T) {
	f := start(t)
	for host, want := range map[string]int{"evil.example": 421, "localhost:1": 200, "127.0.0.1": 200, "[::1]:8080": 200, "evil.example:8080": 421} {
		if answer, _ := f.request(http.MethodGet, "/", func(r *http.Request) { r.Host = host }); answer.StatusCode != want {
			t.Errorf("%s: %s", host, answer.Status)
		}
	}
}

func TestToken_IsNeededAsBearerOrPassword(t *testing.T) {
	only, err := access.New(access.Config{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
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
		for _, path := range []string{"/", "/static/x"} {
			want := c.want
			if path != "/" && want == 200 {
				want = 404
			}
			answer, _ := f.request(http.MethodGet, path, c.change)
			if answer.StatusCode != want || want == 401 && !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ") {
				t.Errorf("%s %s: %s", name, path, answer.Status)
			}
		}
	}
}
