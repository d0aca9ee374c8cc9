package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// echo is a server that sends back what it gets, and its address as a URL.
func echo(t *testing.T) string {
	t.Helper()
	listener := assert.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return "postgres://" + listener.Addr().String() + "/main"
}

// through opens a connection to the server behind a proxy.
func through(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	c := assert.Must(net.Dial("tcp", p.listener.Addr().String()))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// moment is how long a text is waited for that must not come.
const moment = 200 * time.Millisecond

// answered sends a text and reports whether it comes back in time.
func answered(t *testing.T, c net.Conn, text string, timeout time.Duration) bool {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		return false
	}
	assert.NoError(t, c.SetReadDeadline(time.Now().Add(timeout)))
	back := make([]byte, len(text))
	_, err := io.ReadFull(c, back)
	return err == nil && string(back) == text
}

func newTestProxy(t *testing.T) *proxy {
	t.Helper()
	p := assert.Must(newProxy(context.Background(), echo(t)))(t)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestProxy_PassesCutsAndStallsConnections(t *testing.T) {
	p := newTestProxy(t)
	c := through(t, p)
	assert.Require(t, answered(t, c, "hello", devdb.WaitTimeout), "a whole network passes nothing")
	p.stalled.Store(true)
	assert.That(t, !answered(t, c, "again", moment), "a stalled network passes something")
	p.heal()
	back := make([]byte, len("again"))
	_ = c.SetReadDeadline(time.Now().Add(devdb.WaitTimeout))
	if _, err := io.ReadFull(c, back); err != nil || string(back) != "again" {
		t.Errorf("what was held up came as %q, %v", back, err)
	}
	p.cut()
	assert.That(t, !answered(t, c, "once more", moment), "a connection that is cut passes something")
	assert.That(t, answered(t, through(t, p), "hello", devdb.WaitTimeout), "there is no new connection after a cut")
}

func TestProxy_CutsAfterCommitWasSent(t *testing.T) {
	p := newTestProxy(t)
	c := through(t, p)
	p.commits.Store(1)
	assert.Require(t, answered(t, c, "Q begin\x00", devdb.WaitTimeout), "it does not wait for a COMMIT")
	assert.That(t, !answered(t, c, "Q commit\x00", moment) || !answered(t, c, "Q select\x00", moment), "the connection lasts beyond the COMMIT")
	assert.That(t, answered(t, through(t, p), "Q commit\x00", devdb.WaitTimeout), "more than one COMMIT was cut")
	const first, second = "E first S\x00\x00\x00\x04", "E second S\x00\x00\x00\x04"
	c = through(t, p)
	p.statements.Store(1)
	assert.That(t, !answered(t, c, first, devdb.WaitTimeout) || !answered(t, c, second, moment),
		"the connection lasts beyond a statement that commits by itself")
}

// TestMutations_AreOfTheCodeAsItIs fails when a text that a mutation replaces has changed. That each is found is
// for make faults FAULTS_ARGS=-mutations.
func TestMutations_AreOfTheCodeAsItIs(t *testing.T) {
	out := assert.Must(exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output())(t)
	source := filepath.Dir(strings.TrimSpace(string(out)))
	for _, m := range mutations() {
		o := &overlay{dir: t.TempDir(), Replace: map[string]string{}}
		for _, c := range m.changes {
			path := filepath.Join(source, c.file)
			if err := o.change(path, c.before, c.after); err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			changed := assert.Must(os.ReadFile(o.Replace[path]))(t)
			assert.That(t, bytes.Contains(changed, []byte(c.after)),
				"%s: %s was not changed", m.name, c.file)
		}
	}
}

func TestParse_NamesWhatThereIs(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "rain"}, `there is no fault "rain": choose one of a database is unreachable while a replica starts; kill a replica; `},
		{[]string{"-replicas", "0"}, "-replicas is 0: it must be 1 to 10"},
		{[]string{"-disturb", "-5s"}, "-disturb is -5s: it must be above 0"},
		{[]string{"-bound", "0"}, "-bound is 0: it must be above 0"},
		{[]string{"-mutation", "none"}, `there is no mutation "none": choose one of the epoch is not`},
		{[]string{"-size", "51"}, "-size is 51: it must be 1 to 50"},
		{[]string{"-mutations", "none"}, `there are no arguments, but got "none": see -help; for one mutation alone -mutation "none"`},
		{[]string{"now"}, `there are no arguments, but got "now": see -help`},
	} {
		if _, err := parse(c.args, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
}

func TestOpenLab_SaysWhyItCannot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	if _, err := openLab(t.Context(), file, oracle.Generate(1, 1)); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("%v, want that it is not a directory", err)
	}
}
