package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLoad_ReadsTheRolesOfCertificates(t *testing.T) {
	t.Parallel()
	want := map[string]string{"alice@example.com": "admin", "spiffe://x/y": "viewer"}
	file := write(t, `
tls: {cert_file: c, key_file: k, client_ca_file: ca}
auth:
  certificates:
    alice@example.com: admin
    "spiffe://x/y": viewer
`)
	got, err := loadWork(file, []string{mainURL})
	assert.That(t, err == nil && reflect.DeepEqual(got.Auth.Certificates, want), "got %v, %v", got.Auth, err)
	for text, want := range map[string]map[string]string{
		`{"bob": "operator"}`: {"bob": "operator"}, "bob: operator": {"bob": "operator"}, "": want,
	} {
		got, err := loadWork(file, []string{mainURL, "CARETAKER_AUTH_CERTIFICATES=" + text})
		assert.That(t, err == nil && reflect.DeepEqual(got.Auth.Certificates, want), "%s: got %v, %v", text, got.Auth, err)
	}
	if _, err := loadWork(file, []string{mainURL, "CARETAKER_AUTH_CERTIFICATES=bob"}); err == nil ||
		!strings.Contains(err.Error(), `CARETAKER_AUTH_CERTIFICATES: "bob" is not a mapping`) {
		t.Errorf("got %v", err)
	}
}
