package devdb

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// Environment of a helper process: this test binary, started to hold a cluster
// and to be killed.
const (
	helperDir       = "DEVDB_TEST_DIR"
	helperEphemeral = "DEVDB_TEST_EPHEMERAL"
)

// helper starts a cluster, reports where it is, and waits to be killed or told to stop by the end
// of its standard input.
func helper() int {
	c, err := Start(context.Background(), Config{Dir: os.Getenv(helperDir), Ephemeral: os.Getenv(helperEphemeral) != ""})
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println(c.Dir(), c.URL("postgres"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := c.Stop(context.Background()); err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

// held is a cluster of another process.
type held struct {
	process  *exec.Cmd
	stdin    io.Closer
	dir, url string
}

// holdCluster starts a helper process. attr may be nil.
func holdCluster(t *testing.T, program, dir string, ephemeral bool, attr *syscall.SysProcAttr) held {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	if ephemeral {
		cmd.Env = append(cmd.Env, helperEphemeral+"=yes")
	}
	cmd.Dir, cmd.Stderr, cmd.SysProcAttr = "/", os.Stderr, attr
	stdin := assert.Must(cmd.StdinPipe())(t)
	stdout := assert.Must(cmd.StdoutPipe())(t)
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // most tests have ended it already
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	dir, url, ok := strings.Cut(strings.TrimSpace(line), " ")
	assert.Require(t, err == nil && ok && dir != "failed:", "helper says %q: %v", line, err)
	return held{process: cmd, stdin: stdin, dir: dir, url: url}
}

// end sends a signal and waits for the end of the process.
func (h held) end(t *testing.T, signal os.Signal) {
	t.Helper()
	assert.NoError(t, h.process.Process.Signal(signal))
	_ = h.process.Wait() // by the signal
}

func answers(url string) bool {
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return false
	}
	return conn.Close(context.Background()) == nil
}

// reachable is a folder like t.TempDir, but in one that every user can enter.
func reachable(t *testing.T) string {
	t.Helper()
	dir := assert.Must(os.MkdirTemp("", "devdb-test-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	assert.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// self copies the test binary to where every user can run it.
func self(t *testing.T) string {
	t.Helper()
	from := assert.Must(os.Open(os.Args[0]))(t)
	defer func() { _ = from.Close() }()
	path := filepath.Join(reachable(t), "devdb.test")
	to := assert.Must(os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755))(t)
	assert.Must(io.Copy(to, from))(t)
	assert.NoError(t, to.Close())
	return path
}
