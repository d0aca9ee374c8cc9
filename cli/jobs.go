package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// jobsCommand lists deferred jobs. A kind that resembles a known one is a usage error with a
// suggestion.
func jobsCommand(a *app) *cobra.Command {
	request := &pb.ListJobsRequest{}
	command := &cobra.Command{
		Use:   "jobs",
		Short: "List, show, retry or cancel jobs",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: run `caretaker jobs show JOB` or `caretaker "+
					"jobs retry JOB`", args[0])
			}
			kind := request.GetKind()
			if near := format.Nearest(kind, jobKinds()); near != kind && near != "" {
				return fmt.Errorf("--kind: unknown kind %q%s", kind, format.DidYouMean(kind, jobKinds()))
			}
			return nil
		},
		RunE: call(a, api.ListJobs, request, describeJobs),
	}
	flags := command.Flags()
	flags.StringVar(&request.Kind, "kind", "", "only this `kind`, such as delete_user (default all)")
	enumFlag(command, "state", "JOB_STATE_", &request.JobState)
	timesFlags(command, &request.Since, &request.Until)
	watchFlag(command)
	pageFlags(command, "older jobs", &request.PageToken)
	command.AddCommand(showJobCommand(a), retryJobCommand(a), cancelJobCommand(a), outsideCommand(a))
	return command
}

// describeJobs prints a line for each job, with its attempt and the maximum.
func describeJobs(out *terminal, answer *pb.ListJobsResponse) error {
	columns := []column{
		col("JOB"), col("KIND", cutLast), col("ARGUMENTS", cut), col("STATE", colored),
		col("ATTEMPT", dropFirst), col("DUE", timestamp, dropSecond), col("RUN", dropFirst), col("OUTCOME", cut),
	}
	return printList(out, "no jobs", columns, answer.GetJobs(), func(j *pb.Job) []any {
		return []any{
			j.GetId(), j.GetKind(), arguments(j), jobState(j),
			fmt.Sprintf("%d/%d", j.GetAttempt(), j.GetMaxAttempts()), j.GetScheduledAt(),
			runID{id: j.GetRunId()},
			lastOutcome(j),
		}
	})
}

func jobState(job *pb.Job) string { return enumText(job.GetJobState(), "JOB_STATE_") }

// arguments returns the non-null arguments of a job in one line. The ID of its target comes first.
func arguments(job *pb.Job) string {
	var parts []string
	names := slices.Sorted(maps.Keys(job.GetArgs().GetFields()))
	rank := []string{"placeholder_user_id", "group_id", "user_id"}
	if job.GetKind() == (jobqueue.DestroyGroup{}).Kind() {
		rank = []string{"group_id"}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		return slices.Index(rank, b) - slices.Index(rank, a)
	})
	for _, name := range names {
		text, err := protojson.Marshal(job.GetArgs().GetFields()[name])
		if err == nil && string(text) != "null" {
			parts = append(parts, name+"="+string(text))
		}
	}
	return strings.Join(parts, " ")
}

// lastOutcome returns the outcome of a job's last attempt with its reason and any error.
func lastOutcome(job *pb.Job) string {
	text := strings.TrimSpace(job.GetOutcome() + " " + job.GetReason())
	if text != "" && job.GetFinalizedAt() == nil {
		text = "last: " + text
	}
	if failed := failure(job); failed != "" && job.GetReason() != "" {
		text += ": " + failed
	} else {
		text = strings.TrimSpace(text + " " + failed)
	}
	return text
}

// failure returns the text of a job's last error without the reason, "" if it did not fail.
func failure(job *pb.Job) string {
	failures, harmless := job.GetErrors(), []string{"succeeded", "skipped", "restored"}
	if len(failures) == 0 || slices.Contains(harmless, job.GetOutcome()) {
		return ""
	}
	text := strings.TrimPrefix(failures[len(failures)-1].GetError(), "refused: ")
	if job.GetReason() == "" {
		return text
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, job.GetReason()), ": ")
}

// showJobCommand shows one job by its id.
func showJobCommand(a *app) *cobra.Command {
	request := &pb.GetJobRequest{}
	return &cobra.Command{
		Use:   "show JOB",
		Short: "Show a job, its failed attempts and its outcome",
		Args:  jobArgument(&request.Id),
		RunE: call(a, api.GetJob, request, func(out *terminal, answer *pb.GetJobResponse) error {
			return describeJob(out, answer.GetJob())
		}),
	}
}

