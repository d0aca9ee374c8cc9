package cli

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/run"
)

// explainChange says how to go on if a run was refused because its candidates are others than those of the dry run; other
// errors stay as they are. asked: the dry run was made by this command.
func explainChange(err error, asked bool) error {
	s, _ := status.FromError(err)
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "PLAN_CHANGED" {
			continue
		}
		what := "the candidates are not those of the dry run any more"
		if info.GetMetadata()["candidates_digest"] == "" {
			what = "the candidates could not all be looked at in the time of a run"
		}
		again := "look at a new dry run, and give --expected-digest what it prints as digest"
		if asked {
			again = "caretaker run shows what it would do now, and asks again"
		}
		return fmt.Errorf("nothing was done: %s; %s (PLAN_CHANGED, run %s)", what, again, info.GetMetadata()["run_id"])
	}
	return err
}

// nothingDue reports whether a plan has no candidates and counts nothing. The plans of loose foreign keys
// have counts alone, and those that a limit has cut short say nothing.
func nothingDue(plan *pb.Run) bool {
	complete := plan.GetCandidatesDigest() != "" || plan.GetWorker() == loosefk.Name && !plan.GetOverLimit()
	return complete && len(plan.GetCandidates()) == 0 && plan.GetMoreCandidates() == 0 && counts(plan) == ""
}

// extent says on how much a run would work, for the question before it.
func extent(plan *pb.Run) string {
	if n := int64(len(plan.GetCandidates())) + plan.GetMoreCandidates(); n > 0 {
		return run.Pluralize(n, "candidate")
	}
	rows, least := int64(0), ""
	for _, d := range plan.GetDefinitions() {
		rows += d.GetRows()
		if d.GetAtLeast() {
			least = "at least "
		}
	}
	if records := plan.GetCounts()["processed_records"]; rows == 0 && records > 0 {
		return run.Pluralize(records, "record") + " without rows"
	}
	return least + run.Pluralize(rows, "row")
}

// errDeclined ends a command whose question was not answered with yes.
var errDeclined = errors.New("nothing was done; --yes runs without the question")
