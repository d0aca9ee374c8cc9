package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo"
)

// protect protects a user or group.
func protectCommand(a *app) *cobra.Command {
	request := &pb.ProtectTargetRequest{}
	command := &cobra.Command{
		Use:   "protect user|group ID --reason REASON [--for DURATION]",
		Short: "Keep a user or group, and the groups above it, from being deleted by caretaker",
		RunE: call(a, api.ProtectTarget, request, func(out *terminal, answer *pb.ProtectTargetResponse) error {
			p := answer.GetProtection()
			until := "until caretaker unprotect"
			if p.GetUntil() != nil {
				until = "until " + out.moment(p.GetUntil())
			}
			if keptAsItWas(request, p) {
				out.println("%s %d is kept as it was, protected %s: longer already, by %s: %s; "+
					"caretaker unprotect first", p.GetKind(), p.GetId(), until, p.GetBy(), p.GetReason())
				return nil
			}
			out.println("%s %d is protected %s", p.GetKind(), p.GetId(), until)
			return nil
		}),
	}
	command.Args = targetArguments(&request.Kind, &request.Id, repo.KindUser, repo.KindGroup)
	reasonFlag(command, &request.Reason, "why, shown wherever the protection is")
	durationFlag(command, "for", "`duration` such as 8h or 720h; default for good", &request.Ttl)
	return command
}

// keptAsItWas says that a protection is not the one that was asked for: a longer one keeps its place.
func keptAsItWas(asked *pb.ProtectTargetRequest, p *pb.Protection) bool {
	if p.GetReason() != strings.TrimSpace(asked.GetReason()) {
		return true
	}
	if asked.GetTtl() == nil || p.GetUntil() == nil {
		return (asked.GetTtl() == nil) != (p.GetUntil() == nil)
	}
	// It may have waited a while for a lock.
	lasts := p.GetUntil().AsTime().Sub(p.GetSince().AsTime())
	return (lasts - asked.GetTtl().AsDuration()).Abs() > 20*time.Second
}

// unprotect ends a protection.
func unprotectCommand(a *app) *cobra.Command {
	request := &pb.UnprotectTargetRequest{}
	return &cobra.Command{
		Use:   "unprotect user|group ID",
		Short: "End the protection of a user or group",
		Args:  targetArguments(&request.Kind, &request.Id, repo.KindUser, repo.KindGroup),
		RunE: call(a, api.UnprotectTarget, request, func(out *terminal, answer *pb.UnprotectTargetResponse) error {
			p := answer.GetProtection()
			out.println("%s %d is not protected any more: it may be deleted as any other",
				p.GetKind(), p.GetId())
			return nil
		}),
	}
}

// protected lists the protections.
func protectedCommand(a *app) *cobra.Command {
	request := &pb.ListProtectedRequest{}
	command := &cobra.Command{
		Use:   "protected",
		Short: "List the users and groups that are protected",
		Args:  commandOnly,
		RunE:  call(a, api.ListProtected, request, describeProtected),
	}
	command.Flags().StringVar(&request.Kind, "kind", "", "`kind`: user or group; default both")
	pageFlags(command, "more", &request.PageSize, &request.PageToken)
	return command
}

func describeProtected(out *terminal, answer *pb.ListProtectedResponse) error {
	columns := []column{
		col("KIND"), col("ID"), col("SINCE", timestamp, dropSecond), col("UNTIL", timestamp), col("BY", cut),
		col("REASON", cut),
	}
	return printTable(out, columns, answer.GetProtections(), func(p *pb.Protection) []any {
		return []any{p.GetKind(), p.GetId(), p.GetSince(), p.GetUntil(), p.GetBy(), p.GetReason()}
	})
}
