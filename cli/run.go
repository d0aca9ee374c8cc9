package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// run starts a run and waits for its end.
func (a *app) run() *cobra.Command {
	request := &maintenancev1.RunBatchRequest{Async: true}
	command := &cobra.Command{
		Use:   "run WORKER",
		Short: "Run a worker once and wait for the end",
		Long: "Run a worker once and wait for the end. Ctrl-C asks the run to stop after the statement in flight; a second\n" +
			"Ctrl-C leaves it alone. Exit code: 0 succeeded, 1 failed, cancelled\n" +
			"or lost sight of, 2 usage, 3 skipped.",
		Args: between(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			request.Worker, request.RequestId = args[0], uuid.NewString()
			return a.connect(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				return a.runAndWatch(ctx, client, request)
			})
		},
	}
	command.Flags().BoolVar(&request.DryRun, "dry-run", false, "count what a run would do, and write nothing")
	command.Flags().StringVar(&request.Database, "database", "", "`name` of the database; else the one whose turn it is")
	return command
}

func (a *app) runAndWatch(ctx context.Context, client maintenancev1.MaintenanceServiceClient, request *maintenancev1.RunBatchRequest) error {
	answer, err := client.RunBatch(ctx, request)
	if err != nil {
		return err
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	id := answer.GetRun().GetId()
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-interrupts:
		}
		a.note("\ncancelling run %s; press Ctrl-C again to leave it alone", id)
		if _, err := client.CancelRun(ctx, &maintenancev1.CancelRunRequest{Id: id}); err != nil {
			a.note("the run could not be cancelled: %s", a.explain(err))
		}
		select {
		case <-ctx.Done():
		case <-interrupts:
			leave(fmt.Errorf("left run %s alone: caretaker watch %s follows it", id, id))
		}
	}()
	last, err := a.follow(ctx, client, id, a.progress())
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err != nil {
		return fmt.Errorf("lost sight of run %s, caretaker watch %s follows it: %w", id, id, a.explain(err))
	}
	err = a.show(&maintenancev1.RunBatchResponse{Run: last}, func() error { return a.describeRun(last) })
	return errors.Join(err, outcome(last))
}

// outcome is the exit code of a run that has ended.
func outcome(run *maintenancev1.Run) error {
	switch run.GetState() {
	case maintenancev1.RunState_RUN_STATE_SUCCEEDED:
		return nil
	case maintenancev1.RunState_RUN_STATE_SKIPPED:
		return &exitError{exitSkipped, nil}
	default:
		return &exitError{exitFailed, nil}
	}
}

// follow calls each with every state of a run, and returns the last.
func (a *app) follow(ctx context.Context, client maintenancev1.MaintenanceServiceClient, id string, each func(*maintenancev1.RunEvent) error) (last *maintenancev1.Run, err error) {
	stream, err := client.WatchRun(ctx, &maintenancev1.WatchRunRequest{Id: id})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) && last != nil {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
		last = event.GetRun()
		if err := each(event); err != nil {
			return nil, err
		}
	}
}

// watch follows a run that is there.
func (a *app) watch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run until it ends; with --output json one event a line",
		Long: "Follow a run until it ends; with --output json one event a line. Exit code: 0 it succeeded, 1 it failed, was\n" +
			"cancelled or lost sight of, 2 usage, 3 it was skipped.",
		Args: between(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := runID(args[0]); err != nil {
				return err
			}
			return a.connect(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				each := a.progress()
				if a.format == formatJSON {
					each = func(event *maintenancev1.RunEvent) error { return a.line(event) }
				}
				last, err := a.follow(ctx, client, args[0], each)
				if err != nil {
					return err
				}
				if a.format == formatJSON {
					return outcome(last)
				}
				return errors.Join(a.describeRun(last), outcome(last))
			})
		},
	}
}

// runID refuses what cannot be the id of a run.
func runID(text string) error {
	if uuid.Validate(text) != nil {
		return usage(fmt.Errorf("%q is not the id of a run, such as 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4: caretaker runs lists them", text))
	}
	return nil
}

// progressEvery is how often a run's progress is said where the line cannot change.
const progressEvery = 5 * time.Second

// progress shows a run while it works: on a terminal one line that changes, else a line when it starts and now and then.
func (a *app) progress() func(*maintenancev1.RunEvent) error {
	terminal, reason, said := isTerminal(a.Err), "", time.Time{}
	return func(event *maintenancev1.RunEvent) error {
		run := event.GetRun()
		working := run.GetState() == maintenancev1.RunState_RUN_STATE_RUNNING
		switch {
		case terminal && working:
			_, _ = fmt.Fprintf(a.Err, "\r\033[K%s %s", bar(event.GetSequence()), progressText(run, time.Now()))
		case terminal:
			_, _ = fmt.Fprint(a.Err, "\r\033[K")
		case working && event.GetSequence() == 1:
			a.note("run %s of %s started at %s", run.GetId(), subject(run), at(run.GetStartedAt()))
			said = time.Now()
		case working && time.Since(said) > progressEvery:
			a.note("%s", progressText(run, time.Now()))
			said = time.Now()
		}
		if !terminal && working && run.GetReason() != reason {
			reason = run.GetReason()
			a.note("%s", cmp.Or(reason, "it goes on"))
		}
		return nil
	}
}

// isTerminal says whether a person is looking.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
