package cli_test

import (
	"net"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestClient_UsesTheServerOfItsConfiguration(t *testing.T) {
	sh, _ := newPrepared(t)
	token := saved(t, "token", "secret\n")
	certificate, key := certified(t, "server")
	file := func(listen string) string {
		return saved(t, "caretaker.yml", "listen: "+listen+
			"\ntls: {cert_file: "+certificate+", key_file: "+key+"}\nauth: {token_file: "+token+"}\n")
	}
	r := sh.serving("serve", "--config", file("127.0.0.1:0"))
	sh.set("CARETAKER_LISTEN", "")
	sh.set("CARETAKER_ADDRESS", "127.0.0.1:1")
	_, port, _ := net.SplitHostPort(r.address)
	config := " --config " + file(r.address)
	everywhere := " --config " + file("0.0.0.0:"+port)

	sh.want(0, "status"+config, worker)
	sh.want(0, "status"+everywhere, worker)
	sh.want(0, "status --config /nowhere.yml --help", "the listen key of the --config file (ignored with --profile)")
	sh.want(0, "pause "+worker+" --reason r"+config, "paused", "(server ", " at "+r.address+")")
	sh.want(0, "pause "+worker+" --reason r"+everywhere, " at localhost:"+port+")")
	_, out, errOut := sh.caretaker(strings.Fields("resume " + worker + " -o json" + config)...)
	document(t, out)
	assert.Contains(t, errOut, " at "+r.address+")")
	assert.Lacks(t, sh.want(0, "status"+config), "(server ")
	// A flag that names another server uses nothing of the file.
	sh.want(1, "status --address "+r.address+config, "use --tls or --tls-ca")
	sh.want(1, "status --address "+r.address+" --tls-ca "+certificate+config, "a bearer token is "+
		"required")
	sh.want(1, "status --token-file "+saved(t, "other", "other")+config, "unknown token")
	sh.want(1, "status", "no answer from 127.0.0.1:1")
	sh.want(1, "status --config "+saved(t, "plain.yml", "listen: 127.0.0.1:2"), "no answer from 127.0.0.1:2")
	sh.want(1, "status --config "+saved(t, "gone.yml",
		"listen: "+r.address+"\ntls: {cert_file: /nowhere.crt, key_file: /nowhere.key}"), "cannot read the certificate of the server: open /nowhere.crt")
}
