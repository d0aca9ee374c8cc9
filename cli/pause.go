package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// everyWorker is the name that stands for all workers.
const everyWorker = "*"

// workerOrAll is the one argument of a command, a worker's name, which the flag --all replaces.
type workerOrAll struct{ all bool }

func (w *workerOrAll) flag(command *cobra.Command) {
	command.Flags().BoolVar(&w.all, "all", false, "all workers and all deferred jobs, instead of a WORKER")
	command.Args = w.check
}

func (w *workerOrAll) check(_ *cobra.Command, args []string) error {
	if w.all == (len(args) == 1) || len(args) > 1 {
		return errors.New("name one WORKER, or say --all")
	}
	return nil
}

func (w *workerOrAll) name(args []string) string {
	if w.all {
		return everyWorker
	}
	return args[0]
}

// pause pauses a worker, or all.
func (a *app) pause() *cobra.Command {
	request := &maintenancev1.PauseWorkerRequest{}
	var lasting lasting
	var which workerOrAll
	command := &cobra.Command{
		Use:   "pause WORKER|--all --reason REASON [--for DURATION]",
		Short: "Keep a worker, or all of them with their jobs, from running, on every replica",
		RunE: func(c *cobra.Command, args []string) error {
			request.Worker, request.Ttl = which.name(args), lasting.ttl()
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.PauseWorker(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeWorkers([]*maintenancev1.WorkerStatus{answer.GetWorker()}) })
			})
		},
	}
	which.flag(command)
	command.Flags().StringVar(&request.Reason, "reason", "", "why, for those who find the worker paused")
	command.Flags().Var(&lasting, "for", "`duration` such as 30m or 8h; else until caretaker resume")
	_ = command.MarkFlagRequired("reason")
	return command
}

// resume ends a pause.
func (a *app) resume() *cobra.Command {
	var which workerOrAll
	command := &cobra.Command{
		Use:   "resume WORKER|--all",
		Short: "End a worker's pause, or that of all; those paused by themselves stay so",
		RunE: func(c *cobra.Command, args []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.ResumeWorker(ctx, &maintenancev1.ResumeWorkerRequest{Worker: which.name(args)})
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeWorkers([]*maintenancev1.WorkerStatus{answer.GetWorker()}) })
			})
		},
	}
	which.flag(command)
	return command
}
