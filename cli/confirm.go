package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// candidatesShown is how many candidates the question before a run names.
const candidatesShown = 10

// confirm makes a dry run, shows its candidates, and asks. The run is then limited to them, unless
// the dry run could not check all, which the question mentions. It returns the dry run, and whether
// it has found work.
func confirm(
	ctx context.Context, a *app, client api, request *pb.RunBatchRequest,
) (plan *pb.Run, due bool, err error) {
	dry := &pb.RunBatchRequest{
		Worker: request.GetWorker(), Database: request.GetDatabase(), DryRun: true, Async: true,
		RequestId: uuid.NewString(),
	}
	answer, err := client.RunBatch(ctx, dry)
	if err != nil {
		return nil, false, err
	}
	plan, err = follow(ctx, client, answer.GetRun().GetId(), progress(ctx, client, a.terminal))
	if err != nil {
		return nil, false, err
	}
	if err := summarize(a.terminal, plan); err != nil {
		return nil, false, err
	}
	if err := outcome(plan); err != nil {
		return nil, false, err
	}
	if nothingDue(plan) {
		a.note("nothing is due: no run was started")
		return plan, false, nil
	}
	if plan.GetCandidatesDigest() == "" && request.GetWorker() != lfk.Name {
		a.note("not all could be looked at: the run may do more than is shown")
	}
	a.note("run %s now, for good, on %s, at the server %s? [y/N] ",
		request.GetWorker(), extent(plan), a.client.address)
	if !a.agreed() {
		return nil, false, errDeclined
	}
	request.ExpectedDigest = plan.GetCandidatesDigest()
	// With several databases, the database of the dry run.
	request.Database = plan.GetDatabase()
	return plan, true, nil
}

// summarize shows the first candidates of a dry run, on the standard error.
func summarize(out *terminal, plan *pb.Run) error {
	shown := *out
	shown.std.Out = out.std.Err
	some := &pb.Run{}
	proto.Merge(some, plan)
	if hidden := len(some.GetCandidates()) - candidatesShown; hidden > 0 {
		some.Candidates = some.GetCandidates()[:candidatesShown]
		some.MoreCandidates += int64(hidden)
	}
	if err := describeRun(&shown, some); err != nil {
		return fmt.Errorf("show what would be done: %w", err)
	}
	return nil
}

// explainChange adds what to do if a run was refused because its candidates differ from those of
// the dry run. It returns other errors unchanged. confirmed: this command made the dry run.
func explainChange(err error, confirmed bool) error {
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
		if confirmed {
			again = "caretaker run shows what it would do now, and asks again"
		}
		return fmt.Errorf("nothing was done: %s; %s (PLAN_CHANGED, run %s)",
			what, again, info.GetMetadata()["run_id"])
	}
	return err
}

// nothingDue reports whether a plan has neither candidates nor counts. The plans of loose foreign
// keys only have counts, and those that reached a limit are incomplete.
func nothingDue(plan *pb.Run) bool {
	complete := plan.GetCandidatesDigest() != "" ||
		plan.GetWorker() == lfk.Name && !plan.GetOverLimit()
	return complete && len(plan.GetCandidates()) == 0 && plan.GetMoreCandidates() == 0 &&
		counts(plan) == ""
}

// extent is how much a run would change, for the question before it.
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
