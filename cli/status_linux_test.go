package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// Terminal is a pseudo-terminal: what a person types goes into keys.
func Terminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys = assert.Must(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	fd := int(keys.Fd())
	assert.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n := assert.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	screen = assert.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _, _ = screen.Close(), keys.Close() })
	return keys, screen
}

func TestStatus_IsOneLineOfATerminalThatOtherOutputReplaces(t *testing.T) {
	keys, screen := Terminal(t)
	assert.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 20}))
	out := &terminal{std: Streams{Out: io.Discard, Err: screen}}
	out.status("main: %d of %d", 1, 2)
	out.status("main: a text that is wider than the terminal")
	out.note("done")
	out.note("again")
	const want = "\r\x1b[Kmain: 1 of 2\r\x1b[Kmain: a text that …\r\x1b[Kdone\r\nagain\r\n"
	got := make([]byte, len(want))
	assert.Must(io.ReadFull(keys, got))(t) // One reading may have a part of it.
	assert.Equal(t, string(got), want)
	// Elsewhere it writes nothing.
	var pipe strings.Builder
	out = &terminal{std: Streams{In: os.Stdin, Out: io.Discard, Err: &pipe}}
	out.status("main: %d of %d", 1, 2)
	out.note("done")
	assert.Equal(t, pipe.String(), "done\n")
}
