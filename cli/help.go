package cli

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/config"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/docs"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// help has the long texts and the examples of the commands. A test runs the examples.
//
//go:embed help.txt
var help string

// addHelp gives each command its section of help.txt.
func addHelp(root *cobra.Command) {
	texts := strings.Replace(help, "DOCS", docs.URL("README.md"), 1)
	for section := range strings.SplitSeq(texts, "\n== ") {
		name, text, _ := strings.Cut(section, "\n")
		c, rest, err := root.Find(strings.Fields(name)[1:])
		if err != nil || len(rest) > 0 {
			continue
		}
		var long, examples []string
		for line := range strings.SplitSeq(text, "\n") {
			if strings.HasPrefix(line, "  caretaker") {
				examples = append(examples, line)
			} else {
				long = append(long, line)
			}
		}
		c.Long = strings.TrimSpace(strings.Join(long, "\n"))
		c.Example = strings.Join(examples, "\n")
	}
}

// looseForeignKeysOnly reports whether the configuration has use: loose_foreign_keys. It ignores
// mistakes in other keys. Then help and completions omit GitLab. Hidden commands still run, and the
// server refuses them with a reason.
func (a *app) looseForeignKeysOnly() bool {
	s, _ := a.partialSettings()
	return s.service.LooseForeignKeysOnly()
}

// gitlabCommands returns the client commands for GitLab's users and groups.
func gitlabCommands(a *app) []*cobra.Command {
	all := []*cobra.Command{
		jobsCommand(a), planCommand(a), protectCommand(a), unprotectCommand(a), protectedCommand(a),
	}
	for _, c := range all {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[groupGitLab] = ""
	}
	return all
}

// adaptCommands adapts commands to the environment, and their help to the file of --config.
func adaptCommands(a *app, root *cobra.Command) {
	if a.looseForeignKeysOnly() {
		withoutGitLab(root)
	}
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.Args, completion.RunE = commandOnly, root.RunE
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

// groupFlags shows the flags of the connection last in the help of a command, in a group of their
// own.
func (a *app) groupFlags(root *cobra.Command) {
	usual := root.UsageFunc()
	hide := func(hidden bool) {
		a.connecting.VisitAll(func(f *pflag.Flag) { f.Hidden = hidden })
	}
	root.SetUsageFunc(func(c *cobra.Command) error {
		hide(true)
		defer hide(false)
		if err := usual(c); err != nil || c.Flag("address") == nil {
			return err
		}
		hide(false)
		_, err := fmt.Fprintf(c.OutOrStderr(), "\nConnection Flags:\n%s", a.connecting.FlagUsages())
		return err
	})
}

// groupForGitLab puts the GitLab commands in a group of their own.
func groupForGitLab(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: groupGitLab, Title: "Client, for GitLab's users and groups:"})
	for _, c := range root.Commands() {
		if _, is := c.Annotations[groupGitLab]; is {
			c.GroupID = groupGitLab
		}
	}
}

// withoutGitLab hides the GitLab commands and rewords the others.
func withoutGitLab(root *cobra.Command) {
	const short = "Loose foreign keys for PostgreSQL: clean up children of deleted rows"
	root.Long = strings.Replace(root.Long, root.Short, short, 1)
	root.Short = short
	for _, c := range root.Commands() {
		_, is := c.Annotations[groupGitLab]
		c.Hidden = c.Hidden || is
	}
	replaceTerms(root, strings.NewReplacer(
		"ghost_user_migration", lfk.Name, "all workers and jobs", "all workers",
		" and their jobs need", " need", "projects", "orders", "epics", "invoices",
	))
}

// replaceTerms replaces terms in the help of a command and its subcommands.
func replaceTerms(c *cobra.Command, terms *strings.Replacer) {
	c.Short, c.Long = terms.Replace(c.Short), terms.Replace(c.Long)
	lines := strings.Split(terms.Replace(c.Example), "\n")
	c.Example = strings.Join(slices.Compact(lines), "\n")
	c.Flags().VisitAll(func(f *pflag.Flag) {
		f.Usage = terms.Replace(f.Usage)
		f.Hidden = f.Hidden || f.Name == "job"
	})
	for _, child := range c.Commands() {
		replaceTerms(child, terms)
	}
}

