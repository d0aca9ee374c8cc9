package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
)

// leasesCommand lists the leases of all workers, or of one.
func leasesCommand(a *app) *cobra.Command {
	request := &pb.ListLeasesRequest{}
	command := &cobra.Command{
		Use:   "leases [WORKER]",
		Short: "List held and free leases",
		RunE:  call(a, api.ListLeases, request, describeLeases),
	}
	workerFlag(command, &request.Worker)
	return command
}

// describeLeases prints a line for each lease. An expired lease is free, and its last holder is
// not shown.
func describeLeases(out *terminal, answer *pb.ListLeasesResponse) error {
	columns := []column{
		col("LEASE"), col("STATE"), col("HOLDER", cut), col("EPOCH", dropSecond),
		col("ACQUIRED", timestamp, dropSecond), col("RENEWED", timestamp, dropSecond),
		col("EXPIRES", timestamp, dropSecond),
	}
	return printList(out, "no leases", columns, answer.GetLeases(), func(l *pb.Lease) []any {
		state, holder, expires := "held", l.GetHolder(), l.GetExpiresAt()
		if l.GetExpired() {
			state, holder, expires = "free", none, nil
		}
		return []any{
			l.GetName(), state, holder, l.GetEpoch(), l.GetAcquiredAt(), l.GetRenewedAt(), expires,
		}
	})
}

// runsCommand lists runs, filtered by worker, state and time.
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
	watchFlag(command)
	pageFlags(command, "older runs", &request.PageToken)
	return command
}

// describeRuns prints a line for each run.
func describeRuns(out *terminal, answer *pb.ListRunsResponse) error {
	columns := []column{
		col("RUN"), col("WORKER", cutLast), col("TRIGGER", dropFirst), col("STATE", colored),
		col("STARTED", timestamp, dropSecond), col("TOOK", dropFirst), col("RESULT", cut),
	}
	return printList(out, "no runs", columns, answer.GetRuns(), func(r *pb.Run) []any {
		trigger := enumText(r.GetTrigger(), "TRIGGER_")
		return []any{runID{id: r.GetId()}, subject(r), trigger, state(r), r.GetStartedAt(), took(r), result(r)}
	})
}

// noteMore prints how to see more, if there is more, to the standard error.
func noteMore(out *terminal, what string, answer any) {
	next, ok := answer.(interface{ GetNextPageToken() string })
	if ok && next.GetNextPageToken() != "" {
		out.note("to see %s, use a larger --limit or --all", what)
	}
}

// result returns the counts of a run and the reason for its end, in one line.
func result(run *pb.Run) string {
	if nothingToDo(run) {
		return nothing
	}
	parts := []string{counts(run), run.GetReason(), run.GetError()}
	if run.GetOverLimit() && !strings.Contains(run.GetReason(), "limit") {
		parts = append(parts, "a limit was reached")
	}
	return format.Join(parts...)
}

// firesCommand lists scheduled runs, filtered by worker and outcome.
func firesCommand(a *app) *cobra.Command {
	request := &pb.ListFiresRequest{}
	command := &cobra.Command{
		Use:   "fires [WORKER]",
		Short: "List scheduled runs (fires) with their outcomes, newest first",
		RunE:  call(a, api.ListFires, request, describeFires),
	}
	workerFlag(command, &request.Worker)
	enumFlag(command, "outcome", "FIRE_OUTCOME_", &request.Outcome)
	command.Flags().Lookup("outcome").Usage = "only this `outcome`: ran, skipped, missed, or claimed (written only " +
		"by older versions). The default is all"
	pageFlags(command, "older fires", &request.PageToken)
	return command
}

