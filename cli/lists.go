package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// leases lists all leases.
func (a *app) leases() *cobra.Command {
	request := &maintenancev1.ListLeasesRequest{}
	command := &cobra.Command{
		Use:   "leases [WORKER]",
		Short: "List the leases, held and free",
		Args:  workerOnce(&request.Worker),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				all := &maintenancev1.ListLeasesResponse{}
				for {
					answer, err := client.ListLeases(ctx, request)
					if err != nil {
						return err
					}
					all.Leases = append(all.Leases, answer.GetLeases()...)
					request.PageToken = answer.GetNextPageToken()
					if request.GetPageToken() == "" {
						return a.show(all, func() error { return a.describeLeases(all.GetLeases()) })
					}
				}
			})
		},
	}
	command.Flags().StringVar(&request.Worker, "worker", "", "`name` of a worker, the same as WORKER; else all")
	return command
}

func (a *app) describeLeases(leases []*maintenancev1.Lease) error {
	var rows [][]string
	for _, l := range leases {
		held := "held"
		if l.GetExpired() {
			held = "free"
		}
		rows = append(rows, []string{
			l.GetName(), held, l.GetHolder(), number(l.GetEpoch()), at(l.GetAcquiredAt()), at(l.GetRenewedAt()), at(l.GetExpiresAt()),
		})
	}
	return a.table([]string{"LEASE", "STATE", "HOLDER", "EPOCH", "ACQUIRED", "RENEWED", "EXPIRES"}, rows)
}

// runs lists the newest runs, or a page of older ones.
func (a *app) runs() *cobra.Command {
	request := &maintenancev1.ListRunsRequest{PageSize: 20}
	var named stateName
	command := &cobra.Command{
		Use:   "runs [WORKER]",
		Short: "List runs, the newest first",
		Args:  workerOnce(&request.Worker),
		RunE: func(c *cobra.Command, _ []string) error {
			request.State = named.value
			return a.ask(c.Context(), func(ctx context.Context, client maintenancev1.MaintenanceServiceClient) error {
				answer, err := client.ListRuns(ctx, request)
				if err != nil {
					return err
				}
				return a.show(answer, func() error { return a.describeRuns(answer) })
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Worker, "worker", "", "`name` of a worker, the same as WORKER; else all")
	flags.Var(&named, "state", "running, succeeded, failed, cancelled or skipped; else all")
	flags.Var(pageSize{&request.PageSize}, "page-size", "how many, up to 1000")
	flags.StringVar(&request.PageToken, "page-token", "", "`token` of the next page")
	return command
}

func (a *app) describeRuns(answer *maintenancev1.ListRunsResponse) error {
	var rows [][]string
	for _, r := range answer.GetRuns() {
		rows = append(rows, []string{
			r.GetId(), subject(r), word(r.GetTrigger(), "TRIGGER_"), state(r), at(r.GetStartedAt()), took(r), result(r),
		})
	}
	if err := a.table([]string{"RUN", "WORKER", "TRIGGER", "STATE", "STARTED", "TOOK", "RESULT"}, rows); err != nil {
		return err
	}
	if token := answer.GetNextPageToken(); token != "" {
		a.note("older runs: --page-token %s", token)
	}
	return nil
}

// result is what a run has done, and why it ended so, in one line.
func result(run *maintenancev1.Run) string {
	parts := []string{counts(run), run.GetReason(), strings.ReplaceAll(asCommands(run.GetError()), "\n", "; ")}
	if run.GetOverLimit() && !strings.Contains(run.GetReason(), "limit") {
		parts = append(parts, "a limit was reached")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// pageSize is the flag --page-size.
type pageSize struct{ to *int32 }

// maxPageSize is the API's.
const maxPageSize = 1000

// String is the number.
func (p pageSize) String() string {
	if p.to == nil {
		return ""
	}
	return strconv.Itoa(int(*p.to))
}

// Type is what the help calls the value.
func (pageSize) Type() string { return "number" }

// Set takes a number that the API takes.
func (p pageSize) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 || n > maxPageSize {
		return fmt.Errorf("a whole number from 1 to %d", maxPageSize)
	}
	*p.to = int32(n)
	return nil
}

// stateName is the flag --state.
type stateName struct{ value maintenancev1.RunState }

// String is the state's name, "" for any.
func (s *stateName) String() string {
	if s.value == maintenancev1.RunState_RUN_STATE_UNSPECIFIED {
		return ""
	}
	return word(s.value, "RUN_STATE_")
}

// Type is what the help calls the value.
func (*stateName) Type() string { return "state" }

// Set takes the name of a state.
func (s *stateName) Set(name string) error {
	value, known := maintenancev1.RunState_value["RUN_STATE_"+strings.ToUpper(name)]
	if !known || value == 0 {
		return errors.New("running, succeeded, failed, cancelled or skipped")
	}
	s.value = maintenancev1.RunState(value)
	return nil
}

// lasting is the flag --for.
type lasting struct{ duration time.Duration }

// String is the duration, "" for none.
func (l *lasting) String() string {
	if l.duration == 0 {
		return ""
	}
	return l.duration.String()
}

// Type is what the help calls the value.
func (*lasting) Type() string { return "duration" }

// Set takes a positive duration.
func (l *lasting) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a positive duration such as 30m or 8h", text)
	}
	l.duration = d
	return nil
}

func (l *lasting) ttl() *durationpb.Duration {
	if l.duration == 0 {
		return nil
	}
	return durationpb.New(l.duration)
}
