package cli_test

import (
	"strings"
	"testing"
)

// What goes wrong between client and server names the flag that is missing, or one too many.
func TestClient_NamesTheFlagThatIsMissing(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	certificate, key := certified(t, "server")
	other, otherKey := certified(t, "other")
	token := saved(t, "token", "secret\n")
	plain := sh.serving()
	plain.want(0, "status", worker)
	for _, flags := range []string{"--tls", "--tls-ca " + certificate, "--tls-cert " + other + " --tls-key " + otherKey} {
		plain.want(1, "status "+flags, "does not use TLS: leave --tls and --tls-* out")
	}
	plain.stop()
	if code := <-plain.exit; code != 0 {
		t.Fatalf("exit %d", code)
	}
	sh.set("CARETAKER_TLS_CERT_FILE", certificate)
	sh.set("CARETAKER_TLS_KEY_FILE", key)
	sh.set("CARETAKER_AUTH_TOKEN_FILE", token)
	r := sh.serving()
	ca := " --tls-ca " + certificate
	for _, command := range []string{"status", "run " + worker, "watch 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "plan user 7", "receipts list"} {
		r.want(1, command, "give --tls or --tls-ca if the server uses TLS")
		r.want(1, command+" --token-file "+token, "give --tls or --tls-ca if the server uses TLS")
		r.want(1, command+" --tls", "name the authority with --tls-ca")
		r.want(1, command+" --tls-ca "+other, "name the authority with --tls-ca")
		r.want(1, command+ca, "a bearer token is needed", "give --token-file, or --tls-cert and --tls-key")
		r.want(1, command+ca+" --token-file /nowhere", "--token-file: open /nowhere")
		if code, out, errOut := sh.caretaker(strings.Fields(command + ca + " --address " + r.address + " --token-file " + token)...); strings.Contains(errOut, "--token-file") || strings.Contains(errOut, "--tls") {
			t.Errorf("%s with all it needs: exit %d: %s%s", command, code, out, errOut)
		}
	}
	r.want(0, "status --token-file "+token+ca, worker)
	r.want(1, "status --token-file "+saved(t, "wrong", "wrong")+ca, "this token is not known here")
	r.want(1, "status --tls-cert "+other+ca, "--tls-cert", "--tls-key")
	r.want(1, "status --tls-cert "+other, "--tls-key is missing")
	r.want(1, "status --tls-key "+key, "--tls-cert is missing")
	empty := saved(t, "empty", "\n")
	r.want(1, "status --token-file "+empty+ca, "--token-file: "+empty+" is empty")
	r.want(1, "status --tls-ca "+key, "--tls-ca: ", "has no PEM certificate")
}
