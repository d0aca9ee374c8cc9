package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// jobs lists the newest deferred jobs, or a page of older ones.
func (a *app) jobs() *cobra.Command {
	request := &maintenancev1.ListJobsRequest{PageSize: 20}
	command := &cobra.Command{
		Use:   "jobs",
		Short: "List deferred jobs, the newest first; show one, or let it be tried again",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q: say caretaker jobs show JOB, or caretaker jobs retry JOB", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.ListJobs(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeJobs(answer) })
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Kind, "kind", "", "`kind` of job, such as delete_user; else all")
	flags.StringVar(&request.State, "state", "", "available, scheduled, retryable, running, completed, cancelled or discarded; else all")
	flags.Var(pageSize{&request.PageSize}, "page-size", "how many, up to 1000")
	flags.StringVar(&request.PageToken, "page-token", "", "`token` of the next page")
	command.AddCommand(a.showJob(), a.retryJob())
	return command
}

func (a *app) describeJobs(answer *maintenancev1.ListJobsResponse) error {
	var rows [][]string
	for _, j := range answer.GetJobs() {
		rows = append(rows, []string{
			number(j.GetId()), j.GetKind(), arguments(j), j.GetState(), fmt.Sprintf("%d/%d", j.GetAttempt(), j.GetMaxAttempts()),
			at(j.GetScheduledAt()), cmp.Or(j.GetRunId(), none), fate(j),
		})
	}
	if err := a.table([]string{"JOB", "KIND", "ARGUMENTS", "STATE", "ATTEMPT", "DUE", "RUN", "OUTCOME"}, rows); err != nil {
		return err
	}
	if token := answer.GetNextPageToken(); token != "" {
		a.note("older jobs: --page-token %s", token)
	}
	return nil
}

// arguments of a job in one line, those that are not set left out.
func arguments(job *maintenancev1.Job) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(job.GetArgs().GetFields())) {
		value := job.GetArgs().GetFields()[name]
		if text, err := (protojson.MarshalOptions{}).Marshal(value); err == nil && string(text) != "null" {
			parts = append(parts, name+"="+string(text))
		}
	}
	return strings.Join(parts, " ")
}

// fate is what became of a job so far: outcome, reason, and of one that did not do its work the
// last error's words.
func fate(job *maintenancev1.Job) string {
	text := strings.TrimSpace(job.GetOutcome() + " " + job.GetReason())
	if text != "" && job.GetFinalizedAt() == nil {
		text = "last: " + text
	}
	if words := failure(job); words != "" && job.GetReason() != "" {
		text += ": " + words
	} else {
		text = strings.TrimSpace(text + " " + words)
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// failure is what the last error says besides the reason, "" where the outcome is none that an
// error goes with.
func failure(job *maintenancev1.Job) string {
	failures := job.GetErrors()
	if len(failures) == 0 || slices.Contains([]string{"succeeded", "skipped", "restored"}, job.GetOutcome()) {
		return ""
	}
	words := strings.TrimPrefix(failures[len(failures)-1].GetError(), "refused: ")
	if job.GetReason() == "" {
		return words
	}
	return strings.TrimPrefix(strings.TrimPrefix(words, job.GetReason()), ": ")
}

// showJob shows one job with all its attempts that failed.
func (a *app) showJob() *cobra.Command {
	return &cobra.Command{
		Use:   "show JOB",
		Short: "Show a job, its attempts and what became of it",
		Args:  between(1, 1),
		RunE: a.withJob(func(ctx context.Context, client maintenancev1.MaintenanceServiceClient, id int64) error {
			answer, err := client.ListJobs(ctx, &maintenancev1.ListJobsRequest{Id: id})
			if err != nil {
				return err
			}
			return a.show(answer, func() error { return a.describeJob(answer.GetJobs()[0]) })
		}),
	}
}

func (a *app) describeJob(job *maintenancev1.Job) error {
	a.say("job %d %s %s", job.GetId(), job.GetKind(), job.GetState())
	for _, line := range []struct{ name, text string }{
		{"for", arguments(job)},
		{"outcome", fate(job)},
		{"attempt", fmt.Sprintf("%d of %d", job.GetAttempt(), job.GetMaxAttempts())},
		{"queued", at(job.GetCreatedAt())},
		{"due", at(job.GetScheduledAt())},
		{"begun", at(job.GetAttemptedAt())},
		{"ended", at(job.GetFinalizedAt())},
		{"run", cmp.Or(job.GetRunId(), none)},
		{"trace", cmp.Or(job.GetTraceId(), none)},
	} {
		if line.text != "" {
			a.say("  %-7s %s", line.name, line.text)
		}
	}
	if len(job.GetErrors()) == 0 {
		return nil
	}
	var rows [][]string
	for _, e := range job.GetErrors() {
		rows = append(rows, []string{number(int64(e.GetAttempt())), at(e.GetAt()), strings.ReplaceAll(e.GetError(), "\n", "; ")})
	}
	return a.table([]string{"ATTEMPT", "BEGUN", "ERROR"}, rows)
}

func jobID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage(fmt.Errorf("%q is not the id of a job: caretaker jobs lists them", text))
	}
	return id, nil
}

// withJob is a command about the one job that its argument names.
func (a *app) withJob(do func(context.Context, maintenancev1.MaintenanceServiceClient, int64) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		id, err := jobID(args[0])
		if err != nil {
			return err
		}
		return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
			return do(ctx, client, id)
		})
	}
}

// retryJob lets a job be tried again.
func (a *app) retryJob() *cobra.Command {
	return &cobra.Command{
		Use:   "retry JOB",
		Short: "Let a job be worked now, whatever has become of it",
		Args:  between(1, 1),
		RunE: a.withJob(func(ctx context.Context, client maintenancev1.MaintenanceServiceClient, id int64) error {
			answer, err := client.RetryJob(ctx, &maintenancev1.RetryJobRequest{Id: id})
			if err != nil {
				return err
			}
			return a.show(answer, func() error {
				job := answer.GetJob()
				if job.GetState() == "running" {
					a.say("job %d %s is at work already: nothing was changed", job.GetId(), job.GetKind())
					return nil
				}
				a.say("job %d %s is %s, due %s; what it did before is checked again; caretaker jobs show %d shows what becomes of it",
					job.GetId(), job.GetKind(), job.GetState(), at(job.GetScheduledAt()), job.GetId())
				return nil
			})
		}),
	}
}
