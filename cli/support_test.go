package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

var databases devdb.Tests

// The tests fail if a server has left goroutines behind.
func TestMain(m *testing.M) {
	code := databases.Run(m)
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shell runs the commands of a test in an environment of their own, on databases of their own.
type shell struct {
	t         *testing.T
	variables map[string]string
	databases *devdb.Tests
}

// newShell lets the test run in parallel, and returns a shell whose servers listen on free ports.
func newShell(t *testing.T) *shell {
	t.Helper()
	t.Parallel()
	return alone(t)
}

// alone is newShell for a test that is not parallel, as it concerns the whole process.
func alone(t *testing.T) *shell {
	t.Helper()
	return &shell{t, map[string]string{
		"HOME": t.TempDir(), "CARETAKER_LISTEN": "127.0.0.1:0", "CARETAKER_METRICS_LISTEN": "127.0.0.1:0",
	}, &databases}
}

// onItsOwnCluster lets the shell make its databases on a cluster that no other test uses, for what concerns the whole
// server: standbys, settings, stops.
func (sh *shell) onItsOwnCluster() *devdb.Cluster {
	sh.t.Helper()
	own := &devdb.Tests{Settings: map[string]string{"cluster_name": "own"}}
	sh.t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			sh.t.Error(err)
		}
	})
	sh.databases = own
	return own.Cluster(sh.t)
}

// sub returns a copy for a subtest, whose variables end with it.
func (sh *shell) sub(t *testing.T) *shell {
	t.Helper()
	return &shell{t, maps.Clone(sh.variables), sh.databases}
}

func (sh *shell) set(name, value string) { sh.variables[name] = value }

func (sh *shell) get(name string) string { return sh.variables[name] }

func (sh *shell) environment() (all config.Environment) {
	for name, value := range sh.variables {
		all = append(all, name+"="+value)
	}
	return all
}

// caretaker runs a command and returns its exit code and what it wrote.
func (sh *shell) caretaker(command ...string) (code int, out, errOut string) {
	sh.t.Helper()
	var stdout, stderr bytes.Buffer
	code = cli.Run(context.Background(), command, cli.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Env: sh.environment(),
	})
	return code, stdout.String(), stderr.String()
}

// want runs a command, given as words, and fails the test unless it exits so and its whole output has these parts.
func (sh *shell) want(code int, command string, parts ...string) string {
	sh.t.Helper()
	got, out, errOut := sh.caretaker(strings.Fields(command)...)
	if got != code {
		sh.t.Errorf("%s: exit %d, want %d\n%s%s", command, got, code, out, errOut)
	}
	for _, p := range parts {
		if !strings.Contains(out+errOut, p) {
			sh.t.Errorf("%s: %q is not in\n%s%s", command, p, out, errOut)
		}
	}
	return out
}

// database makes a database of a template and names it in the environment.
func (sh *shell) database(name string, from devdb.Template) *pgx.Conn {
	sh.t.Helper()
	url := sh.databases.Clone(sh.t, from)
	sh.set("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", url)
	conn := assert.Must(pgx.Connect(context.Background(), url))(sh.t)
	sh.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// configured makes an empty database that the environment names.
func (sh *shell) configured(name string) *pgx.Conn {
	sh.t.Helper()
	return sh.database(name, devdb.Template{Name: "bare"})
}

// defined writes definitions that the environment names.
func (sh *shell) defined(content string) string {
	sh.t.Helper()
	file := filepath.Join(sh.t.TempDir(), "definitions.yml")
	assert.NoError(sh.t, os.WriteFile(file, []byte(content), 0o600))
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", file)
	return file
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// migrate migrates the databases that the environment names.
func (sh *shell) migrate() {
	sh.t.Helper()
	sh.want(0, "migrate")
}
