package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/control"
)

// planCommand shows the effect of a deletion, which it does not start.
func planCommand(a *app) *cobra.Command {
	request := &pb.PlanDeletionRequest{}
	return &cobra.Command{
		Use:   "plan user|group|placeholder ID",
		Short: "Show what deleting a user or group would do",
		Args: targetArguments(&request.Kind, &request.Id,
			control.KindUser, control.KindGroup, control.KindPlaceholder),
		RunE: call(a, api.PlanDeletion, request, func(out *terminal, r *pb.PlanDeletionResponse) error {
			return describePlan(out, r.GetPlan())
		}),
	}
}

// describePlan prints the plan and its tables. Counts that are not exact are lower limits.
func describePlan(out *terminal, p *pb.Plan) error {
	exact := "exact"
	if !p.GetExact() {
		exact = "lower bounds, because not all rows were counted"
	}
	out.println("%s %d %s", p.GetKind(), p.GetId(), p.GetName())
	refused, outside, estimate := "", "", ""
	if r := p.GetRefused(); r != nil {
		refused = strings.TrimSuffix(r.GetReason()+": "+r.GetDetail(), ": ")
	}
	if n := p.GetOutside(); n > 0 {
		outside = format.Pluralize(n, "path") + " outside the database"
	}
	if p.GetEstimate() != nil {
		estimate = "about " + p.GetEstimate().AsDuration().Round(10_000_000).String()
	}
	out.fields("refused", refused, "remarks", strings.Join(p.GetRemarks(), "; "),
		"jobs", strings.Join(p.GetJobs(), ", "), "leaves", outside, "takes", estimate,
		"counts", exact, "digest", p.GetDigest())
	return plannedTables(out, p.GetTables())
}

// plannedTables prints the planned changes by table. It prints nothing without any.
func plannedTables(out *terminal, tables []*pb.PlannedTable) error {
	if len(tables) == 0 {
		return nil
	}
	columns := []column{
		col("TABLE", cut), col("MOVED"), col("NULLIFIED"), col("DELETED"), col("KEPT"), col(""),
	}
	return printTable(out, columns, tables, func(t *pb.PlannedTable) []any {
		more := ""
		if t.GetAtLeast() {
			more = "at least"
		}
		return []any{
			t.GetTable(), number(t.GetMoved()), number(t.GetNullified()), number(t.GetDeleted()),
			number(t.GetKept()), more,
		}
	})
}

// protectCommand protects a user or group. An existing protection that lasts longer stays as it
// is.
func protectCommand(a *app) *cobra.Command {
	request, yes := &pb.ProtectTargetRequest{}, false
	command := &cobra.Command{
		Use:   "protect user|group ID --reason REASON [--for DURATION]",
		Short: "Protect a user, or a group and its parent groups, from deletion by caretaker",
		RunE: call(a, protectExisting(a, &yes), request, func(out *terminal, r *pb.ProtectTargetResponse) error {
			p := r.GetProtection()
			until := "permanently"
			if p.GetUntil() != nil {
				until = "until " + out.moment(p.GetUntil())
			}
			if keptLonger(request, p) {
				out.println("%s %d is already protected %s by %s (%s): to shorten the protection, run "+
					"`caretaker unprotect` first", p.GetKind(), p.GetId(), until, p.GetBy(), p.GetReason())
				return nil
			}
			out.println("%s %d is protected %s", p.GetKind(), p.GetId(), until)
			return nil
		}),
	}
	command.Args = targetArguments(&request.Kind, &request.Id, control.KindUser, control.KindGroup)
	reasonFlag(command, &request.Reason, "reason to show with the protection")
	durationFlag(command, "for", "`duration`, such as 8h or 720h (default: permanently)", &request.Ttl)
	command.Flags().BoolVar(&yes, "yes", false, "protect a target that does not exist yet, "+
		"without asking for confirmation")
	return command
}

// protectExisting protects a target. It asks before it protects a target that does not exist.
func protectExisting(a *app, yes *bool) func(
	api, context.Context, *pb.ProtectTargetRequest, ...grpc.CallOption,
) (*pb.ProtectTargetResponse, error) {
	return func(
		client api, ctx context.Context, r *pb.ProtectTargetRequest, _ ...grpc.CallOption,
	) (*pb.ProtectTargetResponse, error) {
		r.MustExist = !*yes
		answer, err := client.ProtectTarget(ctx, r)
		if errorInfo(err).GetReason() != "UNKNOWN_TARGET" {
			return answer, err
		}
		text := status.Convert(err).Message()
		if !a.interactive() {
			return nil, usage(fmt.Errorf("%s, or use --yes to protect a target that does not exist yet", text))
		}
		a.note("%s. Protect it before it exists? [y/N] ", text)
		if !a.agreed() {
			return nil, errors.New("nothing was protected")
		}
		r.MustExist = false
		// The answer to the question may have taken longer than a call.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
		defer cancel()
		return client.ProtectTarget(ctx, r)
	}
}

// keptLonger reports whether p is an existing protection that lasts longer than the requested one.
func keptLonger(asked *pb.ProtectTargetRequest, p *pb.Protection) bool {
	if p.GetReason() != strings.TrimSpace(asked.GetReason()) {
		return true
	}
	if asked.GetTtl() == nil || p.GetUntil() == nil {
		return (asked.GetTtl() == nil) != (p.GetUntil() == nil)
	}
	// The request may have waited for a lock.
	lasts := p.GetUntil().AsTime().Sub(p.GetSince().AsTime())
	return (lasts - asked.GetTtl().AsDuration()).Abs() > 20*time.Second
}

// unprotectCommand ends a protection at once.
func unprotectCommand(a *app) *cobra.Command {
	request := &pb.UnprotectTargetRequest{}
	return &cobra.Command{
		Use:   "unprotect user|group ID",
		Short: "End the protection of a user or group",
		Args:  targetArguments(&request.Kind, &request.Id, control.KindUser, control.KindGroup),
		RunE: call(a, api.UnprotectTarget, request, func(out *terminal, r *pb.UnprotectTargetResponse) error {
			p := r.GetProtection()
			out.println("%s %d is no longer protected: caretaker may delete it", p.GetKind(), p.GetId())
			return nil
		}),
	}
}

// protectedCommand lists the protections in force.
func protectedCommand(a *app) *cobra.Command {
	request := &pb.ListProtectedRequest{}
	command := &cobra.Command{
		Use:   "protected",
		Short: "List protected users and groups",
		Args:  commandOnly,
		RunE:  call(a, api.ListProtected, request, describeProtected),
	}
	command.Flags().StringVar(&request.Kind, "kind", "", "only this `kind`: user or group (default both)")
	pageFlags(command, "more", &request.PageToken)
	return command
}

// describeProtected prints a line for each protection.
func describeProtected(out *terminal, answer *pb.ListProtectedResponse) error {
	columns := []column{
		col("KIND"), col("ID"), col("SINCE", timestamp, dropSecond), col("UNTIL", timestamp),
		col("BY", cut), col("REASON", cut),
	}
	return printList(out, "no protections", columns, answer.GetProtections(),
		func(p *pb.Protection) []any {
			return []any{p.GetKind(), p.GetId(), p.GetSince(), p.GetUntil(), p.GetBy(), p.GetReason()}
		})
}
