package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// audit lists who asked for what.
func auditCommand(a *app) *cobra.Command {
	request := &pb.ListAuditRequest{}
	command := &cobra.Command{
		Use:   "audit",
		Short: "List who changed or started what, or was refused, newest first",
		Args:  between(0, 0),
		RunE:  call(a, api.ListAudit, request, describeAudit),
	}
	sinceFlag(command, &request.Since)
	pageFlags(command, "older entries", &request.PageSize, &request.PageToken)
	return command
}

func describeAudit(out *terminal, answer *pb.ListAuditResponse) error {
	columns := []column{
		col("AT", timestamp), col("BY", cut), col("ROLE", dropFirst), col("ACTION"), col("TARGET", cut),
		col("OUTCOME", cut, colored), col("REASON", cut, dropSecond),
	}
	return printTable(out, columns, answer.GetEntries(), func(e *pb.AuditEntry) []any {
		by := strings.TrimPrefix(e.GetBy()+" at "+e.GetAddress(), " at ")
		return []any{
			e.GetAt(), by, e.GetRole(), e.GetAction(), cmp.Or(e.GetTarget(), none), e.GetOutcome(),
			withoutDefaults(e.GetReason()),
		}
	})
}

// withoutDefaults leaves out the arguments of a run that nobody has set. JSON has them.
func withoutDefaults(reason string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(reason, " "), func(word string) bool {
		return word == "dry_run=false" || word == "async=false"
	}), " ")
}
