package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// leases lists all leases, page by page.
func leasesCommand(a *app) *cobra.Command {
	request := &pb.ListLeasesRequest{}
	command := &cobra.Command{
		Use:   "leases [WORKER]",
		Short: "List the leases, held and free",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client api) error {
				all := &pb.ListLeasesResponse{}
				for {
					answer, err := client.ListLeases(ctx, request)
					if err != nil {
						return err
					}
					all.Leases = append(all.Leases, answer.GetLeases()...)
					request.PageToken = answer.GetNextPageToken()
					if request.GetPageToken() == "" {
						return a.show(all, func() error { return describeLeases(a.terminal, all.GetLeases()) })
					}
				}
			})
		},
	}
	workerFlag(command, &request.Worker)
	return command
}

func describeLeases(out *terminal, leases []*pb.Lease) error {
	columns := []column{
		col("LEASE"), col("STATE"), col("HOLDER", cut), col("EPOCH", dropSecond), col("ACQUIRED", timestamp, dropSecond),
		col("RENEWED", timestamp, dropSecond), col("EXPIRES", timestamp, dropSecond),
	}
	return printTable(out, columns, leases, func(l *pb.Lease) []any {
		state, holder, expires := "held", l.GetHolder(), l.GetExpiresAt()
		if l.GetExpired() {
			state, holder, expires = "free", none, nil
		}
		return []any{
			l.GetName(), state, holder, l.GetEpoch(), l.GetAcquiredAt(), l.GetRenewedAt(), expires,
		}
	})
}

// runs lists the newest runs, or a page of older ones.
func runsCommand(a *app) *cobra.Command {
	request := &pb.ListRunsRequest{}
	command := &cobra.Command{
		Use:   "runs [WORKER]",
		Short: "List runs, newest first",
		RunE:  call(a, api.ListRuns, request, describeRuns),
	}
	workerFlag(command, &request.Worker)
	enumFlag(command, "state", "RUN_STATE_", &request.State)
	timesFlags(command, &request.Since, &request.Until)
	pageFlags(command, "older runs", &request.PageSize, &request.PageToken)
	return command
}

func describeRuns(out *terminal, answer *pb.ListRunsResponse) error {
	columns := []column{
		col("RUN"), col("WORKER", cut), col("TRIGGER", dropFirst), col("STATE", colored), col("STARTED", timestamp, dropSecond),
		col("TOOK", dropFirst), col("RESULT", cut),
	}
	return printTable(out, columns, answer.GetRuns(), func(r *pb.Run) []any {
		trigger := word(r.GetTrigger(), "TRIGGER_")
		return []any{r.GetId(), subject(r), trigger, state(r), r.GetStartedAt(), took(r), result(r)}
	})
}

// noteMore writes the flags for the next page of a list to the standard error, if there is one.
// --since and --until are the times of this request: 24h is another time for the next one.
func noteMore(out *terminal, what string, request, answer any) {
	page, ok := answer.(interface{ GetNextPageToken() string })
	if !ok || page.GetNextPageToken() == "" {
		return
	}
	flags := ""
	if r, ok := request.(interface{ GetSince() *timestamppb.Timestamp }); ok && r.GetSince() != nil {
		flags += "--since " + r.GetSince().AsTime().Format(time.RFC3339Nano) + " "
	}
	if r, ok := request.(interface{ GetUntil() *timestamppb.Timestamp }); ok && r.GetUntil() != nil {
		flags += "--until " + r.GetUntil().AsTime().Format(time.RFC3339Nano) + " "
	}
	out.note("%s: %s--page-token %s", what, flags, page.GetNextPageToken())
}

// result is what a run has done, and why it ended so, in one line.
func result(run *pb.Run) string {
	parts := []string{counts(run), run.GetReason(), asCommands(run.GetError())}
	if run.GetOverLimit() && !strings.Contains(run.GetReason(), "limit") {
		parts = append(parts, "a limit was reached")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// fires lists the newest fires of the schedules, or a page of older ones.
func firesCommand(a *app) *cobra.Command {
	request := &pb.ListFiresRequest{}
	command := &cobra.Command{
		Use:   "fires [WORKER]",
		Short: "List the fires of the schedules with their outcomes, newest first",
		RunE:  call(a, api.ListFires, request, describeFires),
	}
	workerFlag(command, &request.Worker)
	enumFlag(command, "outcome", "FIRE_OUTCOME_", &request.Outcome)
	pageFlags(command, "older fires", &request.PageSize, &request.PageToken)
	return command
}

func describeFires(out *terminal, answer *pb.ListFiresResponse) error {
	columns := []column{
		col("FIRE", timestamp), col("WORKER", cut), col("OUTCOME", colored), col("LATE", dropSecond), col("BY", cut, dropSecond),
		col("RUN"), col("REASON", cut, dropSecond),
	}
	return printTable(out, columns, answer.GetFires(), func(f *pb.Fire) []any {
		late := none
		if f.GetLate() != nil {
			late = f.GetLate().AsDuration().Round(time.Millisecond).String()
		}
		return []any{
			f.GetFireTime(), f.GetWorker(), word(f.GetOutcome(), "FIRE_OUTCOME_"), late,
			cmp.Or(f.GetClaimedBy(), none), cmp.Or(f.GetRunId(), none), f.GetReason(),
		}
	})
}
