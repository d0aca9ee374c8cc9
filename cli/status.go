package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/config"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// status shows where the workers stand.
func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status [WORKER]",
		Short: "Show what the workers do, and why they do not",
		Args:  between(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			request := &maintenancev1.GetStatusRequest{}
			if len(args) == 1 {
				request.Worker = args[0]
			}
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.GetStatus(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeWorkers(answer.GetWorkers()) })
			})
		},
	}
}

func (a *app) describeWorkers(workers []*maintenancev1.WorkerStatus) error {
	var rows [][]string
	for _, w := range workers {
		due, deferred, dead := none, none, none
		if b := w.GetBacklog(); b != nil {
			due, deferred, dead = number(b.GetDue()), number(b.GetDeferred()), number(b.GetDead())
		}
		last, success := lastRun(w), at(w.GetLastSuccessAt())
		if last == none && success == none && isDark(w) {
			last, success = "not known", "not known"
		}
		rows = append(rows, []string{
			w.GetWorker(), word(w.GetCondition(), "CONDITION_"), at(w.GetNextRunAt()), last, success, due, deferred, dead,
		})
	}
	heading := []string{"WORKER", "CONDITION", "NEXT RUN", "LAST RUN", "LAST SUCCESS", "DUE", "DEFERRED", "DEAD"}
	if err := a.table(heading, rows); err != nil {
		return err
	}
	for _, w := range workers {
		if w.GetConditionDetail() != "" {
			a.say("\n%s: %s", w.GetWorker(), strings.TrimPrefix(asCommands(w.GetConditionDetail()), w.GetWorker()+" "))
		}
		if f := w.GetFailing(); f != nil {
			a.say("  class %s: %s", strings.TrimPrefix(f.GetClass().String(), "FAILURE_CLASS_"), remedy(w))
		}
		if p := w.GetPaused(); p != nil && w.GetCondition() != maintenancev1.Condition_CONDITION_PAUSED {
			end := "without an end"
			if p.GetUntil() != nil {
				end = "until " + at(p.GetUntil())
			}
			a.say("%s: paused by %s since %s, %s: %s", w.GetWorker(), p.GetBy(), at(p.GetSince()), end, p.GetReason())
		}
	}
	return nil
}

// isDark says that main, which has the records of runs, does not answer.
func isDark(w *maintenancev1.WorkerStatus) bool {
	f := w.GetFailing()
	return f.GetClass() == maintenancev1.FailureClass_FAILURE_CLASS_UNREACHABLE && f.GetDatabase() == "main"
}

// remedy is what to do about the trouble of a worker, as the table of classes in docs/operations.md has it.
func remedy(w *maintenancev1.WorkerStatus) string {
	switch w.GetFailing().GetClass() {
	case maintenancev1.FailureClass_FAILURE_CLASS_UNREACHABLE:
		return "look after the database; caretaker comes back by itself"
	case maintenancev1.FailureClass_FAILURE_CLASS_SCHEMA:
		return "caretaker migrate; else correct the table, column or right that is named"
	case maintenancev1.FailureClass_FAILURE_CLASS_LOCK, maintenancev1.FailureClass_FAILURE_CLASS_TIMEOUT:
		return "usually goes away, " + again(w) + "; else look for long transactions in pg_stat_activity"
	case maintenancev1.FailureClass_FAILURE_CLASS_DATA:
		return "correct what the constraint or condition that is named says"
	case maintenancev1.FailureClass_FAILURE_CLASS_LEASE_LOST:
		return "nothing is lost, " + again(w)
	case maintenancev1.FailureClass_FAILURE_CLASS_SETTING:
		return "correct the setting of the application, then " + again(w)
	case maintenancev1.FailureClass_FAILURE_CLASS_SCHEDULER:
		return "restart this server, and report it"
	case maintenancev1.FailureClass_FAILURE_CLASS_INTERNAL, maintenancev1.FailureClass_FAILURE_CLASS_UNSPECIFIED:
	}
	return "the log of the run has it; caretaker runs " + w.GetWorker() + " has its id"
}

