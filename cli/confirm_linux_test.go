package cli_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRun_OnATerminalItAsksAndIsHeldToWhatItHasShown(t *testing.T) {
	sh := newShell(t)
	sql := sh.prepared()
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
		if code != c.code || (code == 0) != strings.Contains(out.String(), "succeeded") {
			t.Errorf("%q %s: exit %d, want %d: %s", c.typed, c.more, code, c.code, out.String())
		}
		left(c.left)
	}
	// Nothing is due any more: there is no question, and no run.
	_, screen := cli.Terminal(t)
	command := strings.Fields("run " + worker + " --database main --address " + r.address)
	code := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: io.Discard, Err: screen})
	assert.Equal(t, code, 0)
	var runs int
	assert.NoError(t, sql.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.runs WHERE NOT dry_run`).Scan(&runs))
	assert.Equal(t, runs, 2)
}
