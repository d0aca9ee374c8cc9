package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// runCommand starts a run. On a terminal it first makes a dry run and asks, unless --yes,
// --dry-run or --expected-digest is given.
func runCommand(a *app) *cobra.Command {
	request := &pb.RunBatchRequest{Async: true, RequestId: uuid.NewString()}
	yes, noWait := false, false
	command := &cobra.Command{
		Use:   "run WORKER",
		Short: "Run a worker once and wait for it to finish",
		Args:  cobra.MatchAll(between(1, 1), optionalWorker(&request.Worker)),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.connect(c.Context(), func(ctx context.Context, client api) error {
				var plan *pb.Run
				if !yes && !request.GetDryRun() && request.GetExpectedDigest() == "" && a.interactive() {
					var due bool
					var err error
					if plan, due, err = confirm(ctx, a, client, request); err != nil {
						return err
					}
					if !due {
						return a.show(&pb.RunBatchResponse{Run: plan}, func() error { return nil })
					}
				}
				do := runAndWatch
				if noWait {
					do = startOnly
				}
				return explainChange(do(ctx, a, client, request), plan != nil)
			})
		},
	}
	command.Flags().BoolVar(&request.DryRun, "dry-run", false, "count what a run would change, but change nothing")
	command.Flags().BoolVar(&noWait, "no-wait", false, "return once the run has started")
	command.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	command.Flags().StringVar(&request.ExpectedDigest, "expected-digest", "",
		"run only if the candidates match this `digest` from a dry run")
	command.Flags().StringVar(&request.Database, "database", "", "database `name` (default: the next in rotation)")
	return command
}

// startOnly starts a run and does not wait for its end.
func startOnly(ctx context.Context, a *app, client api, request *pb.RunBatchRequest) error {
	answer, err := client.RunBatch(ctx, request)
	if err != nil {
		return err
	}
	return a.show(answer, func() error {
		run := answer.GetRun()
		a.println("run %s of %s has started. To follow it: caretaker watch %s",
			run.GetId(), subject(run), run.GetId())
		return nil
	})
}

// runAndWatch starts a run and follows it to its end. The first interrupt cancels the run, the
// second one only ends the command.
func runAndWatch(ctx context.Context, a *app, client api, request *pb.RunBatchRequest) error {
	// 1. Start the run.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	answer, err := startRun(ctx, a, client, request, interrupts)
	if err != nil {
		return err
	}
	// 2. Handle interrupts while the command follows the run.
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	id := answer.GetRun().GetId()
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-interrupts:
		}
		a.note("\ncancelling run %s: press Ctrl-C again to stop waiting", id)
		if _, err := client.CancelRun(ctx, &pb.CancelRunRequest{Id: id}); err != nil {
			a.note("the run could not be cancelled: %s", a.client.explain(err))
		}
		select {
		case <-ctx.Done():
		case <-interrupts:
			leave(fmt.Errorf("no longer waiting for run %s: to follow it, run `caretaker watch %s`", id, id))
		}
	}()
	// 3. Follow the run, and print its end.
	last, err := follow(ctx, client, id, progress(ctx, client, a.terminal))
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err != nil {
		return a.notFollowed(id, err)
	}
	err = a.show(&pb.RunBatchResponse{Run: last}, func() error { return describeRun(a.terminal, last) })
	return errors.Join(err, outcome(last))
}

// startRun starts the run. With expected_digest, the server answers after it has checked the
// candidates.
// Ctrl-C before the answer cancels the run.
func startRun(
	ctx context.Context, a *app, client api, request *pb.RunBatchRequest, interrupts chan os.Signal,
) (*pb.RunBatchResponse, error) {
	calling, hangUp := context.WithCancel(ctx)
	interrupted := make(chan os.Signal, 1)
	go func() {
		defer close(interrupted)
		select {
		case <-calling.Done():
		case by := <-interrupts:
			interrupted <- by
			hangUp()
		}
	}()
	answer, err := client.RunBatch(calling, request)
	hangUp()
	by, is := <-interrupted
	switch {
	case is && err != nil:
		return nil, cancelStarted(ctx, a, client, request)
	case is:
		// The run has started, so the caller handles the signal.
		interrupts <- by
	}
	return answer, err
}

