package service_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// elsewhere is a run at work in a process of its own, which has removed the first 4 of 10 records and stands before the
// others; s is a service of this process.
func elsewhere(t *testing.T) (e *estate, s *service.Service, p *process, id, before string) {
	t.Helper()
	e = newDeletedParents(t, 10)
	e.gate("main", "c", "OLD.p_id > 4")
	e.shut("main", "other")
	s = e.service(oneChild)
	p = e.start("other", oneChild, func(o *processOrder) { o.BatchSize = 2 })
	e.eventually("main", `SELECT min(primary_key_value) FROM loose_foreign_keys_deleted_records`, "5")
	e.atGate("main", "other")
	return e, s, p, e.value("main", `SELECT id FROM maintenance.runs`), e.state("main", "c")
}

func TestCancelRun_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e, s, p, id, before := elsewhere(t)
	if r, err := s.CancelRun(context.Background(), id, "me at home"); err != nil || r.State != repo.RunRunning {
		t.Fatal(r, err)
	}
	if _, err := s.CancelRun(context.Background(), id, "somebody later"); err != nil {
		t.Fatal(err)
	}
	r := p.result().Run
	e.wantHalf(r, "CANCELLED", before)
	if !strings.HasPrefix(r.Error, "cancelled by me at home, 20") {
		t.Errorf("error %q", r.Error)
	}
}

func TestPauseWorker_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e, s, p, _, before := elsewhere(t)
	pause(t, s, service.AllWorkers)
	e.wantHalf(p.result().Run, "PAUSED", before)
}

func TestWatchRun_StreamsTheProgressOfARunInAnotherProcess(t *testing.T) {
	t.Parallel()
	e, s, p, id, _ := elsewhere(t)
	var seen []service.Run
	err := s.WatchRun(context.Background(), id, func(r service.Run) error {
		seen = append(seen, r)
		// Its progress is known here before its end.
		if r.State == repo.RunRunning && r.Counts["processed_records"] == 4 {
			e.lift("main", "other")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	last := seen[len(seen)-1]
	wantState(t, last, repo.RunSucceeded)
	wantCounts(t, last, "processed_records=10 deleted_rows=30")
	if len(seen) < 2 || p.result().Run.ID != id {
		t.Errorf("seen %+v", seen)
	}
}
