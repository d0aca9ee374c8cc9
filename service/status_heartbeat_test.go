package service

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
)

func TestStatus_SchedulerThatGivesNoSignOfLifeIsInTrouble(t *testing.T) {
	s := &Service{engine: &run.Runner{}}
	now := time.Now()
	trouble := func(h schedule.Heartbeat) Failing { return s.schedulerProblem(context.Background(), h) }
	if f := trouble(schedule.Heartbeat{At: now.Add(time.Second - heartbeatTimeout)}); f != (Failing{}) {
		t.Errorf("%+v", f)
	}
	last := now.Add(-heartbeatTimeout)
	if f := trouble(schedule.Heartbeat{At: last}); f.Class != FailureScheduler || !f.Since.Equal(last) || f.Message == "" {
		t.Errorf("%+v, want trouble since %s", f, last)
	}
	began := now.Add(-time.Hour)
	broken := schedule.Heartbeat{At: now, Err: repo.ErrNotMigrated, FailingSince: began}
	if f := trouble(broken); f.Class != FailureSchema || !f.Since.Equal(began) {
		t.Errorf("%+v, want trouble since %s", f, began)
	}
	away := schedule.Heartbeat{At: now, Err: repo.ErrUnreachable, FailingSince: began}
	if f := trouble(away); f != (Failing{}) {
		t.Errorf("%+v: the status call asks main itself", f)
	}
}
