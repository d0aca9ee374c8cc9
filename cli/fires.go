package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// fires lists the newest fires of the schedules, or a page of older ones.
func (a *app) fires() *cobra.Command {
	request := &maintenancev1.ListFiresRequest{PageSize: 20}
	var named outcomeName
	command := &cobra.Command{
		Use:   "fires [WORKER]",
		Short: "List the fires of the schedules, the newest first, and what became of them",
		Args:  workerOnce(&request.Worker),
		RunE: func(c *cobra.Command, _ []string) error {
			request.Outcome = named.value
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.ListFires(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeFires(answer) })
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Worker, "worker", "", "`name` of a worker, the same as WORKER; else all")
	flags.Var(&named, "outcome", "claimed, ran, skipped or missed; else all")
	flags.Var(pageSize{&request.PageSize}, "page-size", "how many, up to 1000")
	flags.StringVar(&request.PageToken, "page-token", "", "`token` of the next page")
	return command
}

func (a *app) describeFires(answer *maintenancev1.ListFiresResponse) error {
	var rows [][]string
	for _, f := range answer.GetFires() {
		late := none
		if f.GetLate() != nil {
			late = f.GetLate().AsDuration().Round(time.Millisecond).String()
		}
		rows = append(rows, []string{
			at(f.GetFireTime()), f.GetWorker(), word(f.GetOutcome(), "FIRE_OUTCOME_"), late, cmp.Or(f.GetClaimedBy(), none), cmp.Or(f.GetRunId(), none),
			strings.ReplaceAll(f.GetReason(), "\n", "; "),
		})
	}
	if err := a.table([]string{"FIRE", "WORKER", "OUTCOME", "LATE", "BY", "RUN", "REASON"}, rows); err != nil {
		return err
	}
	if token := answer.GetNextPageToken(); token != "" {
		a.note("older fires: --page-token %s", token)
	}
	return nil
}

// outcomeName is the flag --outcome.
type outcomeName struct{ value maintenancev1.FireOutcome }

// String is the outcome's name, "" for any.
func (o *outcomeName) String() string {
	if o.value == maintenancev1.FireOutcome_FIRE_OUTCOME_UNSPECIFIED {
		return ""
	}
	return word(o.value, "FIRE_OUTCOME_")
}

// Type is what the help calls the value.
func (*outcomeName) Type() string { return "outcome" }

// Set takes the name of an outcome.
func (o *outcomeName) Set(name string) error {
	value, known := maintenancev1.FireOutcome_value["FIRE_OUTCOME_"+strings.ToUpper(name)]
	if !known || value == 0 {
		return errors.New("claimed, ran, skipped or missed")
	}
	o.value = maintenancev1.FireOutcome(value)
	return nil
}
