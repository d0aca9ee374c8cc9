package cli

import (
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestStatus_IsOneLineOfATerminalThatOtherOutputReplaces(t *testing.T) {
	keys, screen := Terminal(t)
	assert.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 20}))
	out := &terminal{std: Streams{Out: io.Discard, Err: screen}}
	out.status("main: %d of %d", 1, 2)
	out.status("main: a text that is wider than the terminal")
	out.note("done")
	out.note("again")
	got := make([]byte, 200)
	n := assert.Must(keys.Read(got))(t)
	assert.Equal(t, string(got[:n]), "\r\x1b[Kmain: 1 of 2\r\x1b[Kmain: a text that …\r\x1b[Kdone\r\nagain\r\n")
	// Elsewhere it writes nothing.
	var pipe strings.Builder
	out = &terminal{std: Streams{In: os.Stdin, Out: io.Discard, Err: &pipe}}
	out.status("main: %d of %d", 1, 2)
	out.note("done")
	assert.Equal(t, pipe.String(), "done\n")
}
