package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/run"
)

// changesShown is how many candidates that came or went are named.
const changesShown = 5

// explainChange says what has changed since somebody was asked, and how to go on, if a run was
// refused for that; other errors stay as they are. planned is what was shown, nil for a digest that
// was given as a flag.
func (a *app) explainChange(
	ctx context.Context, client api, err error, planned *pb.Run,
) error {
	id := changedRun(err)
	if id == "" {
		return err
	}
	again := "caretaker run shows what it would do now, and asks again"
	if planned == nil {
		again = "look at a new dry run, and give --expected-digest what it prints as digest"
	}
	answer, getErr := client.GetRun(ctx, &pb.GetRunRequest{Id: id})
	now := answer.GetRun()
	what := "the candidates are not those of the dry run any more"
	switch {
	case getErr == nil && now.GetCandidatesDigest() == "":
		what = "the candidates could not all be looked at in the time of a run"
	case getErr == nil && planned != nil:
		what = "what it would do has changed since you were asked: " + difference(planned, now)
	}
	return fmt.Errorf("nothing was done: %s; %s (PLAN_CHANGED, run %s)", what, again, id)
}

// changedRun is the run that was refused since its candidates are others, "" for another error.
func changedRun(err error) string {
	s, _ := status.FromError(err)
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if ok && info.GetReason() == "PLAN_CHANGED" {
			return info.GetMetadata()["run_id"]
		}
	}
	return ""
}

// difference names the first candidates that came or went between two plans.
func difference(before, now *pb.Run) string {
	var parts []string
	for _, part := range []struct {
		words    string
		old, new *pb.Run
	}{{"came", before, now}, {"went", now, before}} {
		known := names(part.old)
		changed := slices.DeleteFunc(names(part.new), func(n string) bool {
			return slices.Contains(known, n)
		})
		if len(changed) == 0 {
			continue
		}
		text := strings.Join(changed[:min(len(changed), changesShown)], ", ")
		if more := len(changed) - changesShown; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text+" "+part.words)
	}
	if len(parts) == 0 {
		return "candidates beyond those that are listed came or went"
	}
	return strings.Join(parts, ", ")
}

// names are those of the candidates of a run, with what is done with them.
func names(run *pb.Run) (all []string) {
	for _, c := range run.GetCandidates() {
		name := fmt.Sprintf("%s %d", c.GetKind(), c.GetId())
		if c.GetName() != "" {
			name += " " + printable(c.GetName())
		}
		all = append(all, name+" ("+strings.ReplaceAll(c.GetAction(), "_", " ")+")")
	}
	return all
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
		return run.Counted(n, "candidate")
	}
	rows, least := int64(0), ""
	for _, d := range plan.GetDefinitions() {
		rows += d.GetRows()
		if d.GetAtLeast() {
			least = "at least "
		}
	}
	if records := plan.GetCounts()["processed_records"]; rows == 0 && records > 0 {
		return run.Counted(records, "record") + " without rows"
	}
	return least + run.Counted(rows, "row")
}

// errDeclined ends a command whose question was not answered with yes.
var errDeclined = errors.New("nothing was done; --yes runs without the question")
