package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/config"
)

// profiled writes the file of profiles of a user.
func profiled(t *testing.T, content string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	file := config.ProfilesFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

const twoProfiles = `
default: near
profiles:
  near: {address: "127.0.0.1:1"}
  far: {address: "far:443", tls: true, token_file: /far/token, tls_ca: /far/ca}
`

func TestReadClient_TheEnvironmentWinsOverTheProfile(t *testing.T) {
	profiled(t, twoProfiles)
	for profile, want := range map[string]config.Client{
		"":    {Address: "127.0.0.1:1"},
		"far": {Address: "far:443", TLS: true, TokenFile: "/far/token", CAFile: "/far/ca"},
	} {
		if c, err := config.ReadClient(profile); err != nil || c != want {
			t.Errorf("%q: %+v, %v", profile, c, err)
		}
	}
	t.Setenv("CARETAKER_CLIENT_PROFILE", "far")
	t.Setenv("CARETAKER_ADDRESS", "other:1")
	t.Setenv("CARETAKER_CLIENT_TLS", "false")
	t.Setenv("CARETAKER_CLIENT_TOKEN_FILE", "/other")
	want := config.Client{Address: "other:1", TokenFile: "/other", CAFile: "/far/ca"}
	if c, err := config.ReadClient(""); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	if mistakes := config.Mistyped(); len(mistakes) > 0 {
		t.Error(mistakes)
	}
	if names := strings.Join(config.ProfileNames(), " "); names != "far near" {
		t.Error(names)
	}
}

func TestReadClient_MistakesAreNamed(t *testing.T) {
	for content, want := range map[string]string{
		"profiles: {a: {port: x}}":       "port",
		"profiles:\n  a: {token_fil: x}": "client.yml: line 2: unknown key token_fil, did you mean token_file?",
		"profiles: {a: {socket: x}}":     "unknown key socket: a profile has address, tls, tls_ca, tls_cert, tls_key, token_file, local",
		"defaul: a":                      "line 1: unknown key defaul, did you mean default?",
		"profiles: {a: {tls: maybe}}":    `line 1: "maybe" is not true or false`,
		"profiles: [a]":                  "line 1: \"\" is not a mapping of keys to values",
		"profiles: {a: x}":               `line 1: "x" is not a mapping of keys to values`,
		"profiles: {a: {address: [x]}}":  "is not text",
		"profiles: {a: {}}":              `there is no profile "b", there are: a`,
		"":                               `there is no profile "b", there are: none`,
	} {
		profiled(t, content)
		_, err := config.ReadClient("b")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "config.") {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	profiled(t, twoProfiles)
	t.Setenv("CARETAKER_CLIENT_TLS", "yes")
	if _, err := config.ReadClient(""); err == nil || !strings.Contains(err.Error(), "CARETAKER_CLIENT_TLS") {
		t.Error(err)
	}
}