// describeJob prints all fields of a job, its cancellation, its failed attempts and the rows that
// it changed. Empty fields are omitted.
func describeJob(out *terminal, job *pb.Job) error {
	out.printColored(jobState(job), "job %d %s %s", job.GetId(), job.GetKind(), jobState(job))
	out.fields(
		"for", arguments(job),
		"outcome", lastOutcome(job),
		"attempt", fmt.Sprintf("%d of %d", job.GetAttempt(), job.GetMaxAttempts()),
		"queued", out.moment(job.GetCreatedAt()),
		"due", out.moment(job.GetScheduledAt()),
		"started", out.moment(job.GetAttemptedAt()),
		"ended", out.moment(job.GetFinalizedAt()),
		"worked", worked(job),
		"run", cmp.Or(job.GetRunId(), none),
		"trace", cmp.Or(job.GetTraceId(), none))
	if o := job.GetOutside(); o != nil {
		out.println("the deletion left %s outside the database (%d not marked as done): run `caretaker jobs outside %d` to "+
			"list the paths", format.Pluralize(o.GetAll(), "path"), o.GetPending(), job.GetId())
	}
	if c := job.GetCancellation(); c != nil {
		out.println("cancelled by %s at %s: %s", c.GetBy(), out.moment(c.GetAt()), c.GetReason())
	}
	for _, e := range job.GetErrors() {
		started := out.moment(e.GetAt())
		out.paragraph("  ", fmt.Sprintf("attempt %d, started %s: %s", e.GetAttempt(), started, e.GetError()))
	}
	return changedRows(out, job.GetTables())
}

// worked returns the duration of all attempts.
func worked(job *pb.Job) string {
	if job.GetDuration() == nil {
		return none
	}
	return job.GetDuration().AsDuration().String()
}

// changedRows prints the changed rows by table. It prints nothing without any.
func changedRows(out *terminal, tables []*pb.TableCount) error {
	if len(tables) == 0 {
		return nil
	}
	columns := []column{col("TABLE", cut), col("DELETED"), col("UPDATED")}
	return printTable(out, columns, tables, func(t *pb.TableCount) []any {
		return []any{t.GetTable(), number(t.GetDeleted()), number(t.GetUpdated())}
	})
}

// cancelJobCommand cancels a job. It exits with 1 if the job had already ended.
func cancelJobCommand(a *app) *cobra.Command {
	request := &pb.CancelJobRequest{}
	command := &cobra.Command{
		Use:   "cancel JOB --reason REASON",
		Short: "Cancel a job, so that it runs again only if you retry it",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client api) error {
				answer, err := client.CancelJob(ctx, request)
				if err != nil {
					return err
				}
				job := answer.GetJob()
				if a.asJSON || !endedBefore(job) {
					err = a.show(answer, func() error { return describeCancelled(a.terminal, job) })
				}
				if err == nil && endedBefore(job) {
					err = &exitError{exitFailed, fmt.Errorf("job %d has already ended: %s",
						job.GetId(), cmp.Or(lastOutcome(job), jobState(job)))}
				}
				return err
			})
		},
	}
	command.Args = jobArgument(&request.Id)
	reasonFlag(command, &request.Reason, "reason to show with the job")
	return command
}

// endedBefore reports whether a job had ended before it could be cancelled. A job that was already
// cancelled counts as cancelled.
func endedBefore(job *pb.Job) bool {
	cancelled := job.GetJobState() == pb.JobState_JOB_STATE_CANCELLED && job.GetCancellation() != nil
	return job.GetFinalizedAt() != nil && !cancelled
}

// describeCancelled prints the result of a cancellation. A running job is still running until its
// current statement ends.
func describeCancelled(out *terminal, job *pb.Job) error {
	if job.GetJobState() == pb.JobState_JOB_STATE_RUNNING {
		out.println("job %d %s is running: it stops after its current statement", job.GetId(), job.GetKind())
		return nil
	}
	out.println("job %d %s is %s", job.GetId(), job.GetKind(), jobState(job))
	return nil
}

