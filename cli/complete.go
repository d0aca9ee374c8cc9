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
// names of its flags. Files are offered for flags that take one, and nowhere else.

// completionTime is how long the shell may wait for names that the server has to say.
const completionTime = time.Second

// completer offers words, with a description behind a tab.
type completer func(ctx context.Context) []string

// completions are added to a command and those below it.
func (a *app) completions(command *cobra.Command) {
	if command.ValidArgsFunction == nil {
		command.ValidArgsFunction = a.complete(positions(command.Use)...)
	}
	for _, flags := range []*pflag.FlagSet{command.Flags(), command.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { a.completeFlag(command, f) })
	}
	for _, child := range command.Commands() {
		a.completions(child)
	}
}

// positions are the arguments of a usage line: "pause WORKER|--all --reason REASON" has WORKER.
func positions(use string) (all []string) {
	for _, word := range strings.Fields(use)[1:] {
		word = strings.Trim(word, "[].")
		if strings.HasPrefix(word, "-") {
			break
		}
		all = append(all, word)
	}
	return all
}

// complete offers words for arguments.
func (a *app) complete(arguments ...string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(arguments) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		for one := range strings.SplitSeq(arguments[len(args)], "|") {
			if offer := a.completers()[one]; offer != nil {
				words = append(words, offer(c.Context())...)
			} else if one != "" && one == strings.ToLower(one) && !strings.HasPrefix(one, "-") {
				words = append(words, one)
			}
		}
		return beginning(words, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

func beginning(words []string, typed string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, typed) })
}

// completeFlag offers what a flag takes, unless it has been said where the flag is made.
func (a *app) completeFlag(command *cobra.Command, f *pflag.Flag) {
	if _, known := command.GetFlagCompletionFunc(f.Name); known {
		return
	}
	takes, _ := pflag.UnquoteUsage(f)
	if takes == "file" {
		return
	}
	offer := map[string]string{
		"worker": "WORKER", "database": "DATABASE", "kind": "KIND", "output": "text|json", "run": "RUN",
		"job": "JOB", "profile": "PROFILE",
	}[f.Name]
	complete := a.complete(offer)
	_ = command.RegisterFlagCompletionFunc(f.Name,
		func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			if strings.HasSuffix(f.Name, "-dir") {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return complete(c, nil, typed)
		})
}

// completers offer names, by what stands for them in usage lines.
func (a *app) completers() map[string]completer {
	return map[string]completer{
		"WORKER":   func(context.Context) []string { return a.usedWorkers() },
		"KIND":     func(context.Context) []string { return jobKinds() },
		"DATABASE": a.databaseNames,
		"RUN":      a.recentRuns,
		"JOB":      a.recentJobs,
		"NAME":     a.flagNames,
		"PROFILE":  func(context.Context) []string { return a.Env.ProfileNames() },
	}
}

// usedWorkers are those that the configuration does not leave out, as far as it can be read.
func (a *app) usedWorkers() []string {
	s, _ := a.partialSettings()
	return s.service.Workers()
}

func jobKinds() []string {
	return []string{
		repo.DeletePlaceholderUser{}.Kind(), repo.DeleteUser{}.Kind(), repo.DestroyGroup{}.Kind(),
		repo.ContinueInactiveTokenDeletion{}.Kind(),
	}
}

// offered asks the server; if it does not answer in time nothing is offered.
func offered[R any](
	ctx context.Context, a *app, call func(context.Context, api) (R, error), words func(R) []string,
) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	_ = a.connect(ctx, func(ctx context.Context, client api) error {
		answer, err := call(ctx, client)
		if err == nil {
			all = words(answer)
		}
		return err
	})
	return all
}

func (a *app) databaseNames(ctx context.Context) []string {
	names := offered(ctx, a, func(ctx context.Context, client api) (*pb.ListLeasesResponse, error) {
		return client.ListLeases(ctx, &pb.ListLeasesRequest{})
	}, func(answer *pb.ListLeasesResponse) (names []string) {
		for _, l := range answer.GetLeases() {
			if !slices.Contains(names, l.GetDatabase()) {
				names = append(names, l.GetDatabase())
			}
		}
		return names
	})
	if len(names) > 0 {
		return names
	}
	names = slices.Clone(config.GitLabDatabases())
	// Mistakes in the configuration are not for this moment: what could be read of it is enough.
	known, _ := a.partialSettings()
	for _, d := range known.Databases {
		if !slices.Contains(names, d.Name) {
			names = append(names, d.Name)
		}
	}
	return names
}

func (a *app) recentRuns(ctx context.Context) []string {
	return offered(ctx, a, func(ctx context.Context, client api) (*pb.ListRunsResponse, error) {
		return client.ListRuns(ctx, &pb.ListRunsRequest{})
	}, func(answer *pb.ListRunsResponse) (words []string) {
		for _, r := range answer.GetRuns() {
			words = append(words, r.GetId()+"\t"+subject(r)+" "+state(r)+" "+a.moment(r.GetStartedAt()))
		}
		return words
	})
}

func (a *app) recentJobs(ctx context.Context) []string {
	return offered(ctx, a, func(ctx context.Context, client api) (*pb.ListJobsResponse, error) {
		return client.ListJobs(ctx, &pb.ListJobsRequest{})
	}, func(answer *pb.ListJobsResponse) (words []string) {
		for _, j := range answer.GetJobs() {
			words = append(words, number(j.GetId())+"\t"+j.GetKind()+" "+arguments(j)+" "+j.GetState())
		}
		return words
	})
}

func (a *app) flagNames(ctx context.Context) []string {
	return offered(ctx, a, everyFlag, func(answer *pb.ListFeatureFlagsResponse) (names []string) {
		for _, f := range answer.GetFlags() {
			names = append(names, f.GetName())
		}
		return names
	})
}
