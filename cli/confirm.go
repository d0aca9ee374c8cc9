package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/term"
	"google.golang.org/protobuf/proto"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// candidatesShown is how many candidates the question before a run names.
const candidatesShown = 10

// asks reports whether a user can be asked: input and messages are a terminal.
func (out *terminal) interactive() bool {
	for _, stream := range []any{out.std.In, out.std.Err} {
		file, ok := stream.(*os.File)
		if !ok || !term.IsTerminal(int(file.Fd())) {
			return false
		}
	}
	return true
}

// agrees reads the answer to a question: only y and yes agree.
func (out *terminal) agreed() bool {
	line, err := bufio.NewReader(out.std.In).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return err == nil && (answer == "y" || answer == "yes")
}

// confirm makes a dry run, shows what the run would do, and asks. The run is then held to what was
// shown, unless not all could be looked at, which the question says. It returns the dry run, and
// whether there is something to do at all.
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
	if plan.GetCandidatesDigest() == "" && request.GetWorker() != loosefk.Name {
		a.note("not all could be looked at: the run may do more than is shown")
	}
	a.note("run %s now, for good, on %s, at the server %s? [y/N] ",
		request.GetWorker(), extent(plan), a.client.address)
	if !a.agreed() {
		return nil, false, errDeclined
	}
	request.ExpectedDigest = plan.GetCandidatesDigest()
	// Of several databases the one that was looked at.
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
