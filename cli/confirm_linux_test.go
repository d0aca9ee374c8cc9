package cli_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caretaker-go/caretaker/cli"
)

// terminal is a pseudo-terminal: what a person types goes into keys.
func terminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = screen.Close(), keys.Close() })
	return keys, screen
}

func TestRun_OnATerminalItAsksAndIsHeldToWhatItHasShown(t *testing.T) {
	sql := prepared(t)
	defined(t, oneKey)
	r := serving(t)
	left := func(want string) {
		t.Helper()
		var n string
		if err := sql.QueryRow(context.Background(), `SELECT count(*)::text FROM loose_foreign_keys_deleted_records WHERE status = 1`).Scan(&n); err != nil || n != want {
			t.Errorf("%s records are left, %v; want %s", n, err, want)
		}
	}
	records := ""
	if err := sql.QueryRow(context.Background(), `SELECT count(*)::text FROM loose_foreign_keys_deleted_records WHERE status = 1`).Scan(&records); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		typed, more string
		code        int
		left        string
	}{
		{"n\n", "", 1, records}, {"\n", "", 1, records}, {"yes\n", "", 0, "0"}, {"", "--yes", 0, "0"},
	} {
		keys, screen := terminal(t)
		if _, err := keys.WriteString(c.typed); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		command := strings.Fields("run " + worker + " --database main --address " + r.address + " " + c.more)
		code := cli.Run(context.Background(), command, cli.Streams{In: screen, Out: &out, Err: screen})
		if code != c.code || (code == 0) != strings.Contains(out.String(), "succeeded") {
			t.Errorf("%q %s: exit %d, want %d: %s", c.typed, c.more, code, c.code, out.String())
		}
		left(c.left)
	}
}
