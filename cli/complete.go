package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/config"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo"
)

// Shell completion: what a command takes is read from its usage line, "show JOB", and from the
// names of its flags. Files are offered for flags that take one, and nowhere else. The shell leaves
// out what does not begin with what has been typed.

// completionTime is how long the shell may wait for names that the server has to say.
const completionTime = time.Second

// completions are added to a command and those below it.
func addCompletions(a *app, command *cobra.Command) {
	if command.ValidArgsFunction == nil {
		command.ValidArgsFunction = func(
			c *cobra.Command, args []string, _ string,
		) (words []string, _ cobra.ShellCompDirective) {
			if takes := strings.Fields(command.Use)[1:]; len(args) < len(takes) {
				words = suggestions(c.Context(), a, strings.Trim(takes[len(args)], "[]."))
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, flags := range []*pflag.FlagSet{command.Flags(), command.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			// It fails for flags that have been said where they are made.
			if takes, _ := pflag.UnquoteUsage(f); takes != "file" {
				_ = command.RegisterFlagCompletionFunc(f.Name, completeFlag(a, f.Name))
			}
		})
	}
	for _, child := range command.Commands() {
		addCompletions(a, child)
	}
}

// completeFlag offers what a flag takes.
func completeFlag(a *app, name string) cobra.CompletionFunc {
	takes := map[string]string{
		"worker": "WORKER", "database": "DATABASE", "kind": "KIND", "output": "text|json|wide",
		"run": "RUN", "job": "JOB", "profile": "PROFILE",
	}[name]
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if strings.HasSuffix(name, "-dir") {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return suggestions(c.Context(), a, takes), cobra.ShellCompDirectiveNoFileComp
	}
}

// words are those that a usage line has for an argument, on|off, or what a name in it stands for.
func suggestions(ctx context.Context, a *app, argument string) (words []string) {
	for one := range strings.SplitSeq(argument, "|") {
		switch one {
		case "WORKER":
			s, _ := a.partialSettings()
			words = append(words, s.service.Workers()...)
		case "KIND":
			words = jobKinds()
		case "PROFILE":
			words = a.std.Env.ProfileNames()
		case "DATABASE":
			if words = serverNames(ctx, a, one); len(words) == 0 {
				words = config.GitLabDatabases()
				// Mistakes in the configuration are not for this moment.
				known, _ := a.partialSettings()
				for _, d := range known.Databases {
					words = append(words, d.Name)
				}
			}
			slices.Sort(words)
			words = slices.Compact(words)
		case "RUN", "JOB", "NAME":
			words = serverNames(ctx, a, one)
		default:
			if one != "" && one[0] >= 'a' {
				words = append(words, one)
			}
		}
	}
	return words
}

func jobKinds() []string {
	return []string{
		repo.DeletePlaceholderUser{}.Kind(), repo.DeleteUser{}.Kind(), repo.DestroyGroup{}.Kind(),
		repo.ContinueInactiveTokenDeletion{}.Kind(),
	}
}

// offered asks the server for names, with a description behind a tab. If it does not answer in time
// there are none.
func serverNames(ctx context.Context, a *app, what string) (words []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	_ = a.connect(ctx, func(ctx context.Context, client api) error {
		switch what {
		case "DATABASE":
			answer, _ := client.ListLeases(ctx, &pb.ListLeasesRequest{})
			for _, l := range answer.GetLeases() {
				words = append(words, l.GetDatabase())
			}
		case "RUN":
			answer, _ := client.ListRuns(ctx, &pb.ListRunsRequest{})
			for _, r := range answer.GetRuns() {
				words = append(words, r.GetId()+"\t"+subject(r)+" "+state(r)+" "+a.moment(r.GetStartedAt()))
			}
		case "JOB":
			answer, _ := client.ListJobs(ctx, &pb.ListJobsRequest{})
			for _, j := range answer.GetJobs() {
				words = append(words, number(j.GetId())+"\t"+j.GetKind()+" "+arguments(j)+" "+j.GetState())
			}
		case "NAME":
			answer, _ := everyFlag(ctx, client)
			for _, f := range answer.GetFlags() {
				words = append(words, f.GetName())
			}
		}
		return nil
	})
	return words
}
