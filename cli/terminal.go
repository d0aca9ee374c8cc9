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

// What depends on where the output goes, and on who reads it: width, colours, the zone of times.

// width is that of the terminal which the output goes to, in characters; 0: there is none, or
// everything is to be shown.
func (a *app) width() int {
	file, ok := a.Out.(*os.File)
	if !ok || a.wide {
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
func (a *app) useColor() bool {
	return isTerminal(a.Out) && a.Env.WantsColours()
}

const red, yellow, plain = "\x1b[31m", "\x1b[33m", "\x1b[0m"

// colorize colours a text that is, or begins with, the state of something for which somebody may have
// to do something.
func (a *app) colorize(text string) string {
	word, _, _ := strings.Cut(text, " ")
	colour := map[string]string{"bad": red, "warn": yellow}[run.Tone(word)]
	if colour == "" || !a.useColor() {
		return text
	}
	return colour + text + plain
}

// at is a time in a table, whose heading says that it is UTC; with --local it says its zone itself.
func (a *app) at(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return a.clock(t.AsTime())
}

// clock is at of a time of Go.
func (a *app) clock(t time.Time) string {
	layout, now := time.DateTime, time.Now().UTC()
	if t = t.UTC(); a.client.local {
		t, now = t.Local(), now.Local() //nolint:gosmopolitan // --local asks for it
	}
	if a.shortTime {
		layout = "01-02 15:04"
		if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
			layout = "15:04"
		}
	}
	if a.client.local {
		layout += " MST"
	}
	return t.Format(layout)
}

// moment is a time outside of tables, with its zone.
func (a *app) moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return a.zoned(t.AsTime())
}

// zoned is moment of a time of Go.
func (a *app) zoned(t time.Time) string {
	if a.client.local {
		return a.clock(t)
	}
	return a.clock(t) + " UTC"
}

// localized has the times in a text of the server as --local wants them.
func (a *app) localized(text string) string {
	if !a.client.local {
		return text
	}
	times := regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	return times.ReplaceAllStringFunc(text, func(found string) string {
		t, err := time.Parse(time.RFC3339, found)
		if err != nil {
			return found
		}
		return a.clock(t)
	})
}