// cancelStarted cancels a run whose request got no answer. It finds the run by the request ID.
func cancelStarted(ctx context.Context, a *app, client api, request *pb.RunBatchRequest) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := client.ListRuns(ctx, &pb.ListRunsRequest{
		Worker: request.GetWorker(), State: pb.RunState_RUN_STATE_RUNNING, PageSize: maxPageSize,
	})
	for _, run := range answer.GetRuns() {
		if run.GetRequestId() != request.GetRequestId() {
			continue
		}
		a.note("\ncancelling run %s", run.GetId())
		_, failed := client.CancelRun(ctx, &pb.CancelRunRequest{Id: run.GetId()})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return fmt.Errorf("interrupted, but the run may continue (%w): run `caretaker runs %s` to find the "+
			"run, then `caretaker cancel RUN`", a.client.explain(err), request.GetWorker())
	}
	return fmt.Errorf("interrupted while starting the run: run `caretaker runs %s` to see whether "+
		"it started", request.GetWorker())
}

// outcome returns the exit code of a finished run.
func outcome(run *pb.Run) error {
	switch run.GetState() {
	case pb.RunState_RUN_STATE_SUCCEEDED:
		return nil
	case pb.RunState_RUN_STATE_SKIPPED:
		return &exitError{exitSkipped, nil}
	default:
		return &exitError{exitFailed, nil}
	}
}

// notFollowed explains the error of a run that has started and that the command cannot follow.
func (a *app) notFollowed(id string, err error) error {
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("the connection to %s ended during run %s: once the server answers, run "+
			"`caretaker watch %s` to follow the run", a.client.server(), id, id)
	}
	return fmt.Errorf("cannot follow run %s: %w (to retry, run `caretaker watch %s`)",
		id, a.client.explain(err), id)
}

// follow calls each for every change of a run, and returns the run's last known state.
func follow(ctx context.Context, client api, id string, each func(*pb.RunEvent) error) (last *pb.Run, err error) {
	stream, err := client.WatchRun(ctx, &pb.WatchRunRequest{Id: id})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) && last != nil {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		last = event.GetRun()
		if err := each(event); err != nil {
			return last, err
		}
	}
}

// watchCommand follows a run that has started. With --output json it prints an event in each line.
func watchCommand(a *app) *cobra.Command {
	id := ""
	return &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run until it ends",
		Args:  runArgument(&id),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.connect(c.Context(), func(ctx context.Context, client api) error {
				each, describe := progress(ctx, client, a.terminal), describeRun
				if a.asJSON {
					each = func(event *pb.RunEvent) error {
						return a.printJSON(event, protojson.MarshalOptions{})
					}
					describe = func(*terminal, *pb.Run) error { return nil }
				}
				last, err := follow(ctx, client, id, each)
				if err != nil && last != nil {
					return a.notFollowed(id, err)
				}
				if err != nil {
					return err
				}
				return errors.Join(describe(a.terminal, last), outcome(last))
			})
		},
	}
}

// cancelCommand cancels a run, and returns before the run has stopped. A run that has already
// ended is no error.
func cancelCommand(a *app) *cobra.Command {
	request := &pb.CancelRunRequest{}
	command := &cobra.Command{
		Use:   "cancel RUN [--reason REASON]",
		Short: "Stop a run after its current statement",
		Args:  runArgument(&request.Id),
		RunE: call(a, api.CancelRun, request, func(out *terminal, r *pb.CancelRunResponse) error {
			run := r.GetRun()
			if run.GetState() == pb.RunState_RUN_STATE_RUNNING {
				out.println("stopping run %s of %s after its current statement. To follow it: caretaker watch %s",
					run.GetId(), subject(run), run.GetId())
			} else {
				out.println("run %s of %s has already ended: %s", run.GetId(), subject(run), state(run))
			}
			return nil
		}),
	}
	command.Flags().StringVar(&request.Reason, "reason", "", "`reason` for the audit log")
	return command
}

