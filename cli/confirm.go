package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/term"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// candidatesShown is how many candidates the question before a run names.
const candidatesShown = 10

// asks says whether somebody is there who can be asked: input and messages are a terminal.
func (a *app) asks() bool {
	for _, stream := range []any{a.In, a.Err} {
		file, ok := stream.(*os.File)
		if !ok || !term.IsTerminal(int(file.Fd())) {
			return false
		}
	}
	return true
}

// confirm makes a dry run, shows what the run would do, and asks. The run is then held to what was
// shown.
func (a *app) confirm(ctx context.Context, client api, request *pb.RunBatchRequest) error {
	dry := &pb.RunBatchRequest{
		Worker: request.GetWorker(), Database: request.GetDatabase(), DryRun: true, Async: true,
		RequestId: uuid.NewString(),
	}
	answer, err := client.RunBatch(ctx, dry)
	if err != nil {
		return err
	}
	plan, err := a.follow(ctx, client, answer.GetRun().GetId(), a.progress(ctx, client))
	if err != nil {
		return err
	}
	if err := a.summarize(plan); err != nil {
		return err
	}
	if err := outcome(plan); err != nil {
		return err
	}
	a.note("run %s now, for good? [y/N] ", request.GetWorker())
	line, err := bufio.NewReader(a.In).ReadString('\n')
	if yes := strings.ToLower(strings.TrimSpace(line)); err != nil || yes != "y" && yes != "yes" {
		return errors.New("nothing was done; --yes runs without the question")
	}
	request.ExpectedDigest = plan.GetCandidatesDigest()
	// Of several databases the one that was looked at.
	request.Database = plan.GetDatabase()
	return nil
}

// summarize shows the first candidates of a dry run, on the standard error.
func (a *app) summarize(plan *pb.Run) error {
	shown := *a
	shown.Out = a.Err
	if hidden := len(plan.GetCandidates()) - candidatesShown; hidden > 0 {
		plan.Candidates = plan.GetCandidates()[:candidatesShown]
		plan.MoreCandidates += int64(hidden)
	}
	if err := shown.describeRun(plan); err != nil {
		return fmt.Errorf("show what would be done: %w", err)
	}
	return nil
}