// describeFires prints a line for each fire. How late its run started is in milliseconds.
func describeFires(out *terminal, answer *pb.ListFiresResponse) error {
	columns := []column{
		col("FIRE", timestamp), col("WORKER", cutLast), col("OUTCOME", colored), col("LATE", dropSecond),
		col("BY", cut, dropSecond), col("RUN"), col("REASON", cut, dropSecond),
	}
	return printList(out, "no fires", columns, answer.GetFires(), func(f *pb.Fire) []any {
		late := none
		if f.GetLate() != nil {
			late = f.GetLate().AsDuration().Round(time.Millisecond).String()
		}
		return []any{
			f.GetFireTime(), f.GetWorker(), enumText(f.GetOutcome(), "FIRE_OUTCOME_"), late,
			cmp.Or(f.GetClaimedBy(), none),
			runID{id: f.GetRunId()},
			f.GetReason(),
		}
	})
}

// auditCommand lists the entries of the audit log since a time.
func auditCommand(a *app) *cobra.Command {
	request := &pb.ListAuditRequest{}
	command := &cobra.Command{
		Use:   "audit",
		Short: "List the audit log: changes, started runs and denied calls, with their callers",
		Args:  between(0, 0),
		RunE:  call(a, api.ListAudit, request, describeAudit),
	}
	sinceFlag(command, &request.Since)
	pageFlags(command, "older entries", &request.PageToken)
	return command
}

// describeAudit prints a line for each entry, with the client's name and address.
func describeAudit(out *terminal, answer *pb.ListAuditResponse) error {
	columns := []column{
		col("AT", timestamp), col("BY", cut), col("ROLE", dropFirst), col("ACTION"), col("TARGET", cut),
		col("OUTCOME", cutLast, colored), col("REASON", cut, dropSecond),
	}
	return printList(out, "no entries", columns, answer.GetEntries(), func(e *pb.AuditEntry) []any {
		by := strings.TrimPrefix(e.GetBy()+" at "+e.GetAddress(), " at ")
		return []any{
			e.GetAt(), by, e.GetRole(), e.GetAction(), cmp.Or(e.GetTarget(), none), e.GetOutcome(),
			withoutDefaults(e.GetReason()),
		}
	})
}

// withoutDefaults removes run arguments that have their defaults. JSON keeps them.
func withoutDefaults(reason string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(reason, " "), func(argument string) bool {
		return argument == "dry_run=false" || argument == "async=false"
	}), " ")
}

// flagsCommand lists the feature flags. Its subcommand set changes one, which affects runs that
// start later.
func flagsCommand(a *app) *cobra.Command {
	list := &cobra.Command{
		Use:   "flags",
		Short: "List or set feature flags",
		Args:  commandOnly,
		RunE: call(a, api.ListFeatureFlags, &pb.ListFeatureFlagsRequest{},
			func(out *terminal, all *pb.ListFeatureFlagsResponse) error {
				return describeFlags(out, all.GetFlags()...)
			}),
	}
	request := &pb.SetFeatureFlagRequest{}
	list.AddCommand(&cobra.Command{
		Use:   "set NAME on|off",
		Short: "Turn a feature flag on or off for runs that have not started yet",
		Args: cobra.MatchAll(between(2, 2), func(_ *cobra.Command, args []string) error {
			if args[1] != "on" && args[1] != "off" {
				return fmt.Errorf("%q is neither on nor off", args[1])
			}
			request.Name, request.Enabled = args[0], args[1] == "on"
			return nil
		}),
		RunE: call(a, api.SetFeatureFlag, request, func(out *terminal, r *pb.SetFeatureFlagResponse) error {
			return describeFlags(out, r.GetFlag())
		}),
	})
	return list
}

// describeFlags prints each flag as on or off.
func describeFlags(out *terminal, flags ...*pb.FeatureFlag) error {
	columns := []column{col("FLAG"), col("VALUE")}
	return printList(out, "no feature flags", columns, flags, func(f *pb.FeatureFlag) []any {
		return []any{f.GetName(), map[bool]string{true: "on", false: "off"}[f.GetEnabled()]}
	})
}