// retryJobCommand makes a job due now. A running job is not changed, which is no error.
func retryJobCommand(a *app) *cobra.Command {
	request := &pb.RetryJobRequest{}
	return &cobra.Command{
		Use:   "retry JOB",
		Short: "Run a job now, even if it has ended",
		Args:  jobArgument(&request.Id),
		RunE: call(a, api.RetryJob, request, func(out *terminal, answer *pb.RetryJobResponse) error {
			job := answer.GetJob()
			if job.GetJobState() == pb.JobState_JOB_STATE_RUNNING {
				out.println("job %d %s is running: nothing was changed", job.GetId(), job.GetKind())
				return nil
			}
			out.println("job %d %s is %s, due %s: to see its outcome, run `caretaker jobs show %d`",
				job.GetId(), job.GetKind(), jobState(job), out.moment(job.GetScheduledAt()), job.GetId())
			return nil
		}),
	}
}

// outsideCommand lists paths that deleted rows have left outside the database. --plain prints all
// pages for scripts.
func outsideCommand(a *app) *cobra.Command {
	request := &pb.ListOutsideRequest{}
	var all, pending, plain bool
	command := &cobra.Command{
		Use:   "outside [JOB]",
		Short: "List repository paths that deletions left on disk, oldest first",
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
	flags.StringVar(&request.RunId, "run", "", "only entries from the run with this `id`")
	flags.BoolVar(&all, "all", false, "include paths that are marked as done")
	flags.BoolVar(&pending, "pending", true, "only paths that are not marked as done")
	flags.BoolVar(&plain, "plain", false, "print one line per path: ID, tab and path (for scripts)")
	command.MarkFlagsMutuallyExclusive("all", "pending")
	pageFlags(command, "more paths", &request.PageToken)
	command.Args = func(c *cobra.Command, args []string) error {
		switch {
		case plain && a.asJSON:
			return errors.New("use --plain or --output json, not both")
		case len(args) == 0:
			return nil
		case request.GetRunId() != "":
			return errors.New("use the argument JOB or --run, not both")
		}
		return jobArgument(&request.JobId)(c, args)
	}
	command.AddCommand(outsideDoneCommand(a))
	return command
}

// listOutside is ListOutside that fails for an unknown job without paths. Paths remain after their
// job is pruned.
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

// describeOutside prints a line for each path, with the job or run that left it.
func describeOutside(out *terminal, answer *pb.ListOutsideResponse) error {
	columns := []column{
		col("ID"), col("KIND", dropSecond), col("PATH"), col("LEFT BY", dropSecond),
		col("AT", timestamp, dropSecond), col("DONE", timestamp), col("BY", dropSecond),
	}
	return printList(out, "no paths", columns, answer.GetPaths(), func(p *pb.OutsidePath) []any {
		var by any = runID{"run ", p.GetRunId()}
		if p.GetJobId() != 0 {
			by = fmt.Sprint("job ", p.GetJobId())
		}
		return []any{
			p.GetId(), p.GetKind(), p.GetPath(), by, p.GetCreatedAt(), p.GetDoneAt(),
			cmp.Or(p.GetDoneBy(), none),
		}
	})
}

// plainOutside prints all pages. It skips paths that would span several lines.
func plainOutside(ctx context.Context, a *app, client api, request *pb.ListOutsideRequest) (omitted error) {
	answer, err := collect(request, 0, func() (*pb.ListOutsideResponse, error) {
		return listOutside(client, ctx, request)
	})
	if err != nil {
		return err
	}
	for _, p := range answer.GetPaths() {
		if strings.ContainsFunc(p.GetPath(), unicode.IsControl) {
			// A script would read several lines, and delete paths that were not listed.
			a.note("path %d skipped, because it contains control characters: %q", p.GetId(), p.GetPath())
			omitted = &exitError{code: exitFailed}
			continue
		}
		a.println("%d\t%s", p.GetId(), p.GetPath())
	}
	return omitted
}

// outsideDoneCommand marks paths as done, at most maxPageSize in a call. After an error, earlier
// calls stay in effect.
func outsideDoneCommand(a *app) *cobra.Command {
	var ids []int64
	return &cobra.Command{
		Use:   "done ID...",
		Short: "Mark paths as done after you have removed their repositories",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("missing argument ID: run `caretaker jobs outside` to list the IDs")
			}
			var err error
			for _, arg := range args {
				var id int64
				err = cmp.Or(err, parseID(arg, "path: run `caretaker jobs outside` to list the IDs", &id))
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
					a.println("%s marked as done", format.Pluralize(len(all.GetPaths()), "path"))
					return nil
				})
			})
		},
	}
}
