package cli_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// asProcess holds the command when this test program plays caretaker.
const asProcess = "TEST_AS_CARETAKER"

func TestProcess(*testing.T) {
	if command := os.Getenv(asProcess); command != "" {
		os.Exit(cli.Main(strings.Fields(command)))
	}
}

// process starts a command as a process of its own, which signals can reach.
func (sh *shell) process(command string, more ...string) (*exec.Cmd, *screen) {
	sh.t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestProcess$")
	c.Env = slices.Concat(os.Environ(), sh.environment(), []string{asProcess + "=" + command}, more)
	out := &screen{}
	c.Stdout, c.Stderr = out, out
	assert.NoError(sh.t, c.Start())
	sh.t.Cleanup(func() { _ = c.Process.Kill() })
	return c, out
}

// signal sends a signal.
func signal(t *testing.T, c *exec.Cmd, s os.Signal) {
	t.Helper()
	assert.NoError(t, c.Process.Signal(s))
}

func TestFault_Signals_TermStopsTheServerInOrder(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	sh.set("CARETAKER_METRICS_LISTEN", "")
	server, log := sh.process("serve")
	log.field(t, "serving", "listen")
	signal(t, server, syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("%v: %s", err, log)
	}
	log.field(t, "stopped", "")
}

func TestFault_Signals_HangupReadsDefinitionsAndTokensAgain(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	definitions, tokens := sh.defined(oneKey), saved(t, "tokens.yml", "- {name: a, role: admin, sha256: "+strings.Repeat("ab", 32)+"}")
	single := saved(t, "token", "one")
	sh.set("CARETAKER_AUTH_TOKENS_FILE", tokens)
	sh.set("CARETAKER_AUTH_TOKEN_FILE", single)
	server, log := sh.process("serve")
	log.field(t, "serving", "listen")
	assert.NoError(t, os.WriteFile(definitions, []byte("c: 1"), 0o600))
	assert.NoError(t, os.WriteFile(tokens, nil, 0o600))
	assert.NoError(t, os.WriteFile(single, []byte(" \n"), 0o600))
	signal(t, server, syscall.SIGHUP)
	assert.Contains(t, log.field(t, "definitions not reloaded", "error"), definitions+": c")
	assert.Contains(t, log.field(t, "file of tokens not read, those of before stay valid", "error"), tokens)
	assert.Contains(t, log.field(t, "token not read, that of before stays valid", "error"), single)
	assert.NoError(t, os.WriteFile(single, []byte("two"), 0o600))
	assert.NoError(t, os.WriteFile(definitions, []byte(oneKey), 0o600))
	signal(t, server, syscall.SIGHUP)
	log.field(t, "token read again", "")
	log.field(t, "definitions reloaded", "")
	signal(t, server, syscall.SIGTERM)
	assert.NoError(t, server.Wait())
}

func TestFault_Signals_AClientWhoseServerIsKilledSaysThatTheConnectionWasLost(t *testing.T) {
	sh := newShell(t)
	sql := sh.prepared()
	sh.defined(oneKey)
	execute(t, sql, slow)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	sh.set("CARETAKER_SCHEDULER_ENABLED", "false")
	server, log := sh.process("serve")
	address := log.field(t, "serving", "listen")
	run, out := sh.process("run " + worker + " --address " + address)
	eventually(t, "the run starts", out, func() bool { return strings.Contains(out.String(), " started") })
	signal(t, server, os.Kill)
	assert.That(t, run.Wait() != nil && run.ProcessState.ExitCode() == 1, "exit %d", run.ProcessState.ExitCode())
	assert.Contains(t, out.String(), "the connection to "+address+" was lost", "caretaker runs shows the runs")
	assert.Lacks(t, out.String(), "--tls")
}

func TestFault_Signals_InterruptCancelsTheRunThatIsWaitedFor(t *testing.T) {
	sh := newShell(t)
	sql := sh.prepared()
	sh.defined(oneKey)
	execute(t, sql, slow)
	r := sh.serving()
	run, out := sh.process("run " + worker + " --address " + r.address)
	eventually(t, "the run starts", out, func() bool { return strings.Contains(out.String(), " started") })
	signal(t, run, os.Interrupt)
	if err := run.Wait(); err == nil || run.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, exit %d", err, run.ProcessState.ExitCode())
	}
	assert.Contains(t, out.String(), "cancelling run", "on main cancelled")
}