// Shell completion reads a command's arguments from its usage line, such as "show JOB", and from
// the names of its flags. It offers files only for flags that take a file. The shell omits values
// that do not match the typed prefix.

// completionTimeout limits how long the shell waits for names from the server.
const completionTimeout = time.Second

// addCompletions adds completions to a command and its subcommands.
func addCompletions(a *app, command *cobra.Command) {
	if command.ValidArgsFunction == nil {
		command.ValidArgsFunction = func(
			c *cobra.Command, args []string, _ string,
		) (names []string, _ cobra.ShellCompDirective) {
			if takes := strings.Fields(command.Use)[1:]; len(args) < len(takes) {
				names = suggestions(c.Context(), a, strings.Trim(takes[len(args)], "[]."))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, flags := range []*pflag.FlagSet{command.Flags(), command.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			// It fails for flags that already have a completion.
			if takes, _ := pflag.UnquoteUsage(f); takes != "file" {
				_ = command.RegisterFlagCompletionFunc(f.Name, completeFlag(a, f.Name))
			}
		})
	}
	for _, child := range command.Commands() {
		addCompletions(a, child)
	}
}

// completeFlag offers the values of a flag.
func completeFlag(a *app, name string) cobra.CompletionFunc {
	takes := map[string]string{
		"worker": "WORKER", "database": "DATABASE", "kind": "KIND", "output": "text|json|yaml|wide",
		"run": "RUN", "job": "JOB", "profile": "PROFILE",
	}[name]
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if strings.HasSuffix(name, "-dir") {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return suggestions(c.Context(), a, takes), cobra.ShellCompDirectiveNoFileComp
	}
}

// suggestions returns the values for an argument in a usage line, on|off, or a name in it.
func suggestions(ctx context.Context, a *app, argument string) (names []string) {
	for one := range strings.SplitSeq(argument, "|") {
		switch one {
		case "WORKER":
			s, _ := a.partialSettings()
			names = append(names, s.service.Workers()...)
		case "KIND":
			names = jobKinds()
		case "PROFILE":
			names = a.std.Env.ProfileNames()
		case "DATABASE":
			if names = serverNames(ctx, a, one); len(names) == 0 {
				names = config.GitLabDatabases()
				// Completion ignores mistakes in the configuration.
				known, _ := a.partialSettings()
				for _, d := range known.Databases {
					names = append(names, d.Name)
				}
			}
			slices.Sort(names)
			names = slices.Compact(names)
		case "RUN", "JOB", "NAME":
			names = serverNames(ctx, a, one)
		default:
			if one != "" && one[0] >= 'a' {
				names = append(names, one)
			}
		}
	}
	return names
}

// jobKinds returns the kinds of deferred job, for completions and for suggestions after a typing
// error.
func jobKinds() []string {
	return []string{
		jobqueue.DeletePlaceholderUser{}.Kind(), jobqueue.DeleteUser{}.Kind(), jobqueue.DestroyGroup{}.Kind(),
		jobqueue.ContinueInactiveTokenDeletion{}.Kind(),
	}
}

// serverNames asks the server for names, each with a description after a tab. It returns none if
// the server does not answer in time.
func serverNames(ctx context.Context, a *app, what string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	_ = a.connect(ctx, func(ctx context.Context, client api) error {
		switch what {
		case "DATABASE":
			answer, _ := client.ListLeases(ctx, &pb.ListLeasesRequest{})
			for _, l := range answer.GetLeases() {
				names = append(names, l.GetDatabase())
			}
		case "RUN":
			answer, _ := client.ListRuns(ctx, &pb.ListRunsRequest{})
			for _, r := range answer.GetRuns() {
				names = append(names, r.GetId()+"\t"+subject(r)+" "+state(r)+" "+a.moment(r.GetStartedAt()))
			}
		case "JOB":
			answer, _ := client.ListJobs(ctx, &pb.ListJobsRequest{})
			for _, j := range answer.GetJobs() {
				names = append(names, fmt.Sprint(j.GetId())+"\t"+j.GetKind()+" "+arguments(j)+" "+j.GetState())
			}
		case "NAME":
			answer, _ := client.ListFeatureFlags(ctx, &pb.ListFeatureFlagsRequest{PageSize: maxPageSize})
			for _, f := range answer.GetFlags() {
				names = append(names, f.GetName())
			}
		}
		return nil
	})
	return names
}