// again is when the worker goes on, and how it does at once.
func again(w *maintenancev1.WorkerStatus) string {
	now := "caretaker run " + w.GetWorker() + " goes on at once"
	if w.GetNextRunAt() == nil {
		return now
	}
	return "the next run is at " + at(w.GetNextRunAt()) + ", " + now
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func lastRun(w *maintenancev1.WorkerStatus) string {
	if w.GetLastRun() == nil {
		return none
	}
	text := state(w.GetLastRun()) + " " + at(w.GetLastRun().GetFinishedAt())
	if w.GetLastRun().GetDryRun() {
		text += " (dry run)"
	}
	return text
}

// cancel asks a run to stop.
func (a *app) cancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel RUN",
		Short: "Ask a run to stop after the statement in flight",
		Args:  between(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := runID(args[0]); err != nil {
				return err
			}
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.CancelRun(ctx, &maintenancev1.CancelRunRequest{Id: args[0]})
				if err != nil {
					return err
				}
				return a.show(answer, func() error {
					run := answer.GetRun()
					if run.GetState() == maintenancev1.RunState_RUN_STATE_RUNNING {
						a.say("run %s of %s is asked to stop; caretaker watch %s follows it", run.GetId(), subject(run), run.GetId())
						return nil
					}
					a.say("run %s of %s had ended before: %s", run.GetId(), subject(run), state(run))
					return nil
				})
			})
		},
	}
}

// flags lists and sets feature flags.
func (a *app) flags() *cobra.Command {
	list := &cobra.Command{
		Use:   "flags",
		Short: "List feature flags, or set one: flags set NAME on|off",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.ListFeatureFlags(ctx, &maintenancev1.ListFeatureFlagsRequest{})
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeFlags(answer.GetFlags()) })
			})
		},
	}
	list.AddCommand(&cobra.Command{
		Use:   "set NAME on|off",
		Short: "Switch a feature flag; runs read it at their start",
		Args:  cobra.MatchAll(between(2, 2), onOrOff),
		RunE: func(c *cobra.Command, args []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				if err := knownFlag(ctx, client, args[0]); err != nil {
					return err
				}
				request := &maintenancev1.SetFeatureFlagRequest{Name: args[0], Enabled: args[1] == "on"}
				answer, err := client.SetFeatureFlag(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeFlags([]*maintenancev1.FeatureFlag{answer.GetFlag()}) })
			})
		},
	})
	return list
}

// knownFlag refuses names that the server does not list: nothing would read such a flag, and a slip of the pen would show
// nowhere. The API sets any.
func knownFlag(ctx context.Context, client maintenancev1.MaintenanceServiceClient, name string) error {
	answer, err := client.ListFeatureFlags(ctx, &maintenancev1.ListFeatureFlagsRequest{})
	if err != nil {
		return err
	}
	var names []string
	for _, f := range answer.GetFlags() {
		if f.GetName() == name {
			return nil
		}
		if isRead(f.GetName()) {
			names = append(names, f.GetName())
		}
	}
	return usage(fmt.Errorf("there is no flag %q: there are %s", name, strings.Join(names, ", ")))
}

// isRead says whether runs read a flag of this name: the server lists others, too, once the API has set them.
func isRead(name string) bool {
	database, turbo := strings.CutPrefix(name, "loose_foreign_keys_turbo_mode_")
	return turbo && slices.Contains(config.DatabaseNames(), database)
}

func onOrOff(_ *cobra.Command, args []string) error {
	if args[1] != "on" && args[1] != "off" {
		return fmt.Errorf("%q: say on or off", args[1])
	}
	return nil
}

func (a *app) describeFlags(flags []*maintenancev1.FeatureFlag) error {
	var rows [][]string
	for _, f := range flags {
		value := "off"
		if f.GetEnabled() {
			value = "on"
		}
		rows = append(rows, []string{f.GetName(), value})
	}
	return a.table([]string{"FLAG", "VALUE"}, rows)
}