// candidatesShown is the number of candidates in the question before a run.
const candidatesShown = 10

// confirm makes a dry run, shows its candidates, and asks. It then limits the run to these
// candidates. If the dry run could not check all candidates, the question mentions it. confirm
// returns the dry run, and reports whether the dry run found work.
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
	if err == nil {
		err = summarize(a.terminal, plan)
	}
	if err == nil {
		err = outcome(plan)
	}
	if err != nil {
		return nil, false, err
	}
	if _, pause, paused := strings.Cut(plan.GetReason(), "WORKER_PAUSED: "); paused {
		return nil, false, &exitError{exitSkipped, errors.New("skipped: " + pause)}
	}
	if nothingDue(plan) {
		a.note("nothing is due: no run was started")
		return plan, false, nil
	}
	if plan.GetCandidatesDigest() == "" && request.GetWorker() != lfk.Name {
		a.note("not all candidates were checked, so the run may do more than is shown")
	}
	a.note("run %s now, for %s, on server %s? Deleted rows cannot be restored [y/N] ",
		request.GetWorker(), extent(plan), a.client.server())
	if !a.agreed() {
		return nil, false, errDeclined
	}
	request.ExpectedDigest = plan.GetCandidatesDigest()
	// With several databases, use the database of the dry run.
	request.Database = plan.GetDatabase()
	return plan, true, nil
}

// summarize prints the first candidates of a dry run to the standard error.
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
		return fmt.Errorf("cannot show what the run would do: %w", err)
	}
	return nil
}

// explainChange adds advice if the server refused a run because its candidates differ from the dry
// run. It returns other errors unchanged. confirmed means that this command made the dry run.
func explainChange(err error, confirmed bool) error {
	info := errorInfo(err)
	if info.GetReason() != "PLAN_CHANGED" {
		return err
	}
	what := "the candidates have changed since the dry run"
	again := "start a new dry run, and use its digest in --expected-digest"
	if confirmed {
		again = "run the command again to see the new candidates"
	}
	if info.GetMetadata()["candidates_digest"] == "" {
		what = "a run's time limit is too short to check all candidates"
		again = "try again later, or omit --expected-digest"
		if confirmed {
			again = "try again later, or use --yes to skip this check"
		}
	}
	return fmt.Errorf("nothing was done, because %s: %s (PLAN_CHANGED, run %s)",
		what, again, info.GetMetadata()["run_id"])
}

// nothingDue reports whether a plan has neither candidates nor counts. Plans of loose foreign keys
// have only counts. Plans that reached a limit are incomplete.
func nothingDue(plan *pb.Run) bool {
	complete := plan.GetCandidatesDigest() != "" || plan.GetWorker() == lfk.Name && !plan.GetOverLimit()
	return complete && len(plan.GetCandidates()) == 0 && plan.GetMoreCandidates() == 0 && counts(plan) == ""
}

// extent returns the size of a run's changes for the question before the run. The run also deletes
// the children of deleted rows, which a dry run does not count.
func extent(plan *pb.Run) string {
	if n := int64(len(plan.GetCandidates())) + plan.GetMoreCandidates(); n > 0 {
		return format.Pluralize(n, "candidate")
	}
	rows, least, uncounted := int64(0), "", ""
	for _, d := range plan.GetDefinitions() {
		rows += d.GetRows()
		if d.GetAtLeast() {
			least = "at least "
		}
		if d.GetAction() == lfkrepo.AsyncDelete && d.GetRows() > 0 {
			least, uncounted = "at least ", " (children of children are not counted)"
		}
	}
	if records := plan.GetCounts()["processed_records"]; rows == 0 && records > 0 {
		return format.Pluralize(records, "record") + " without child rows"
	}
	return least + format.Pluralize(rows, "row") + uncounted
}

// errDeclined ends a command if the answer to its question is not yes.
var errDeclined = errors.New("nothing was done: to skip the confirmation, use --yes")
