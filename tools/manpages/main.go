// Command manpages writes the manual pages of caretaker into a folder, one for each command, from
// their help.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/caretaker-go/caretaker/cli"
)

func main() {
	day := time.Now()
	if len(os.Args) == 3 {
		seconds, err := strconv.ParseInt(os.Args[2], 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, "manpages: the day of the pages:", err)
			os.Exit(2)
		}
		day = time.Unix(seconds, 0).UTC()
	} else if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manpages FOLDER [SECONDS-SINCE-1970]")
		os.Exit(2)
	}
	if err := write(os.Args[1], day); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

// write writes the pages of all commands, as of a day.
func write(folder string, day time.Time) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // manual pages are public
		return err
	}
	root := cli.Root(cli.Streams{})
	// The commands completion and help need no page.
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	_, status, _ := strings.Cut(root.Long, "Exit codes:\n")
	return each(root, func(c *cobra.Command) error {
		page, err := page(c, day, status)
		if err != nil {
			return fmt.Errorf("%s: %w", c.CommandPath(), err)
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		//nolint:gosec // manual pages are public
		return os.WriteFile(filepath.Join(folder, name), page, 0o644)
	})
}

// each calls do for a command and those below it.
func each(c *cobra.Command, do func(*cobra.Command) error) error {
	if !c.IsAvailableCommand() && c.HasParent() || c.Name() == "help" && c.HasParent() {
		return nil
	}
	if err := do(c); err != nil {
		return err
	}
	for _, child := range c.Commands() {
		if err := each(child, do); err != nil {
			return err
		}
	}
	return nil
}

// page is the manual page of a command. Exit codes in its own help stay. Every page has those that
// all commands have in common.
func page(c *cobra.Command, day time.Time, status string) ([]byte, error) {
	c.DisableAutoGenTag = true
	before, _, _ := strings.Cut(c.Long, "Exit codes:\n")
	if !c.HasParent() {
		c.Long = strings.TrimSpace(before)
	}
	c.Long = markdown(c.Long)
	var out bytes.Buffer
	header := &doc.GenManHeader{
		Section: "1", Source: "caretaker", Manual: "caretaker manual", Date: &day,
	}
	if err := doc.GenMan(c, header, &out); err != nil {
		return nil, err
	}
	section := ".SH EXIT STATUS\n.nf\n" + strings.TrimRight(status, "\n") + "\n.fi\n\n"
	if !c.HasParent() {
		section += ".SH FILES\n.TP\n/etc/caretaker\nThe configuration of the service.\n" +
			".TP\n/usr/share/doc/caretaker\nThe documentation.\n\n"
	}
	text := strings.Replace(out.String(), ".SH EXAMPLE", section+".SH EXAMPLE", 1)
	// The value of a flag without an argument is left out.
	text = strings.ReplaceAll(text, "[=false]", "")
	if !strings.Contains(text, section) {
		text += "\n" + section
	}
	return []byte(text), nil
}

// markdown keeps what the converter would take for a mark.
func markdown(text string) string {
	return strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`).Replace(text)
}
