package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/service/loosefk"
)

// With use: loose_foreign_keys help and completions speak of nothing else. Commands that are hidden
// still are there: the server says why it refuses them.

// looseForeignKeysOnly says that the configuration, as far as it can be read, has nothing else.
func (a *app) looseForeignKeysOnly() bool {
	s, _ := a.partialSettings()
	return s.service.LooseForeignKeysOnly()
}

// gitlabCommands are the clients for what is done with GitLab's users and groups.
func gitlabCommands(a *app) []*cobra.Command {
	all := []*cobra.Command{jobsCommand(a), planCommand(a), protectCommand(a), unprotectCommand(a), protectedCommand(a)}
	for _, c := range all {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[groupGitLab] = ""
	}
	return all
}

// adaptCommands adapts commands to the environment now, and their help to the file of --config, too.
func adaptCommands(a *app, root *cobra.Command) {
	if a.looseForeignKeysOnly() {
		withoutGitLab(root)
	}
	usual := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if a.looseForeignKeysOnly() {
			withoutGitLab(root)
		} else {
			groupForGitLab(root)
		}
		usual(c, args)
	})
}

// groupForGitLab shows the commands for GitLab apart from the others.
func groupForGitLab(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: groupGitLab, Title: "Client, for GitLab's users and groups:"})
	for _, c := range root.Commands() {
		if _, is := c.Annotations[groupGitLab]; is {
			c.GroupID = groupGitLab
		}
	}
}

// withoutGitLab hides those commands, and rewords the others.
func withoutGitLab(root *cobra.Command) {
	const short = "Loose foreign keys for PostgreSQL: children of deleted rows are cleaned up later"
	root.Long = strings.Replace(root.Long, root.Short, short, 1)
	root.Short = short
	for _, c := range root.Commands() {
		_, is := c.Annotations[groupGitLab]
		c.Hidden = c.Hidden || is
	}
	reword(root, strings.NewReplacer(
		"ghost_user_migration", loosefk.Name, " and all deferred jobs", "", " and deferred jobs", "",
		" and their jobs need", " need", "projects", "orders", "epics", "invoices",
	))
}

// reword replaces words in the help of a command and those below it.
func reword(c *cobra.Command, words *strings.Replacer) {
	c.Short, c.Long = words.Replace(c.Short), words.Replace(c.Long)
	lines := strings.Split(words.Replace(c.Example), "\n")
	c.Example = strings.Join(slices.Compact(lines), "\n")
	c.Flags().VisitAll(func(f *pflag.Flag) {
		f.Usage = words.Replace(f.Usage)
		f.Hidden = f.Hidden || f.Name == "job"
	})
	for _, child := range c.Commands() {
		reword(child, words)
	}
}
