package config_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// profiled returns the environment of a user with a file of profiles.
func profiled(t *testing.T, content string) config.Environment {
	t.Helper()
	environment := config.Environment{"XDG_CONFIG_HOME=" + t.TempDir()}
	file := environment.ProfilesFile()
	assert.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return environment
}

const twoProfiles = `
default: near
profiles:
  near: {address: "127.0.0.1:1"}
  far: {address: "far:443", tls: true, token_file: /far/token, tls_ca: /far/ca}
`

func TestReadClient_TheEnvironmentWinsOverTheProfile(t *testing.T) {
	t.Parallel()
	environment := profiled(t, twoProfiles)
	for profile, want := range map[string]config.Client{
		"": {Address: "127.0.0.1:1", AddressSource: `address in profile "near"`},
		"far": {
			Address: "far:443", TLS: true, TokenFile: "/far/token", CAFile: "/far/ca",
			AddressSource: `address in profile "far"`,
		},
	} {
		if c, err := environment.ReadClient(profile); err != nil || c != want {
			t.Errorf("%q: %+v, %v", profile, c, err)
		}
	}
	environment = append(environment, "CARETAKER_CLIENT_PROFILE=far", "CARETAKER_ADDRESS=other:1",
		"CARETAKER_CLIENT_TLS=false", "CARETAKER_CLIENT_TOKEN_FILE=/other")
	want := config.Client{Address: "other:1", AddressSource: "CARETAKER_ADDRESS", TokenFile: "/other", CAFile: "/far/ca"}
	c := assert.Must(environment.ReadClient(""))(t)
	assert.That(t, c == want, "%+v", c)
	if mistakes := environment.Mistyped(); len(mistakes) > 0 {
		t.Error(mistakes)
	}
	if names := strings.Join(environment.ProfileNames(), " "); names != "far near" {
		t.Error(names)
	}
}

func TestReadClient_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"profiles: {a: {port: x}}":       "port",
		"profiles:\n  a: {token_fil: x}": "client.yml: line 2: field token_fil not found",
		"profiles: {a: {socket: x}}":     "line 1: field socket not found",
		"default: a\nb: 1\nc: 2":         "line 2: field b not found, line 3: field c not found",
		"defaul: a":                      "line 1: field defaul not found",
		"profiles: {a: {tls: maybe}}":    "line 1: cannot unmarshal !!str `maybe`",
		"profiles: [a]":                  "line 1: cannot unmarshal !!seq",
		"profiles: {a: x}":               "line 1: cannot unmarshal !!str `x`",
		"profiles: {a: {address: [x]}}":  "line 1: cannot unmarshal !!seq",
		"profiles: {a: {}}":              `profile "b" not found: known profiles are a`,
		"":                               `profile "b" not found: known profiles are none`,
	} {
		_, err := profiled(t, content).ReadClient("b")
		assert.That(t, err != nil && strings.Contains(err.Error(), want) &&
			!strings.Contains(err.Error(), "config."), "%q: %v, want %q", content, err, want)
	}
	environment := append(profiled(t, twoProfiles), "CARETAKER_CLIENT_TLS=yes")
	if _, err := environment.ReadClient(""); err == nil || !strings.Contains(err.Error(), "CARETAKER_CLIENT_TLS") {
		t.Error(err)
	}
}

func TestProfilesFile_IsInTheDirectoryForConfigurations(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "darwin" {
		t.Skip("there it is in ~/Library")
	}
	for want, environment := range map[string]config.Environment{
		"/x/caretaker/client.yml":               {"HOME=/home/me", "XDG_CONFIG_HOME=/x"},
		"/home/me/.config/caretaker/client.yml": {"HOME=/home/me", "XDG_CONFIG_HOME="},
		"":                                      {"HOME=/home/me", "XDG_CONFIG_HOME=relative"},
	} {
		assert.Equal(t, environment.ProfilesFile(), want, environment)
	}
}
