package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestInit_OnATerminalItAsksUntilADatabaseAnswers(t *testing.T) {
	t.Parallel()
	url, conn := shop(t)
	execute(t, conn, `CREATE TABLE namespaces (); CREATE TABLE projects (); CREATE TABLE users (); CREATE TABLE members ()`)
	dir := t.TempDir()
	file := filepath.Join(dir, "caretaker.yml")
	keys, screen := cli.Terminal(t)
	typed := "postgres://x@127.0.0.1:1/x\n" + url + "\n\n" + dir + "/rules.yml\n127.0.0.1:0\n\n"
	assert.Must(keys.WriteString(typed))(t)
	var out strings.Builder
	command := []string{"init", "--config", file}
	code := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: &out, Err: screen})
	if code != 0 || !strings.Contains(out.String(), "use: gitlab") || strings.Contains(out.String(), "lfk install") {
		t.Fatalf("exit %d: %s", code, out.String())
	}
	content := assert.Must(os.ReadFile(file))(t)
	assert.Contains(t, string(content), "use: gitlab\n", `listen: '127.0.0.1:0'`, dir+"/rules.yml", url)
}
