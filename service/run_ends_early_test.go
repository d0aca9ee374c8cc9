package service_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRun_ThatEndsEarlyFailsIfItsItemsHave(t *testing.T) {
	t.Parallel()
	const failure = "c.p_id -> p on main: P0001 raise_exception, 1 records"
	e, s := writing(t, func(_ context.Context, x *run.Execution) error {
		x.RequestStop(run.StopError{Reason: repo.Reason{Code: run.ReasonThrottled, Detail: "load"}, Early: true})
		return fmt.Errorf("%w: %w", &run.FailedError{Text: failure}, x.Stopped())
	})
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: "writer"}))(t)
	servicetest.WantState(t, r, repo.RunFailed)
	e.Want("main", `SELECT state || ', ' || over_limit || ', ' || error FROM maintenance.runs`, "failed, true, "+failure)
}
