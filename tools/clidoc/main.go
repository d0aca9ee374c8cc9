// Command clidoc writes docs/reference/cli.md: the text of preamble.md, then every command with
// its usage line, its short description and its flags. With an argument it prints the texts of the
// help instead, for make prose.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/cli"
)

// Flags that at least several commands share are described once. A command lists their names,
// unless at least most commands have them.
const several, most = 3, 10

const width = 110

//go:embed preamble.md
var preamble string

func main() {
	root := cli.Root(cli.Streams{})
	if len(os.Args) > 1 {
		printTexts(os.Stdout, root)
		return
	}
	var page strings.Builder
	write(&page, root)
	if err := os.WriteFile("docs/reference/cli.md", []byte(page.String()), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "clidoc:", err)
		os.Exit(1)
	}
}

// write writes the page of all commands below root.
func write(page io.Writer, root *cobra.Command) {
	commands, shared := available(root), pflag.NewFlagSet("", pflag.ContinueOnError)
	count := map[string]int{}
	for _, c := range commands {
		ownFlags(c).VisitAll(func(f *pflag.Flag) {
			key := f.Name + f.Usage
			if count[key]++; count[key] == several || c == root {
				shared.AddFlag(f)
			}
		})
	}
	fmt.Fprintf(page, "%s\n## Common flags\n\n%s\n", preamble,
		"All commands accept `--config` and `--output`. Client commands also accept the connection flags and "+
			"`--local`. The usage line of a command ends with the other common flags that the command accepts.")
	printFlags(page, shared)
	for _, c := range commands[1:] {
		if c.Parent() != nil && c.Short == c.Parent().Short {
			fmt.Fprintf(page, "\n## %s\n\nThe same as `%s`.\n", c.CommandPath(), c.Parent().CommandPath())
			continue
		}
		usage := strings.TrimSuffix(c.UseLine(), " [flags]")
		fmt.Fprintf(page, "\n## %s\n\n%s.\n\n`%s`", c.CommandPath(), c.Short, usage)
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		ownFlags(c).VisitAll(func(f *pflag.Flag) {
			switch n := count[f.Name+f.Usage]; {
			case n < several:
				own.AddFlag(f)
			case n < most:
				fmt.Fprintf(page, " `--%s`", f.Name)
			}
		})
		fmt.Fprintln(page)
		printFlags(page, own)
	}
}

// printTexts prints the texts of all commands below root as Markdown.
func printTexts(out io.Writer, root *cobra.Command) {
	for _, c := range available(root) {
		fmt.Fprintf(out, "# %s\n\n%s.\n\n%s\n", c.CommandPath(), c.Short, c.Long)
		ownFlags(c).VisitAll(func(f *pflag.Flag) { fmt.Fprintf(out, "\n%s.\n", f.Usage) })
	}
}

// available returns c and the commands below it, without help.
func available(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" {
			all = append(all, available(child)...)
		}
	}
	return all
}

// ownFlags returns the flags that c defines, also those that its subcommands inherit.
func ownFlags(c *cobra.Command) *pflag.FlagSet {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" && !f.Hidden {
			own.AddFlag(f)
		}
	})
	return own
}

// printFlags prints flags as their help does.
func printFlags(page io.Writer, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		lines := strings.TrimRight(flags.FlagUsagesWrapped(width), "\n")
		fmt.Fprintf(page, "\n```text\n%s\n```\n", lines)
	}
}
