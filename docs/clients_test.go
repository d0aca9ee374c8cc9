//go:build clients

package docs_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// clients make what a client needs, if anything, and run it.
var clients = map[string]string{
	"go": `./client`,
	"python": `mkdir python
		protoc -I "$ROOT/proto" -I "$ROOT/docs/clients/python" --python_out=python --grpc_python_out=python \
			--plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" rpc_status.proto "$ROOT"/proto/maintenance/v1/*.proto
		PYTHONPATH=python /usr/bin/python3 "$ROOT/docs/clients/python/client.py"`,
	"ruby": `mkdir ruby
		grpc_tools_ruby_protoc -I "$ROOT/proto" --ruby_out=ruby --grpc_out=ruby "$ROOT"/proto/maintenance/v1/*.proto
		ruby -I ruby "$ROOT/docs/clients/ruby/client.rb"`,
}

// refusals are the words of each language for the same code.
var refusals = map[string]string{"go": "NotFound", "python": "NOT_FOUND", "ruby": "NotFound"}

func TestClients_RunWatchAndReadErrors(t *testing.T) {
	s := newSession(t, <-estates(t, 1), programs(t))
	s.tidyUp()
	s.openDemo()
	_, blocks := read(t, "docs/guides/security.md")
	// The page makes authority, certificate, tokens and configuration, and starts the server.
	for _, b := range blocks[:5] {
		s.try(b)
	}
	root := assert.Must(filepath.Abs(".."))(t)
	build := exec.Command("go", "build", "-o", filepath.Join(s.root, "home", "me", "client"), "./clients/go")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, command := range clients {
		t.Run(name, func(t *testing.T) {
			s.t = t
			out, code := s.run("set -e\nROOT='" + root + "'\n" + command + " localhost:" + s.ports["50051"] +
				" ca.crt alice.token\nset +e")
			shown := "the same run: true\nRUN_STATE_SUCCEEDED records …\n" + refusals[name] + " UNKNOWN_DATABASE nowhere\n"
			why := compare(shown, out)
			assert.That(t, why == "" && code == 0, "exit %d: %s\n%s", code, why, out)
		})
	}
}
