package cli

import (
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// plan shows what a deletion would do.
func planCommand(a *app) *cobra.Command {
	request := &pb.PlanDeletionRequest{}
	return &cobra.Command{
		Use:   "plan user|group|placeholder ID",
		Short: "Show what deleting a user or group would do",
		Long: "Show what deleting a user, group or placeholder user would do, table by table, by the\n" +
			"same rules as the deletion. Nothing is written.\n\n" +
			"Exit codes: 0 shown, also of what would be refused; 1 failed; 2 usage, unknown ID;\n" +
			"3 not configured.",
		Args: targetArguments(&request.Kind, &request.Id,
			repo.KindUser, repo.KindGroup, repo.KindPlaceholder),
		RunE: call(a, api.PlanDeletion, request, func(out *terminal, answer *pb.PlanDeletionResponse) error {
			return describePlan(out, answer.GetPlan())
		}),
	}
}

// describePlan prints a plan.
func describePlan(out *terminal, p *pb.Plan) error {
	exact := "exact"
	if !p.GetExact() {
		exact = "at least: not all rows were counted"
	}
	out.println("%s %d %s", p.GetKind(), p.GetId(), p.GetName())
	refused, outside, estimate := "", "", ""
	if r := p.GetRefused(); r != nil {
		refused = strings.TrimSuffix(r.GetReason()+": "+asCommands(r.GetDetail()), ": ")
	}
	if n := p.GetOutside(); n > 0 {
		outside = run.Pluralize(n, "path") + " outside the database"
	}
	if p.GetEstimate() != nil {
		estimate = "about " + p.GetEstimate().AsDuration().Round(10_000_000).String()
	}
	out.fields("refused", refused, "remarks", strings.Join(p.GetRemarks(), "; "), "jobs", strings.Join(p.GetJobs(), ", "), "leaves", outside,
		"takes", estimate, "counts", exact, "digest", p.GetDigest())
	return plannedTables(out, p.GetTables())
}

// plannedTables prints what would be done to the rows of tables; nothing where that is nothing.
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
			t.GetTable(), t.GetMoved(), t.GetNullified(), t.GetDeleted(), t.GetKept(), more,
		}
	})
}
