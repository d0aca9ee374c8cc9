package run_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// elsewhere is a run at work in a process of its own, which has removed the first 4 of 10 records and stands before the
// others; s is a service of this process.
func elsewhere(t *testing.T) (e *servicetest.Estate, s *service.Service, p *servicetest.Process, id, before string) {
	t.Helper()
	e = servicetest.NewDeletedParents(t, 10)
	e.Gate("main", "c", "OLD.p_id > 4")
	e.Shut("main", "other")
	s = e.Service(servicetest.OneChild)
	p = e.Start("other", servicetest.OneChild, func(o *servicetest.Order) { o.BatchSize = 2 })
	e.Eventually("main", `SELECT min(primary_key_value) FROM loose_foreign_keys_deleted_records`, "5")
	e.AtGate("main", "other")
	return e, s, p, e.Value("main", `SELECT id FROM maintenance.runs`), e.State("main", "c")
}

func TestFault_CancelRun_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e, s, p, id, before := elsewhere(t)
	if r, err := s.CancelRun(context.Background(), id, "me at home"); err != nil || r.State != repo.RunRunning {
		t.Fatal(r, err)
	}
	servicetest.Must(s.CancelRun(context.Background(), id, "somebody later"))(t)
	r := p.Result().Run
	e.WantHalf(r, "CANCELLED", before)
	if !strings.HasPrefix(r.Error, "cancelled by me at home, 20") {
		t.Errorf("error %q", r.Error)
	}
}

func TestFault_PauseWorker_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e, s, p, _, before := elsewhere(t)
	servicetest.Pause(t, s, service.AllWorkers)
	e.WantHalf(p.Result().Run, "PAUSED", before)
}

func TestFault_WatchRun_StreamsTheProgressOfARunInAnotherProcess(t *testing.T) {
	t.Parallel()
	e, s, p, id, _ := elsewhere(t)
	var seen []service.Run
	err := s.WatchRun(context.Background(), id, func(r service.Run) error {
		seen = append(seen, r)
		// Its progress is known here before its end.
		if r.State == repo.RunRunning && r.Counts["processed_records"] == 4 {
			e.Lift("main", "other")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	last := seen[len(seen)-1]
	servicetest.WantState(t, last, repo.RunSucceeded)
	servicetest.WantCounts(t, last, "processed_records=10 deleted_rows=30")
	if len(seen) < 2 || p.Result().Run.ID != id {
		t.Errorf("seen %+v", seen)
	}
}
