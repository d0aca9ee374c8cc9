package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/run"
)

// outside lists what deleted rows have left outside the database: pending paths, or all.
func outsideCommand(a *app) *cobra.Command {
	request := &pb.ListOutsideRequest{}
	var all, pending, plain bool
	command := &cobra.Command{
		Use:   "outside [JOB]",
		Short: "List paths of repositories that deleted rows have left, oldest first",
		RunE: func(c *cobra.Command, _ []string) error {
			request.PendingOnly = pending && !all
			if plain {
				return a.ask(c.Context(), func(ctx context.Context, client api) error {
					return plainOutside(ctx, a, client, request)
				})
			}
			return call(a, listOutside, request, describeOutside)(c, nil)
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.RunId, "run", "", "only of the run with this `id`")
	flags.BoolVar(&all, "all", false, "also those that are marked as done")
	flags.BoolVar(&pending, "pending", true, "only those that are not marked as done")
	flags.BoolVar(&plain, "plain", false, "every path in a line of its own, behind its id and a tab, for scripts")
	command.MarkFlagsMutuallyExclusive("all", "pending")
	pageFlags(command, "more paths", &request.PageSize, &request.PageToken)
	command.Args = func(c *cobra.Command, args []string) error {
		switch {
		case plain && a.asJSON:
			return errors.New("give --plain or --output json")
		case len(args) == 0:
			return nil
		case request.GetRunId() != "":
			return errors.New("give JOB or --run, not both: a path is of one of them")
		}
		return jobArgument(&request.JobId)(c, args)
	}
	command.AddCommand(outsideDoneCommand(a))
	return command
}

// listOutside is ListOutside, and says so if there is neither a path nor the job that was named.
// Paths stay when their job is pruned.
//
//nolint:revive // The order of the parameters is that of a method of the API, as call takes it.
func listOutside(
	client api, ctx context.Context, request *pb.ListOutsideRequest, options ...grpc.CallOption,
) (*pb.ListOutsideResponse, error) {
	answer, err := client.ListOutside(ctx, request, options...)
	if err != nil || len(answer.GetPaths()) > 0 || request.GetJobId() == 0 {
		return answer, err
	}
	all, err := client.ListOutside(ctx, &pb.ListOutsideRequest{JobId: request.GetJobId(), PageSize: 1})
	if err == nil && len(all.GetPaths()) == 0 {
		_, err = client.GetJob(ctx, &pb.GetJobRequest{Id: request.GetJobId()})
	}
	return answer, err
}

func describeOutside(out *terminal, answer *pb.ListOutsideResponse) error {
	columns := []column{
		col("ID"), col("KIND", dropSecond), col("PATH"), col("LEFT BY", dropSecond), col("AT", timestamp, dropSecond),
		col("DONE", timestamp), col("BY", dropSecond),
	}
	return printTable(out, columns, answer.GetPaths(), func(p *pb.OutsidePath) []any {
		by := "run " + p.GetRunId()
		if p.GetJobId() != 0 {
			by = "job " + number(p.GetJobId())
		}
		return []any{
			p.GetId(), p.GetKind(), p.GetPath(), by, p.GetCreatedAt(), p.GetDoneAt(),
			cmp.Or(p.GetDoneBy(), none),
		}
	})
}

// plainOutside prints all pages, without paths that would be more than a line.
func plainOutside(
	ctx context.Context, a *app, client api, request *pb.ListOutsideRequest,
) (leftOut error) {
	request.PageSize = maxPageSize
	for {
		answer, err := listOutside(client, ctx, request)
		if err != nil {
			return err
		}
		for _, p := range answer.GetPaths() {
			if strings.ContainsFunc(p.GetPath(), unicode.IsControl) {
				// A script would take it for several lines, and remove what nobody has named.
				a.note("path %d is left out, it has control characters: %q", p.GetId(), p.GetPath())
				leftOut = &exitError{code: exitFailed}
				continue
			}
			a.println("%d\t%s", p.GetId(), p.GetPath())
		}
		if request.PageToken = answer.GetNextPageToken(); request.GetPageToken() == "" {
			return leftOut
		}
	}
}

// outsideDone marks paths as done.
func outsideDoneCommand(a *app) *cobra.Command {
	var ids []int64
	return &cobra.Command{
		Use:   "done ID...",
		Short: "Say that nothing is left at these paths, once what was there is removed",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("missing argument ID: caretaker jobs outside lists them")
			}
			var err error
			for _, arg := range args {
				var id int64
				err = cmp.Or(err, parseID(arg, "path: caretaker jobs outside lists them", &id))
				ids = append(ids, id)
			}
			return err
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client api) error {
				all := &pb.AckOutsideResponse{}
				for some := range slices.Chunk(ids, maxPageSize) {
					answer, err := client.AckOutside(ctx, &pb.AckOutsideRequest{Ids: some})
					if err != nil {
						return err
					}
					all.Paths = append(all.Paths, answer.GetPaths()...)
				}
				return a.show(all, func() error {
					verb := "are"
					if len(all.GetPaths()) == 1 {
						verb = "is"
					}
					a.println("%s %s done", run.Pluralize(len(all.GetPaths()), "path"), verb)
					return nil
				})
			})
		},
	}
}
