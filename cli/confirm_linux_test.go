package cli_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRun_OnATerminalItAsksAndIsHeldToWhatItHasShown(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	r := sh.serving()
	execute(t, sql, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	left := func(want string) {
		t.Helper()
		var n string
		if err := sql.QueryRow(context.Background(), `SELECT count(*)::text FROM loose_foreign_keys_deleted_records WHERE status = 1`).Scan(&n); err != nil || n != want {
			t.Errorf("%s records are left, %v; want %s", n, err, want)
		}
	}
	records := ""
	assert.NoError(t,
		sql.QueryRow(context.Background(), `SELECT count(*)::text FROM loose_foreign_keys_deleted_records WHERE status = 1`).Scan(&records))
	for _, c := range []struct {
		typed, more string
		code        int
		left        string
	}{
		{"n\n", "", 1, records}, {"\n", "", 1, records}, {"yes\n", "", 0, "0"}, {"", "--yes", 0, "0"},
	} {
		keys, screen := cli.Terminal(t)
		assert.Must(keys.WriteString(c.typed))(t)
		var out strings.Builder
		command := strings.Fields("run " + worker + " --database main --address " + r.address + " " + c.more)
		code := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: &out, Err: screen})
		assert.That(t, code == c.code && (code == 0) == strings.Contains(out.String(), "succeeded"),
			"%q %s: exit %d, want %d: %s", c.typed, c.more, code, c.code, out.String())
		left(c.left)
	}
	// Nothing is due any more, so the command asks no question and starts no run.
	_, screen := cli.Terminal(t)
	command := strings.Fields("run " + worker + " --database main --address " + r.address)
	code := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: io.Discard, Err: screen})
	assert.Equal(t, code, 0)
	var runs int
	assert.NoError(t, sql.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.runs WHERE NOT dry_run`).Scan(&runs))
	assert.Equal(t, runs, 2)
}

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
	assert.Require(t, code == 0 && strings.Contains(out.String(), "use: gitlab") &&
		!strings.Contains(out.String(), "lfk install"), "exit %d: %s", code, out.String())
	content := assert.Must(os.ReadFile(file))(t)
	assert.Contains(t, string(content), "use: gitlab\n", `listen: '127.0.0.1:0'`, dir+"/rules.yml", url)
}

func TestProtect_AsksOnATerminalWhenTheTargetDoesNotExist(t *testing.T) {
	sh := newShell(t)
	sh.people()
	r := sh.serving()
	for typed, code := range map[string]int{"n\n": 1, "y\n": 0} {
		keys, screen := cli.Terminal(t)
		assert.Must(keys.WriteString(typed))(t)
		command := strings.Fields("protect user 4711 --reason r --address " + r.address)
		got := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: io.Discard, Err: screen})
		assert.That(t, got == code, "%q: exit %d, want %d", typed, got, code)
	}
}

func TestLfk_OnATerminalItAsksBeforeItDropsOnceForAll(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	execute(t, sql, shopKeys)
	sh.defined("")
	sh.want(0, "lfk install")
	sh.want(0, "lfk adopt --all")
	for _, c := range []struct {
		command, typed string
		code           int
		question, out  string
	}{
		{"lfk adopt --all", "n\n", 1, "drop c1_order, ", ""},
		{"lfk adopt --all", "y\n", 0, "orders_product? First send SIGHUP to every server to load the definition, and grant the server's role the privileges", "now a loose foreign key"},
		{
			"lfk untrack shop.products", "n\n", 1, "untrack shop.products? Without the triggers, deletions from shop.products leave " +
				"orphaned rows (shop.orders.product_code -> shop.products) [y/N] ", "",
		},
		{"lfk untrack shop.products", "y\n", 0, "untrack shop.products?", "dropped trigger"},
	} {
		keys, screen := cli.Terminal(t)
		assert.Must(keys.WriteString(c.typed))(t)
		shown := make(chan string)
		go func() {
			text, _ := io.ReadAll(keys) // the error is that the other side is closed
			shown <- string(text)
		}()
		var out strings.Builder
		code := cli.Run(t.Context(), strings.Fields(c.command), cli.Streams{In: screen, Out: &out, Err: screen, Env: sh.environment()})
		assert.NoError(t, screen.Close())
		text := <-shown
		assert.That(t, code == c.code && strings.Contains(out.String(), c.out) && strings.Contains(text, c.question),
			"%s %q: exit %d\n%s%s", c.command, c.typed, code, out.String(), text)
		// A line of progress is cleared before other output.
		for part := range strings.SplitSeq(text, "\r\x1b[K") {
			assert.That(t, !strings.Contains(part, " of 9") || !strings.Contains(part, "\n"), "%q", part)
		}
	}
}
