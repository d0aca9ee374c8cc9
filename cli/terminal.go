package cli

import (
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/term"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/service/run"
)

// terminal prints what a command has to show: as text in the width, the colours and the time zone
// of its reader, or as JSON.
type terminal struct {
	std Streams
	// asJSON is set by --output json.
	asJSON bool
	// wide is set by --output wide: tables are whole, however narrow the terminal is.
	wide bool
	// local shows times in the zone of this machine.
	local bool
	// shortTime times lose year and seconds, and the day if it is today.
	shortTime bool
}

// width is that of the terminal which the output goes to, in characters; 0: there is none, or
// everything is to be shown.
func (out *terminal) width() int {
	file, ok := out.std.Out.(*os.File)
	if !ok || out.wide {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// useColor reports whether the output may have colours.
func (out *terminal) useColor() bool {
	return isTerminal(out.std.Out) && out.std.Env.WantsColours()
}

const red, yellow, plain = "\x1b[31m", "\x1b[33m", "\x1b[0m"

// colorize colours a text that is, or begins with, the state of something for which somebody may have
// to do something.
func (out *terminal) colorize(text string) string {
	word, _, _ := strings.Cut(text, " ")
	colour := map[string]string{"bad": red, "warn": yellow}[run.Tone(word)]
	if colour == "" || !out.useColor() {
		return text
	}
	return colour + text + plain
}

// at is a time in a table, whose heading says that it is UTC; with --local it says its zone itself.
func (out *terminal) at(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return out.clock(t.AsTime())
}

// clock is at of a time of Go.
func (out *terminal) clock(t time.Time) string {
	layout, now := time.DateTime, time.Now().UTC()
	if t = t.UTC(); out.local {
		t, now = t.Local(), now.Local() //nolint:gosmopolitan // --local asks for it
	}
	if out.shortTime {
		layout = "01-02 15:04"
		if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
			layout = "15:04"
		}
	}
	if out.local {
		layout += " MST"
	}
	return t.Format(layout)
}

// moment is a time outside of tables, with its zone.
func (out *terminal) moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return out.zoned(t.AsTime())
}

// zoned is moment of a time of Go.
func (out *terminal) zoned(t time.Time) string {
	if out.local {
		return out.clock(t)
	}
	return out.clock(t) + " UTC"
}

// localized has the times in a text of the server as --local wants them.
func (out *terminal) localized(text string) string {
	if !out.local {
		return text
	}
	times := regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	return times.ReplaceAllStringFunc(text, func(found string) string {
		t, err := time.Parse(time.RFC3339, found)
		if err != nil {
			return found
		}
		return out.clock(t)
	})
}
