package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
)

var databases devdb.Tests

func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }

// caretaker runs a command and returns its exit code and what it wrote.
func caretaker(t *testing.T, command ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = cli.Run(context.Background(), command, cli.Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}

// want runs a command, given as words, and fails the test unless it exits so and its whole output has these parts.
func want(t *testing.T, code int, command string, parts ...string) string {
	t.Helper()
	got, out, errOut := caretaker(t, strings.Fields(command)...)
	if got != code {
		t.Errorf("%s: exit %d, want %d\n%s%s", command, got, code, out, errOut)
	}
	for _, p := range parts {
		if !strings.Contains(out+errOut, p) {
			t.Errorf("%s: %q is not in\n%s%s", command, p, out, errOut)
		}
	}
	return out
}

// configured makes an empty database and lets the environment name it.
func configured(t *testing.T, name string) *pgx.Conn {
	t.Helper()
	url := databases.Clone(t, devdb.Template{Name: "bare"})
	t.Setenv("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", url)
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// defined writes definitions and lets the environment name them.
func defined(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "definitions.yml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", file)
	return file
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// migrate migrates the databases that the environment names.
func migrate(t *testing.T) {
	t.Helper()
	want(t, 0, "migrate")
}
